"""Where the schedulers are: a list, names that stand for several addresses, a file. All but the list are followed.

What cannot be resolved or read now leaves what was known in force: a name server that is away ends no link.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

import structlog

from chairlift.runtime.aside import run_aside
from chairlift.runtime.settings import Settings
from chairlift.runtime.sockets import EndpointError, check_endpoint, gateway_endpoint
from chairlift.runtime.watched_file import WatchedFile, WatchedFileError


class EndpointSource:
    """The endpoints in force. Belongs to one event loop."""

    def __init__(self, settings: Settings) -> None:
        """Raises EndpointError for an endpoint of the list, or a file, that cannot be used."""
        own = settings.gateway
        self._ipc = settings.ipc
        self._log = structlog.get_logger()
        self._file = None if own.replicas_file is None else WatchedFile(own.replicas_file, "gateway.replicas_file")
        listed = own.replicas or (() if self._file is not None else (gateway_endpoint(settings.ipc),))
        self._listed = tuple(check_endpoint(endpoint, settings.ipc) for endpoint in listed)
        self._filed: tuple[str, ...] = ()
        self._resolved: dict[str, tuple[str, ...]] = {}
        self._problems: dict[str, str] = {}
        if self._file is not None:
            try:
                self._filed = self._parse(self._file.read())
            except WatchedFileError as error:
                raise EndpointError(str(error)) from None

    @property
    def may_change(self) -> bool:
        """Whether it is worth asking again."""
        return self._file is not None or any(_name_of(endpoint) for endpoint in self._listed)

    async def current(self) -> tuple[str, ...]:
        """Every endpoint once, in order; names resolved anew, the file read again."""
        if self._file is not None:
            await self._read_file(self._file)
        found: dict[str, None] = {}
        for endpoint in (*self._listed, *self._filed):
            found.update(dict.fromkeys(await self._expand(endpoint)))
        return tuple(found)

    async def _read_file(self, file: WatchedFile) -> None:
        try:
            self._filed = self._parse(await run_aside(file.read, "replicas_file"))
            self._problems.pop(file.setting, None)
        except (WatchedFileError, EndpointError) as error:
            self._tell(file.setting, str(error))

    def _parse(self, content: bytes) -> tuple[str, ...]:
        lines = (line.partition("#")[0].strip() for line in content.decode("utf-8", "replace").splitlines())
        return tuple(check_endpoint(line, self._ipc) for line in lines if line)

    async def _expand(self, endpoint: str) -> Sequence[str]:
        name = _name_of(endpoint)
        if name is None:
            return (endpoint,)
        port = urlsplit(endpoint).port
        try:
            infos = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
        except OSError as error:
            self._tell(endpoint, error.strerror or "cannot be resolved")
            return self._resolved.get(endpoint, ())
        self._problems.pop(endpoint, None)
        hosts = [str(info[4][0]) for info in infos if info[0] == socket.AF_INET] or [
            f"[{info[4][0]}]" for info in infos if info[0] == socket.AF_INET6
        ]
        self._resolved[endpoint] = tuple(f"tcp://{host}:{port}" for host in sorted(set(hosts)))
        return self._resolved[endpoint]

    def _tell(self, what: str, problem: str) -> None:
        """Once for each problem."""
        if self._problems.get(what) != problem:
            self._problems[what] = problem
            self._log.warning("replicas_not_followed", source=what, reason=problem)


def _name_of(endpoint: str) -> str | None:
    """The host of an endpoint that has to be resolved; None for addresses and paths."""
    parts = urlsplit(endpoint)
    if parts.scheme != "tcp" or not parts.hostname:
        return None
    try:
        ipaddress.ip_address(parts.hostname)
    except ValueError:
        return parts.hostname
    return None
