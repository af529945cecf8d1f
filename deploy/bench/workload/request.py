"""The unit of work: requests, and sessions of requests that follow each other. Owns no randomness and no time."""

from collections.abc import Iterator
from typing import Protocol

import msgspec


class BenchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request. Its output length is forced: EOS is ignored."""

    prompt: tuple[int, ...]
    """Token ids of the prompt; of a later turn: what is added to the turns before and their output."""
    output_tokens: int
    think_s: float = 0.0
    """Pause between the end of the turn before and this one."""
    abandon_after: int | None = None
    """Output tokens after which the client goes away, as users do; None: it stays to the end."""
    tenant: str = ""
    """Who sends it, in workloads with several tenants."""


class Session(msgspec.Struct, frozen=True):
    """Requests of one user, one after the other. Most sessions have one."""

    turns: tuple[BenchRequest, ...]
    at_s: float | None = None
    """When it starts in the trace that it comes from, in seconds from the trace's start; None: whenever."""


class Workload(Protocol):
    """A source of sessions."""

    @property
    def name(self) -> str:
        """How results call it."""

    def describe(self) -> dict[str, str | int | float]:
        """Everything that makes its requests what they are, for the record."""

    def sessions(self) -> Iterator[Session]:
        """The sessions, from the first one on, the same each time; endless unless the source is finite."""
