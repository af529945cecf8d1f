"""What is told of a step that raised: a kind and a place, never the values that an exception's text may hold."""

import traceback

import torch

from gpu_worker.batch.limits import InvalidPlanError


class NonFiniteLogitsError(RuntimeError):
    """The model gave NaN for some rows."""

    def __init__(self, rows: tuple[int, ...]) -> None:
        super().__init__(f"rows {', '.join(map(str, rows))}: the model's logits hold NaN")
        self.rows = rows


def failure_kind(error: Exception) -> str:
    """`StepFailed.kind`."""
    if isinstance(error, InvalidPlanError):
        return "invalid_plan"
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error):
        return "out_of_memory"
    return "exception"


def failure_place(error: Exception) -> str:
    """Type of the error and the innermost line of this package that it passed."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "gpu_worker" in frame.filename]
    frame = (own or frames)[-1]
    file = frame.filename.rpartition("gpu_worker")[2].lstrip("/\\") or frame.filename
    return f"{type(error).__name__} in {frame.name} ({file}:{frame.lineno})"
