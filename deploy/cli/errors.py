"""How a command fails: one clear line and an exit code."""

from collections.abc import Iterator
from contextlib import contextmanager

from chairlift.runtime.addresses import AddressError
from chairlift.runtime.model_source import ModelNotFoundError
from chairlift.runtime.process import ExitCode
from chairlift.runtime.settings_loader import SettingsError
from deploy.launcher.ports import PortError
from deploy.launcher.run_folder import RunFolderError
from deploy.launcher.supervisor import StackError


class CommandError(Exception):
    """Ends the command with this message and exit code."""

    def __init__(self, message: str, exit_code: int = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@contextmanager
def server_errors(target: str) -> Iterator[None]:
    """Turns what the client library raises into CommandError. A request that was refused is a usage error."""
    from chairlift.client import ChairliftError, InvalidArgumentError, UnavailableError

    try:
        yield
    except InvalidArgumentError as error:
        raise CommandError(str(error), ExitCode.USAGE) from error
    except UnavailableError as error:
        if error.reason:
            raise CommandError(str(error)) from error
        raise CommandError(f"no server answers at {target} (start one with: chairlift serve)") from error
    except ChairliftError as error:
        raise CommandError(str(error)) from error


@contextmanager
def stack_errors() -> Iterator[None]:
    """Turns what the launcher and the settings raise into CommandError."""
    try:
        yield
    except (SettingsError, AddressError) as error:
        raise CommandError(str(error), ExitCode.USAGE) from error
    except ModelNotFoundError as error:
        raise CommandError(str(error), ExitCode.MODEL) from error
    except (PortError, RunFolderError) as error:
        raise CommandError(str(error)) from error
    except StackError as error:
        raise CommandError(str(error), error.exit_code) from error
