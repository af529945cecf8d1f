"""Sockets' folder, probes, stop signals and the parent's death."""

import concurrent.futures
import contextlib
import ctypes
import functools
import http.client
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog
import zmq

from chairlift.runtime import plain_http, sockets
from chairlift.runtime.probes import ProbeServer, ProcessState
from chairlift.runtime.process import new_epoch, patient_threads, stop_on_signals
from chairlift.runtime.settings import IpcSettings


def _get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_probes_follow_the_loop() -> None:
    """A loop that stops turning is neither live nor ready, whatever it last said of itself."""
    clock = [0.0]
    state = ProcessState(stale_after_s=5, clock=lambda: clock[0])
    server = ProbeServer("127.0.0.1:0", state, metrics=lambda: "m 1\n")
    try:
        assert _get(server.port, "/livez") == (200, "ok\n")
        assert _get(server.port, "/readyz") == (503, "starting\n")
        state.set_ready(True)
        assert _get(server.port, "/readyz") == (200, "ok\n")
        clock[0] = 6.0
        assert _get(server.port, "/livez")[0] == 503
        assert _get(server.port, "/readyz")[0] == 503
        state.turned()
        assert _get(server.port, "/readyz") == (200, "ok\n")
        assert _get(server.port, "/metrics") == (200, "m 1\n")
        assert _get(server.port, "/other")[0] == 404
    finally:
        server.close()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no timer slack")
def test_threads_may_be_told_to_be_patient() -> None:
    """Those of gRPC woke nine times a second to find nothing: more often than all the rest of an idle stack."""
    get_slack: Callable[[], int] = functools.partial(ctypes.CDLL(None).prctl, 30, 0, 0, 0, 0)

    def seen_by_a_thread() -> int:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            return pool.submit(get_slack).result()

    usual_ns = get_slack()
    with patient_threads(0.5):
        assert seen_by_a_thread() == 500_000_000
    assert (get_slack(), seen_by_a_thread()) == (usual_ns, usual_ns)


def test_a_loop_that_rests_is_live_until_it_oversleeps() -> None:
    """An idle loop has no other reason to turn; one that does not come back when it said is as dead as any."""
    clock = [0.0]
    state = ProcessState(stale_after_s=5, clock=lambda: clock[0])
    state.turned(rest_s=10)
    clock[0] = 14.9
    assert state.live() == (True, "")
    clock[0] = 15.0
    assert state.live() == (False, "loop has not turned for 15.0 s")
    state.turned()
    clock[0] = 20.0
    assert not state.live()[0], "a rest that was over does not count for the next turn"


def test_a_prober_may_ask_again_over_one_connection() -> None:
    """A supervisor asks for years: a connection and a thread each time were most of what an idle process did."""
    state = ProcessState()
    server = ProbeServer("127.0.0.1:0", state)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        for is_ready in (False, True, True):
            state.set_ready(is_ready, "loading")
            connection.request("GET", "/readyz")
            asked_on = connection.sock
            with connection.getresponse() as answer:
                assert (answer.status, answer.read()) == ((200, b"ok\n") if is_ready else (503, b"loading\n"))
            assert connection.sock is asked_on is not None
    finally:
        connection.close()
        server.close()


@pytest.mark.parametrize(
    ("sent", "status", "body"),
    [
        (b"GET /livez HTTP/1.0\r\n\r\n", b"200", b"ok\n"),
        (b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: Close\r\n\r\n", b"200", b"ok\n"),
        (b"HEAD /livez HTTP/1.0\r\n\r\n", b"200", b""),
        (b"GET /livez?x=1 HTTP/1.0\r\n\r\n", b"404", b"not found\n"),
        (b"POST /livez HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi", b"501", b"GET and HEAD only\n"),
        (b"nonsense\r\n\r\n", b"400", b"not understood\n"),
        (b"GET /livez HTTP/1.1\r\n" + b"a: b\r\n" * 500, b"200", b"ok\n"),
        (b"x" * 100_000, b"400", b"not understood\n"),
    ],
)
def test_one_question_is_answered_and_the_connection_ended(sent: bytes, status: bytes, body: bytes) -> None:
    """Also where it is no question, or a head without end."""
    server = ProbeServer("127.0.0.1:0", ProcessState())
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as prober:
            prober.sendall(sent)
            # What was not read makes the end of the connection a reset, behind the answer or instead of it.
            answer = b""
            with contextlib.suppress(ConnectionError):
                while part := prober.recv(4096):
                    answer += part
        if answer or len(sent) < 1000:
            head, _, rest = answer.partition(b"\r\n\r\n")
            assert (head.split()[1], rest) == (status, body)
    finally:
        server.close()


def test_a_prober_that_says_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_http._Connection, "timeout", 0.05)
    server = ProbeServer("127.0.0.1:0", ProcessState())
    try:
        for said in (b"", b"GET /livez HTTP/1.1\r\n"):
            with socket.create_connection(("127.0.0.1", server.port), timeout=30) as prober:
                prober.sendall(said)
                assert prober.recv(4096) == b""
    finally:
        server.close()


