"""Network namespaces of this process's own, and wires between them. Linux, as root.

They have no name. A namespace lives as long as a process is in it or a file is open on it: with this process they are
gone, with their interfaces and rules, however it ends. Nothing of the host's own network is touched: every interface is
made in one of these namespaces, and so is every rule.
"""

import asyncio
import ctypes
import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from ipaddress import IPv4Network
from typing import TypeVar

from deploy.bench.errors import BenchUsageError

_T = TypeVar("_T")
_CLONE_NEWNET = 0x40000000
_TOOLS = ("ip", "iptables", "tc", "nsenter")
_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
_WIRE_BITS = 30


class NamespaceError(BenchUsageError):
    """Namespaces, or what is needed in them, cannot be had here. The message says what is missing."""


class Namespace:
    """One namespace, held by a file that is open on it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @property
    def path(self) -> str:
        """By which other processes reach it."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    @property
    def prefix(self) -> tuple[str, ...]:
        """Before a command line: it runs in here, under the same process id."""
        return (_find("nsenter"), f"--net={self.path}", "--")

    async def run(self, tool: str, *arguments: str) -> None:
        """Runs one of the tools in here. Raises NamespaceError with what it says."""
        process = await asyncio.create_subprocess_exec(
            *self.prefix,
            _find(tool),
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await process.communicate()
        if process.returncode:
            raise NamespaceError(f"{tool} {' '.join(arguments)}: {said.decode(errors='replace').strip()}")

    def call(self, work: Callable[[], _T]) -> _T:
        """The result of `work`, done in here by a thread of its own."""

        def inside() -> _T:
            _set(self._descriptor)
            return work()

        return _in_thread(inside)

    def close(self) -> None:
        """Lets go of it."""
        os.close(self._descriptor)


@contextmanager
def own_namespaces() -> Iterator["Namespaces"]:
    """Moves the calling thread, and every process that it starts from now on, into a fresh namespace for the block.

    Only in the main thread, before others are started. Raises NamespaceError.
    """
    if not sys.platform.startswith("linux"):
        raise NamespaceError("network namespaces need Linux")
    for tool in _TOOLS:
        _find(tool)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    namespaces: Namespaces | None = None
    try:
        _unshare()
        namespaces = Namespaces(_open_own())
        yield namespaces
    finally:
        _set(before)
        os.close(before)
        if namespaces is not None:
            namespaces.close()


class Namespaces:
    """All of a run. Each wire has a network of two addresses, out of what RFC 2544 reserves for benchmarks."""

    def __init__(self, hub: Namespace) -> None:
        self.hub = hub
        """Where this process is."""
        self.others: list[Namespace] = []
        """In the order in which they were made."""
        self._networks = IPv4Network("198.18.0.0/15").subnets(new_prefix=_WIRE_BITS)

    async def add(self) -> Namespace:
        """One more, with nothing but its loopback. Raises NamespaceError."""
        made = _in_thread(_new)
        self.others.append(made)
        await made.run("ip", "link", "set", "lo", "up")
        return made

    async def connect(self, one: Namespace, interface: str, other: Namespace, other_interface: str) -> tuple[str, str]:
        """A wire between two; returns the address of either end. Raises NamespaceError."""
        first, second = (str(address) for address in next(self._networks).hosts())
        veth = ("type", "veth", "peer", "name", other_interface, "netns", other.path)
        await one.run("ip", "link", "add", interface, *veth)
        for namespace, name, address in ((one, interface, first), (other, other_interface, second)):
            await namespace.run("ip", "address", "add", f"{address}/{_WIRE_BITS}", "dev", name)
            await namespace.run("ip", "link", "set", name, "up")
        return first, second

    def close(self) -> None:
        """Lets go of all."""
        for namespace in (self.hub, *self.others):
            namespace.close()


def _find(tool: str) -> str:
    found = shutil.which(tool, path=_PATH)
    if found is None:
        raise NamespaceError(f"{tool} is not installed; {', '.join(_TOOLS)} are needed")
    return found


def _new() -> Namespace:
    _unshare()
    return _open_own()


def _open_own() -> Namespace:
    return Namespace(os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC))


def _unshare() -> None:
    _call_libc("unshare", _CLONE_NEWNET)


def _set(descriptor: int) -> None:
    _call_libc("setns", descriptor, _CLONE_NEWNET)


def _call_libc(name: str, *arguments: int) -> None:
    """`os.unshare` and `os.setns` are new in Python 3.12."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) == 0:
        return
    number = ctypes.get_errno()
    if number == errno.EPERM:
        raise NamespaceError("network namespaces need root (CAP_SYS_ADMIN and CAP_NET_ADMIN)")
    raise NamespaceError(f"network namespaces: {name}: {os.strerror(number)}")


def _in_thread(work: Callable[[], _T]) -> _T:
    """A thread that has changed its namespace serves for nothing else."""
    with ThreadPoolExecutor(1, "namespace") as once:
        return once.submit(work).result()
