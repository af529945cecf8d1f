"""CURVE between hosts: who is let in, whom one connects to, and what is refused before anything is sent."""

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from chairlift.runtime.curve import CurveError, KeyPair, new_key_pair, parse_keys, secret_file_text
from chairlift.runtime.settings import IpcSettings
from chairlift.runtime.sockets import EndpointError, bind_router, check_endpoint, connect_dealer

WAIT_MS = 20_000
QUIET_MS = 300


class Party:
    """A process with a key of its own."""

    def __init__(self, folder: Path, name: str) -> None:
        self.pair = new_key_pair()
        self.secret_file = folder / f"{name}.secret"
        self.secret_file.write_text(secret_file_text(self.pair))
        self.public = self.pair.public.decode()


class Network:
    """One scheduler's socket, and others' that connect to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scheduler, self.gateway, self.worker = (Party(folder, name) for name in ("scheduler", "gateway", "worker"))
        for name, text in (
            ("schedulers", self.scheduler.public),
            ("gateways", f"# our gateways\n\n{self.gateway.public} gateway on host 7\n"),
            ("workers", self.worker.public),
        ):
            (folder / name).write_text(text)
        self.contexts: list[zmq.Context[zmq.Socket[bytes]]] = []
        self.router: zmq.Socket[bytes] | None = None
        self.endpoint = ""

    def settings(self, party: Party, **changes: object) -> IpcSettings:
        settings = IpcSettings(
            curve_secret_key_file=str(party.secret_file),
            curve_scheduler_keys_file=str(self.folder / "schedulers"),
            curve_gateway_keys_file=str(self.folder / "gateways"),
            curve_worker_keys_file=str(self.folder / "workers"),
        )
        return msgspec.structs.replace(settings, **changes)

    def bind(self, peers: str = "gateway") -> None:
        endpoint = "tcp://127.0.0.1:*"
        settings = self.settings(self.scheduler, **({"worker_endpoint": endpoint} if peers == "worker" else {}))
        self.router = bind_router(self._context(), endpoint, settings)
        self.endpoint = self.router.getsockopt_string(zmq.LAST_ENDPOINT)

    def connect(self, settings: IpcSettings) -> "zmq.Socket[bytes]":
        return connect_dealer(self._context(), self.endpoint, settings, b"peer")

    def is_heard(self, settings: IpcSettings, wait_ms: int = WAIT_MS) -> bool:
        """Whether what this party sends arrives at the scheduler."""
        assert self.router is not None
        dealer = self.connect(settings)
        can_send = dealer.poll(wait_ms, zmq.POLLOUT)
        if can_send:
            dealer.send(b"hello")
        is_heard = bool(can_send and self.router.poll(wait_ms))
        if is_heard:
            assert self.router.recv_multipart() == [b"peer", b"hello"]
        dealer.close(linger=0)
        return is_heard

    def _context(self) -> "zmq.Context[zmq.Socket[bytes]]":
        self.contexts.append(zmq.Context())
        return self.contexts[-1]

    def close(self) -> None:
        for context in self.contexts:
            context.destroy(linger=0)


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    made = Network(tmp_path)
    yield made
    made.close()


def test_who_is_listed_gets_in_and_nobody_else(network: Network) -> None:
    network.bind()
    assert network.is_heard(network.settings(network.gateway))
    # A worker's key opens the workers' port only.
    assert not network.is_heard(network.settings(network.worker), QUIET_MS)
    assert not network.is_heard(network.settings(Party(network.folder, "stranger")), QUIET_MS)
    assert not network.is_heard(IpcSettings(), QUIET_MS), "plaintext"


def test_the_workers_port_has_its_own_list(network: Network) -> None:
    network.bind("worker")
    assert network.is_heard(network.settings(network.worker))
    assert not network.is_heard(network.settings(network.gateway), QUIET_MS)


def test_the_list_counts_as_it_is_at_each_handshake(network: Network) -> None:
    network.bind()
    late = Party(network.folder, "late")
    assert not network.is_heard(network.settings(late), QUIET_MS)
    (network.folder / "gateways").write_text(late.public)
    assert network.is_heard(network.settings(late))
    assert not network.is_heard(network.settings(network.gateway), QUIET_MS)


def test_a_scheduler_with_another_key_gets_nothing(network: Network) -> None:
    network.bind()
    (network.folder / "schedulers").write_text(new_key_pair().public.decode())
    assert not network.is_heard(network.settings(network.gateway), QUIET_MS)


def test_schedulers_may_each_have_a_key(network: Network) -> None:
    network.bind()
    other = new_key_pair().public.decode()
    lines = f"{other} tcp://other:1\n{network.scheduler.public} {network.endpoint}\n{other}\n"
    (network.folder / "schedulers").write_text(lines)
    assert network.is_heard(network.settings(network.gateway))


def test_both_ports_of_a_scheduler_share_a_context_that_ends(network: Network) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    endpoint = "tcp://127.0.0.1:*"
    first = bind_router(context, endpoint, network.settings(network.scheduler))
    second = bind_router(context, endpoint, network.settings(network.scheduler, worker_endpoint=endpoint))
    assert (first.get_string(zmq.ZAP_DOMAIN), second.get_string(zmq.ZAP_DOMAIN)) == ("gateway", "worker")
    context.destroy(linger=0)
    assert context.closed


def test_another_host_needs_a_key_or_a_word() -> None:
    endpoint = "tcp://10.0.0.7:5555"
    with pytest.raises(EndpointError, match="plaintext to another host"):
        check_endpoint(endpoint, IpcSettings())
    for settings in (IpcSettings(allow_plaintext=True), IpcSettings(curve_secret_key_file="key")):
        assert check_endpoint(endpoint, settings) == endpoint


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"curve_gateway_keys_file": None}, "needs the list of who is let in"),
        ({"curve_gateway_keys_file": "nowhere"}, "curve_gateway_keys_file = nowhere: No such file"),
        ({"curve_secret_key_file": "nowhere"}, "curve_secret_key_file = nowhere: No such file"),
    ],
)
def test_a_scheduler_without_its_files_does_not_bind(
    network: Network, changes: dict[str, object], message: str
) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with pytest.raises(EndpointError, match=message):
        bind_router(context, "tcp://127.0.0.1:*", network.settings(network.scheduler, **changes))
    context.destroy(linger=0)


def test_a_peer_without_the_schedulers_key_does_not_connect(network: Network) -> None:
    network.bind()
    with pytest.raises(EndpointError, match="public key is needed"):
        network.connect(network.settings(network.gateway, curve_scheduler_keys_file=None))
    (network.folder / "schedulers").write_text(f"{network.scheduler.public} tcp://other:1")
    with pytest.raises(EndpointError, match="holds no key for"):
        network.connect(network.settings(network.gateway))


def test_ipc_needs_no_keys(tmp_path: Path, new_context: Callable[[], "zmq.Context[zmq.Socket[bytes]]"]) -> None:
    router = bind_router(new_context(), f"ipc://{tmp_path}/s", IpcSettings(curve_secret_key_file="nowhere"))
    assert router.get(zmq.MECHANISM) == zmq.NULL
    router.close()


@pytest.mark.parametrize("line", ["short", "x" * 41, " " + "é" * 40, '"' * 40])
def test_a_bad_line_is_named_and_not_quoted(line: str) -> None:
    with pytest.raises(CurveError, match="list, line 2: expected 40 characters") as error:
        parse_keys(f"# note\n{line}\n".encode(), "list")
    assert line not in str(error.value)


def test_a_key_pair_does_not_show_its_secret() -> None:
    pair = new_key_pair()
    assert pair.secret.decode() not in repr(pair)
    assert pair.secret.decode() not in str([pair])
    assert pair.public.decode() in repr(pair)
    assert isinstance(pair, KeyPair)


def test_every_socket_is_bounded(new_context: Callable[[], "zmq.Context[zmq.Socket[bytes]]"], tmp_path: Path) -> None:
    settings = IpcSettings(max_message_bytes=12_345)
    router = bind_router(new_context(), f"ipc://{tmp_path}/s", settings)
    dealer = connect_dealer(new_context(), f"ipc://{tmp_path}/s", settings, b"d")
    for socket in (router, dealer):
        assert socket.get(zmq.MAXMSGSIZE) == 12_345
    assert dealer.poll(WAIT_MS, zmq.POLLOUT)
    # One that is too large costs the peer its connection, and never reaches the process.
    dealer.send(b"x" * 12_346)
    dealer.send(b"small")
    assert not router.poll(QUIET_MS) or router.recv_multipart()[1] == b"small"
    router.close()
    dealer.close()


@pytest.fixture
def new_context() -> Iterator[Callable[[], "zmq.Context[zmq.Socket[bytes]]"]]:
    made: list[zmq.Context[zmq.Socket[bytes]]] = []

    def make() -> "zmq.Context[zmq.Socket[bytes]]":
        made.append(zmq.Context())
        return made[-1]

    yield make
    for context in made:
        context.destroy(linger=0)
