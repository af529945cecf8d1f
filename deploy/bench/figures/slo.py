"""Service-level objectives of one request, and whether it met them. Pure."""

import msgspec

from deploy.bench.errors import BenchUsageError
from deploy.bench.load.record import Outcome, RequestRecord

ITL_SHARE = 0.99
"""Share of a request's own gaps that must be within the objective: one late token of a hundred is forgiven."""


class Objectives(msgspec.Struct, frozen=True, kw_only=True):
    """Upper bounds in milliseconds; None: no bound. A request is good when it meets every one."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    itl_ms: float | None = None
    e2el_ms: float | None = None

    @property
    def are_set(self) -> bool:
        """Whether there is any."""
        return any(getattr(self, name) is not None for name in self.__struct_fields__)


class ObjectiveError(BenchUsageError):
    """An objective that does not exist or is no number. The message says what was expected."""


def parse_objectives(pairs: list[str]) -> Objectives:
    """From ``ttft:1000`` and the like, milliseconds, as vLLM's ``--goodput`` takes them. Raises ObjectiveError."""
    found: dict[str, float] = {}
    for pair in pairs:
        name, _, value = pair.partition(":")
        try:
            bound = float(value)
        except ValueError:
            bound = -1.0
        if f"{name}_ms" not in Objectives.__struct_fields__ or not bound > 0:
            raise ObjectiveError(f"{pair!r}: expected ttft:MS, tpot:MS, itl:MS or e2el:MS")
        found[f"{name}_ms"] = bound
    return Objectives(**found)


def is_good(record: RequestRecord, objectives: Objectives) -> bool:
    """Whether a request came to its end and met every objective."""
    if record.outcome is not Outcome.OK or not record.delta_ns:
        return False
    return (
        _within(record.ttft_ms, objectives.ttft_ms)
        and _within(record.tpot_ms or 0.0, objectives.tpot_ms)
        and _within(record.e2el_ms, objectives.e2el_ms)
        and _are_gaps_within(record, objectives.itl_ms)
    )


def _within(value: float, bound: float | None) -> bool:
    return bound is None or value <= bound


def _are_gaps_within(record: RequestRecord, bound: float | None) -> bool:
    if bound is None:
        return True
    gaps = record.inter_token_ms()
    return not gaps or sum(gap <= bound for gap in gaps) >= ITL_SHARE * len(gaps)