@pytest.mark.parametrize(("fails", "is_told"), [(False, False), (True, True)])
def test_a_prober_that_hangs_up_is_no_event_and_a_failing_metric_is(
    capfd: pytest.CaptureFixture[str], fails: bool, is_told: bool
) -> None:
    """A prober with a short time-out left a traceback in the log each time that it was impatient."""
    hung_up = threading.Event()

    def metrics() -> str:
        assert hung_up.wait(30)
        if fails:
            raise RuntimeError("no figures")
        return "m 1\n" * 1_000_000

    server = ProbeServer("127.0.0.1:0", ProcessState(), metrics)
    try:
        with structlog.testing.capture_logs() as logs:
            before = set(threading.enumerate())
            prober = socket.create_connection(("127.0.0.1", server.port))
            prober.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            prober.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            answering = _answering_thread(before)
            prober.close()
            hung_up.set()
            answering.join(30)
            assert not answering.is_alive()
        assert [entry["event"] for entry in logs] == (["probe_failed"] if is_told else [])
        assert capfd.readouterr().err == ""
    finally:
        server.close()


def _answering_thread(before: set[threading.Thread]) -> threading.Thread:
    """The thread that answers the one prober: none of those `before` it."""
    deadline = time.monotonic() + 30
    while True:
        for thread in threading.enumerate():
            if thread not in before and thread.is_alive() and "process_request_thread" in thread.name:
                return thread
        assert time.monotonic() < deadline, "nobody answers"
        time.sleep(0.01)


def test_probes_are_served_on_ipv6_too() -> None:
    try:
        server = ProbeServer("[::1]:0", ProcessState())
    except OSError as error:
        pytest.skip(f"no IPv6 on this machine: {error}")
    with socket.create_connection(("::1", server.port), timeout=30):
        pass
    server.close()


