"""What the proofs of containers share: long streams from outside, waits with an end, the engine that they speak to.

Knows neither Compose nor Kubernetes. Each proof says what it starts and whom it ends amid its streams.
"""

import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from chairlift.client import Client, RetryPolicy

STREAM_TIMEOUT_S = 400.0
_POLL_S = 0.2
_ENGINE = Path(__file__).resolve().parent / "compose" / "engine.sh"


class ProofFailed(Exception):
    """Something is not as it should be."""


class Stream:
    """One greedy request of exactly so many tokens, in a thread of its own. It has begun when it is made."""

    def __init__(self, targets: Sequence[str], prompt: str, max_tokens: int) -> None:
        self.prompt = prompt
        self.max_tokens = max_tokens
        self.text = ""
        self.num_tokens = 0
        self.error = ""
        self._targets = tuple(targets)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def is_complete(self) -> bool:
        """Whether it has all its tokens."""
        return self.num_tokens >= self.max_tokens

    def join(self) -> None:
        """Waits for its end, whatever it is."""
        self._thread.join(STREAM_TIMEOUT_S)

    def _run(self) -> None:
        try:
            with Client(self._targets, retry=RetryPolicy(resume_for_s=120.0), timeout=STREAM_TIMEOUT_S) as client:
                stream = client.stream(self.prompt, max_tokens=self.max_tokens, temperature=0.0, ignore_eos=True)
                for delta in stream:
                    self.text += delta.text
                    self.num_tokens += delta.num_tokens
        except Exception as error:  # noqa: BLE001  # told by the main thread
            self.error = f"{type(error).__name__}: {error}"


def wait_until(what: str, is_so: Callable[[], bool], timeout_s: float) -> float:
    """Seconds that it took. Raises ProofFailed after `timeout_s`, and what `is_so` raises."""
    began = time.monotonic()
    while not is_so():
        if time.monotonic() - began > timeout_s:
            raise ProofFailed(f"not within {timeout_s:g} s: {what}")
        time.sleep(_POLL_S)
    return time.monotonic() - began


def progress(streams: Sequence[Stream], more: int) -> Callable[[], bool]:
    """Says whether every stream has so many more tokens than now, or has ended. Raises ProofFailed where one broke."""
    goals = [min(stream.num_tokens + more, stream.max_tokens) for stream in streams]

    def is_reached() -> bool:
        _raise_broken(streams)
        return all(stream.num_tokens >= goal for stream, goal in zip(streams, goals, strict=True))

    return is_reached


def finish(streams: Sequence[Stream]) -> None:
    """Waits for the end of each. Raises ProofFailed where one broke or has other than all its tokens."""
    for stream in streams:
        stream.join()
    _raise_broken(streams)
    for stream in streams:
        if stream.num_tokens != stream.max_tokens:
            raise ProofFailed(f"a stream ended with {stream.num_tokens} of {stream.max_tokens} tokens")


def engine_environment() -> dict[str, str]:
    """This process's environment, with the private engine's DOCKER_HOST where that runs and no other is named."""
    environ = dict(os.environ)
    if "DOCKER_HOST" not in environ:
        found = subprocess.run([str(_ENGINE), "host"], capture_output=True, text=True, check=False)
        if found.returncode == 0:
            environ["DOCKER_HOST"] = found.stdout.strip()
    return environ


def _raise_broken(streams: Sequence[Stream]) -> None:
    for stream in streams:
        if stream.error:
            raise ProofFailed(f"a stream broke after {stream.num_tokens} tokens: {stream.error}")
