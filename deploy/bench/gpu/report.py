"""Results of a run: printed as they come, kept as JSON, so that a run cut short still leaves what it measured."""

import json
import time
from pathlib import Path

Figure = str | int | float | bool | None


class Report:
    """Rows by part."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "gpu_check.json"
        self._started = time.monotonic()
        self._parts: dict[str, list[dict[str, Figure]]] = {}
        self.failures: list[str] = []

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    def add(self, part: str, **figures: Figure) -> None:
        """A row of a part; written at once."""
        self._parts.setdefault(part, []).append(figures)
        shown = "  ".join(f"{name}={_shown(value)}" for name, value in figures.items())
        print(f"[{self.elapsed_s:6.1f} s] {part:12s} {shown}", flush=True)
        self._write()

    def fail(self, part: str, what: str) -> None:
        """Something that is wrong: the run goes on, and exits 1."""
        self.failures.append(f"{part}: {what}")
        self.add(part, FAILED=what)

    def skip(self, part: str, reason: str) -> None:
        """A part that this machine cannot do."""
        self.add(part, skipped=reason)

    def _write(self) -> None:
        held = {"elapsed_s": round(self.elapsed_s, 1), "failures": self.failures, "parts": self._parts}
        self._path.write_text(json.dumps(held, indent=1))


def _shown(value: Figure) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