def test_run_dir_is_private(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert sockets.run_dir(IpcSettings(run_dir=str(folder))) == folder
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    with pytest.raises(sockets.EndpointError, match="0700"):
        sockets.run_dir(IpcSettings(run_dir=str(folder)))


@pytest.mark.parametrize(
    ("endpoint", "says"),
    [
        ("tcp://10.0.0.1:5000", "plaintext"),
        ("tcp://example.org:5000", "plaintext"),
        ("http://x", "expected"),
        ("ipc://" + "x" * 200, "path"),
    ],
)
def test_endpoints_that_must_not_be_used(endpoint: str, says: str) -> None:
    with pytest.raises(sockets.EndpointError, match=says):
        sockets.gateway_endpoint(IpcSettings(gateway_endpoint=endpoint))


def test_plaintext_across_hosts_needs_to_be_asked_for() -> None:
    settings = IpcSettings(worker_endpoint="tcp://10.0.0.1:5000", allow_plaintext=True)
    assert sockets.worker_endpoint(settings) == "tcp://10.0.0.1:5000"


def test_a_router_tells_when_a_peer_is_gone(tmp_path: Path) -> None:
    settings = IpcSettings(run_dir=str(tmp_path / "run"))
    with zmq.Context() as context:
        router = sockets.bind_router(context, sockets.gateway_endpoint(settings), settings)
        dealer = sockets.connect_dealer(context, sockets.gateway_endpoint(settings), settings, b"me")
        dealer.send(b"hello")
        assert router.recv_multipart() == [b"me", b"hello"]
        router.send_multipart([b"me", b"back"])
        assert dealer.recv() == b"back"
        with pytest.raises(zmq.ZMQError) as raised:
            router.send_multipart([b"nobody", b"x"])
        assert raised.value.errno == zmq.EHOSTUNREACH
        dealer.close()
        router.close()


@pytest.mark.parametrize(("endpoint", "beats_ms"), [("ipc://{}/x.sock", 0), ("tcp://127.0.0.1:1", 2000)])
def test_libzmq_beats_only_where_a_connection_can_end_unseen(tmp_path: Path, endpoint: str, beats_ms: int) -> None:
    """On one machine the kernel tells it, and each beat would wake both processes."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as unset:
        dealer = sockets.connect_dealer(context, endpoint.format(tmp_path), IpcSettings(), b"me")
        assert dealer.getsockopt(zmq.HEARTBEAT_IVL) == beats_ms
        assert unset.getsockopt(zmq.HEARTBEAT_IVL) == 0
        dealer.close()


def test_an_endpoint_that_makes_no_sense_is_named() -> None:
    with zmq.Context() as context, pytest.raises(sockets.EndpointError, match=r"127\.0\.0\.1"):
        sockets.connect_dealer(context, "tcp://127.0.0.1:notaport", IpcSettings(), b"me")


def test_the_first_signal_asks_and_is_seen_by_a_poller() -> None:
    with stop_on_signals() as stop:
        assert not stop.requested
        os.kill(os.getpid(), signal.SIGTERM)
        poller = zmq.Poller()
        poller.register(stop.fileno(), zmq.POLLIN)
        assert poller.poll(5000)
        assert stop.requested


def test_a_signal_wakes_a_poller_that_python_has_already_left_to_wait() -> None:
    """One that came between Python's last look for signals and the wait was heard at the next wake: late, if idle.

    Before Python's handler runs, which writes its own byte, the signal has written its number.
    """
    with stop_on_signals() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert os.read(stop.fileno(), 16) == bytes((signal.SIGTERM,)) + b"x"
    assert signal.set_wakeup_fd(-1) == -1, "as it was before"


def test_the_second_signal_ends_at_once() -> None:
    code = (
        "import os, signal\n"
        "from chairlift.runtime.process import stop_on_signals\n"
        "with stop_on_signals():\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    signal.pause()\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=30, check=False).returncode == -signal.SIGTERM


def test_a_child_dies_with_its_parent() -> None:
    """SIGKILL of the supervisor leaves no orphan (vllm#55510): the kernel kills the child."""
    child = (
        "from chairlift.runtime.process import die_with_parent\n"
        "import signal, sys\n"
        "die_with_parent()\n"
        "print('up', flush=True)\n"
        "signal.pause()\n"
    )
    parent = (
        "import os, subprocess, sys\n"
        "os.environ['CHAIRLIFT_PARENT_PID'] = str(os.getpid())\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}])\n"
        "child.wait()\n"
    )
    reader, writer = os.pipe()
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=writer)
    os.close(writer)
    with os.fdopen(reader) as output:
        assert output.readline() == "up\n"
        process.kill()
        process.wait()
        # The pipe closes when the last process that holds it, the child, is gone.
        assert output.read() == ""


def test_a_child_whose_parent_is_gone_already_does_not_start() -> None:
    code = "from chairlift.runtime.process import die_with_parent; die_with_parent()"
    environ = os.environ | {"CHAIRLIFT_PARENT_PID": "1"}
    ended = subprocess.run([sys.executable, "-c", code], env=environ, timeout=30, check=False, capture_output=True)
    assert ended.returncode == 1
    assert b"parent" in ended.stderr


def test_epochs_do_not_repeat() -> None:
    assert len({new_epoch() for _ in range(1000)}) == 1000


@pytest.mark.parametrize(("limits", "wanted"), [((64, 200), 128), ((64, 100), 100), ((150, 200), 150)])
def test_descriptors_as_far_as_the_system_lets(limits: tuple[int, int], wanted: int) -> None:
    program = (
        "import resource; from chairlift.runtime.process import allow_descriptors\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, {limits}); allow_descriptors(128)\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) == wanted


def test_without_a_free_descriptor_the_port_waits_and_does_not_spin() -> None:
    """CPU time of two seconds in which a connection waits that cannot be taken, and the answer once it can be."""
    program = """
import os, resource, socket, time
from chairlift.runtime.probes import ProbeServer, ProcessState
server = ProbeServer("127.0.0.1:0", ProcessState())
first = socket.create_connection(("127.0.0.1", server.port), timeout=20)
first.sendall(b"GET /livez HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n")
first.recv(100)
client = socket.socket()
client.settimeout(20)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
held = []
try:
    while True:
        held.append(os.dup(0))
except OSError:
    pass
client.connect(("127.0.0.1", server.port))
before = time.process_time()
time.sleep(2)
print(time.process_time() - before)
for one in held:
    os.close(one)
client.sendall(b"GET /livez HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n")
print(client.recv(100)[:15].decode())
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    spent, answer = done.stdout.splitlines()
    assert float(spent) < 0.5
    assert answer == "HTTP/1.1 200 OK"
