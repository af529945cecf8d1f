"""What goes wrong in the bench and is told in one line. Imports nothing, for `--help`."""


class BenchError(Exception):
    """Something failed at run time."""


class BenchUsageError(BenchError, ValueError):
    """What the user wrote or named cannot be used: trying again does not help."""
