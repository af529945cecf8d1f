"""``python -m scheduler_svc``: the scheduler process alone."""

import sys
from collections.abc import Sequence

from chairlift.runtime.addresses import AddressError
from chairlift.runtime.process import ExitCode, die_with_parent, stop_on_signals
from chairlift.runtime.settings_loader import parse_settings
from chairlift.runtime.sockets import EndpointError
from chairlift.runtime.telemetry import configure_logging, give_up
from chairlift.runtime.tracing import open_tracing
from scheduler_svc.service import SchedulerService


def main(argv: Sequence[str]) -> int:
    """Runs until SIGTERM or SIGINT; the exit code says why it ended."""
    die_with_parent()
    settings = parse_settings(argv, "scheduler_svc")
    configure_logging(settings.telemetry, "scheduler")
    with stop_on_signals() as stop:
        try:
            service = SchedulerService(settings, open_tracing("scheduler"))
        except (AddressError, EndpointError, OSError) as error:
            return give_up(ExitCode.USAGE, "scheduler_cannot_start", error)
        try:
            service.run(stop)
        finally:
            service.close()
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
