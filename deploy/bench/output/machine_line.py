"""Where and with what a run was measured, in one line."""

from deploy.bench.observe.machine import describe_machine, describe_software
from deploy.bench.output.result import RunConditions


def describe_here() -> str:
    """This machine and this software."""
    machine, software = describe_machine(), describe_software()
    return f"{machine.cpu}, {machine.num_cores} cores, Python {machine.python}, chairlift {software.chairlift}"


def describe_place(conditions: RunConditions) -> str:
    """Machine and software."""
    machine, software = conditions.machine, conditions.software
    commit = f" {software.commit}" if software.commit else ""
    return (
        f"{machine.cpu}, {machine.num_cores} cores, {machine.system}, Python {machine.python}, "
        f"chairlift {software.chairlift}{commit}"
    )
