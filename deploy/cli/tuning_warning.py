"""Says when settings that `chairlift tune` chose are served elsewhere than where they were found."""

import os
from pathlib import Path

import chairlift
from chairlift.runtime.model_source import fingerprint_model, resolve_model
from chairlift.runtime.settings import ModelSettings
from chairlift.runtime.settings_loader import CONFIG_ENV
from deploy.bench.tune.evidence import find_tuning_differences, read_evidence


def warn_of_tuning(config: Path | None, model: ModelSettings) -> str | None:
    """One line, or None where the settings file (`config`, else the environment's) was tuned here or not at all.

    Raises ModelNotFoundError.
    """
    chosen = config or (Path(os.environ[CONFIG_ENV]) if os.environ.get(CONFIG_ENV) else None)
    if chosen is None or read_evidence(chosen) is None:
        return None
    fingerprint = fingerprint_model(resolve_model(model.source, model.revision))
    differences = find_tuning_differences(chosen, chairlift.__version__, fingerprint)
    if not differences:
        return None
    return f"{chosen} was tuned elsewhere ({'; '.join(differences)}): find the settings again with chairlift tune"
