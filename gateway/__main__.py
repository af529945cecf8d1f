"""``python -m gateway``: the gateway process alone."""

import asyncio
import sys
from collections.abc import Sequence

from chairlift.runtime.addresses import AddressError
from chairlift.runtime.lean_memory import limit_arenas
from chairlift.runtime.model_source import ModelNotFoundError, ModelSource, resolve_model
from chairlift.runtime.process import (
    ExitCode,
    StopSignal,
    allow_descriptors,
    die_with_parent,
    patient_threads,
    stop_on_signals,
)
from chairlift.runtime.settings import Settings
from chairlift.runtime.settings_loader import parse_settings
from chairlift.runtime.sockets import EndpointError
from chairlift.runtime.telemetry import configure_logging, give_up
from chairlift.runtime.tracing import open_tracing
from gateway.security.secret_files import SecretsError
from gateway.service import GatewayService
from gateway.text.errors import ChatTemplateError, ModelTextError
from gateway.text.model_text import ModelText, load_model_text

_NUM_DESCRIPTORS = 65_536
_GRPC_SLACK_S = 1.0
"""Its own timers are keepalive, connections' age and deadlines, which calls do not wait for: the gateway ends them."""


def main(argv: Sequence[str]) -> int:
    """Runs until SIGTERM or SIGINT; the exit code says why it ended."""
    die_with_parent()
    settings = parse_settings(argv, "gateway")
    configure_logging(settings.telemetry, "gateway")
    limit_arenas()
    allow_descriptors(_NUM_DESCRIPTORS)
    with stop_on_signals() as stop:
        try:
            source = resolve_model(settings.model.source, settings.model.revision)
            text = load_model_text(source)
        except (ModelNotFoundError, ModelTextError) as error:
            return give_up(ExitCode.MODEL, "model_cannot_be_read", error)
        return asyncio.run(_run(settings, source, text, stop))


async def _run(settings: Settings, source: ModelSource, text: ModelText, stop: StopSignal) -> ExitCode:
    try:
        tracing = open_tracing("gateway")
        # gRPC's threads start here. They look for work several times a second, although work wakes them when it comes.
        with patient_threads(_GRPC_SLACK_S):
            service = GatewayService(settings, source, text, tracing)
    except (AddressError, EndpointError, SecretsError) as error:
        return give_up(ExitCode.USAGE, "gateway_cannot_start", error)
    try:
        await service.start()
        await service.run(stop)
    except ChatTemplateError as error:
        return give_up(ExitCode.MODEL, "model_cannot_be_read", error)
    except (AddressError, EndpointError, OSError) as error:
        return give_up(ExitCode.USAGE, "gateway_cannot_start", error)
    finally:
        await service.close()
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
