"""Where and with what a run was measured, in one line. Pure."""

from deploy.bench.output.result import RunConditions


def describe_place(conditions: RunConditions) -> str:
    """Machine and software."""
    machine, software = conditions.machine, conditions.software
    commit = f" {software.commit}" if software.commit else ""
    return (
        f"{machine.cpu}, {machine.num_cores} cores, {machine.system}, Python {machine.python}, "
        f"chairlift {software.chairlift}{commit}"
    )
