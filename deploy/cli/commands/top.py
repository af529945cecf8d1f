"""`chairlift top`: shows a running server live: batch, queue, KV cache, speed, and each iteration.

On a terminal it is a view that is drawn anew every second, until Ctrl-C; elsewhere one line a replica and second.
"""

import argparse
import json
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from chairlift.runtime.process import ExitCode
from deploy.cli.errors import CommandError
from deploy.cli.operator import OperatorPort, add_operator_flags, operator_port
from deploy.cli.terminal import Style
from deploy.cli.top_samples import ReplicaHistory, Sample
from deploy.cli.top_view import line, screen

if TYPE_CHECKING:
    from chairlift.v1.ops_pb2 import WatchLoadResponse

_RETRY_S = 1.0
_OPEN = "\x1b[?1049h\x1b[?25l"
_CLOSE = "\x1b[?25h\x1b[?1049l"
_REDRAW = "\x1b[H\x1b[J"
"""As every terminal since the VT100 has it: a screen of its own without a cursor, and back; from the top again."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What, how often, in which form."""
    parser.add_argument("--replica", default="", metavar="ID", help="only this replica (default: all)")
    parser.add_argument("--interval", type=float, default=1.0, metavar="SECONDS", help="between two looks (1)")
    parser.add_argument("--count", type=int, metavar="N", help="end after so many looks (default: at Ctrl-C)")
    parser.add_argument("--once", action="store_true", help="print one look and end")
    parser.add_argument("--json", action="store_true", help="print a JSON object a replica and look")
    parser.add_argument("--lines", action="store_true", help="print lines also on a terminal")
    add_operator_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Watches until it is interrupted."""
    if not 0.1 <= arguments.interval <= 3600:
        raise CommandError("--interval must be 0.1 to 3600 seconds", ExitCode.USAGE)
    if arguments.count is not None and arguments.count < 1:
        raise CommandError("--count must be at least 1", ExitCode.USAGE)
    is_view = sys.stdout.isatty() and not (arguments.once or arguments.json or arguments.lines)
    with operator_port(arguments) as port:
        top = _Top(port, arguments, is_view=is_view)
        if arguments.once:
            top.look_once()
            return ExitCode.OK
        try:
            with _own_screen() if is_view else _nothing():
                top.watch()
        except KeyboardInterrupt:
            pass
    return ExitCode.OK


@contextmanager
def _own_screen() -> Iterator[None]:
    sys.stdout.write(_OPEN)
    try:
        yield
    finally:
        sys.stdout.write(_CLOSE)
        sys.stdout.flush()


@contextmanager
def _nothing() -> Iterator[None]:
    yield


class _Top:
    """Reads loads in this thread and iterations in another, and shows both."""

    def __init__(self, port: OperatorPort, arguments: argparse.Namespace, *, is_view: bool) -> None:
        self._port = port
        self._arguments = arguments
        self._is_view = is_view
        self._histories: dict[str, ReplicaHistory] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._num_looks = 0
        self._is_plain = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
        self._marks = Style(sys.stdout)

    def look_once(self) -> None:
        """The load as it is."""
        from chairlift.v1.ops_pb2 import GetLoadRequest

        load = self._port.call(self._port.stub.GetLoad, GetLoadRequest(replica_id=self._arguments.replica))
        for replica in load.replicas:
            self._print(self._history(replica.replica_id).sample(replica, time.monotonic()))

    def watch(self) -> None:
        """Again and again. A server that goes away is waited for, once it has been there. Raises CommandError."""
        if self._is_view:
            threading.Thread(target=self._follow_iterations, name="iterations", daemon=True).start()
        try:
            while not self._ended.is_set():
                self._watch_loads()
                self._ended.wait(_RETRY_S)
        finally:
            self._ended.set()

    def _watch_loads(self) -> None:
        try:
            for response in self._loads():
                self._num_looks += 1
                self._show(response)
                if self._num_looks == self._arguments.count:
                    self._ended.set()
                    return
        except CommandError as error:
            if not self._num_looks:
                raise
            print(f"chairlift top: {error}", file=sys.stderr)

    def _loads(self) -> "Iterator[WatchLoadResponse]":
        from chairlift.v1.ops_pb2 import WatchLoadRequest

        request = WatchLoadRequest(replica_id=self._arguments.replica)
        request.interval.FromNanoseconds(round(self._arguments.interval * 1e9))
        with self._port.errors():
            yield from self._port.stub.WatchLoad(request, metadata=self._port.metadata)

    def _follow_iterations(self) -> None:
        """Ends with the process; the view goes on without a timeline while the server is away."""
        from chairlift.v1.ops_pb2 import WatchIterationsRequest

        request = WatchIterationsRequest(replica_id=self._arguments.replica)
        while not self._ended.is_set():
            try:
                with self._port.errors():
                    for response in self._port.stub.WatchIterations(request, metadata=self._port.metadata):
                        with self._lock:
                            history = self._history(response.replica_id)
                            history.add_iterations(response.iterations, response.num_missed)
            except (CommandError, ValueError):
                # ValueError: the channel was closed, as the command ends.
                self._ended.wait(_RETRY_S)

    def _history(self, replica_id: str) -> ReplicaHistory:
        return self._histories.setdefault(replica_id, ReplicaHistory())

    def _show(self, response: "WatchLoadResponse") -> None:
        now = time.monotonic()
        with self._lock:
            samples = [self._history(one.replica_id).sample(one, now) for one in response.replicas]
            if self._is_view:
                self._draw(response, samples)
                return
        for sample in samples:
            self._print(sample)

    def _print(self, sample: Sample) -> None:
        if self._arguments.json:
            facts: dict[str, Any] = msgspec.to_builtins(sample)
            print(json.dumps({"time": time.time(), **facts, "kv_share": sample.kv_share}), flush=True)
        else:
            print(f"{time.strftime('%H:%M:%SZ', time.gmtime())}  {line(sample)}", flush=True)

    def _draw(self, response: "WatchLoadResponse", samples: list[Sample]) -> None:
        size = shutil.get_terminal_size()
        gateway = response.gateway
        draining = ", draining" if gateway.is_draining else ""
        head = f"{gateway.gateway_id}  {gateway.open_streams} streams{draining}  (Ctrl-C ends)"
        lines = [self._marks.dim(head[: size.columns])]
        for sample in samples:
            history = self._histories[sample.replica_id if sample.replica_id != "?" else ""]
            lines += [
                "",
                *screen(
                    sample, list(history.beats), history.num_missed, size.columns, self._marks, is_plain=self._is_plain
                ),
            ]
        sys.stdout.write(_REDRAW + "\n".join(lines[: size.lines - 1]))
        sys.stdout.flush()
