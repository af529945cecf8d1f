"""How commands of the bench fail: one line and an exit code. They import their heavy parts only when they run."""

from collections.abc import Iterator
from contextlib import contextmanager

from chairlift.runtime.process import ExitCode
from deploy.bench.errors import BenchError, BenchUsageError
from deploy.cli.errors import CommandError, stack_errors


@contextmanager
def bench_errors() -> Iterator[None]:
    """Turns what the bench and the launcher raise into CommandError."""
    try:
        with stack_errors():
            yield
    except BenchError as error:
        code = ExitCode.USAGE if isinstance(error, BenchUsageError) else ExitCode.FAILED
        raise CommandError(str(error), code) from error
    except ModuleNotFoundError as error:
        if error.name != "numpy":
            raise
        raise CommandError("needs the extra bench: pip install 'chairlift[bench]'", ExitCode.USAGE) from error
