"""The one error of loading a model."""

from pathlib import Path


class ModelLoadError(ValueError):
    """A model that cannot be served from these files. One line: file, tensor or key where there is one, and why."""

    def __init__(self, path: Path, reason: str, tensor: str | None = None) -> None:
        self.path = path
        self.tensor = tensor
        self.reason = reason
        super().__init__(f"{path}: {reason}" if tensor is None else f"{path}: tensor {tensor}: {reason}")
