"""``--guard`` of a change: a metric, its bound and how long it is watched, in one word."""

import re
from typing import TYPE_CHECKING

from chairlift.runtime.process import ExitCode
from deploy.cli.errors import CommandError

if TYPE_CHECKING:
    from chairlift.v1.ops_pb2 import Guard

GUARD_HELP = (
    "takes the change back by itself when a metric passes its bound within so many seconds, for instance "
    "itl_p99_ms<=50@60 (metrics: ttft_p99_ms, itl_p99_ms, queue_p99_ms, error_ratio, preemptions_per_second)"
)
_GUARD = re.compile(r"([a-z0-9_]+)<=([0-9.]+)@([0-9.]+)s?")


def parse_guard(text: str) -> "Guard":
    """Raises CommandError."""
    from google.protobuf.duration_pb2 import Duration

    from chairlift.v1.ops_pb2 import Guard, GuardMetric

    found = _GUARD.fullmatch(text.replace(" ", ""))
    names = {name.removeprefix("GUARD_METRIC_").lower(): number for name, number in GuardMetric.items() if number}
    if found is None or found[1] not in names:
        raise CommandError(
            f"--guard {text}: expected METRIC<=BOUND@SECONDS, METRIC one of {', '.join(names)}", ExitCode.USAGE
        )
    try:
        bound, window_s = float(found[2]), float(found[3])
    except ValueError:
        raise CommandError(f"--guard {text}: bound and seconds must be numbers", ExitCode.USAGE) from None
    window = Duration()
    window.FromNanoseconds(round(window_s * 1e9))
    return Guard(metric=names[found[1]], bound=bound, window=window)
