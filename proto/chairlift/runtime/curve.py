"""CURVE on links between hosts: encrypted, and both ends prove who they are by keys from files (ZeroMQ RFC 26).

The side that binds, the scheduler, lets in the public keys of its two lists; the side that connects pins the
scheduler's. Lists are read at each handshake, so that a key that is added or taken out counts for the next connection.
"""

import threading

import msgspec
import structlog
import zmq
from zmq.utils import z85

from chairlift.runtime.settings import IpcSettings
from chairlift.runtime.watched_file import WatchedFile, WatchedFileError

_KEY_CHARS = 40
_Z85 = frozenset(b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#")
_ZAP_ENDPOINT = "inproc://zeromq.zap.01"
_ZAP_VERSION = b"1.0"
_LOG_FIRST = 10
_LOG_EVERY = 1000


class CurveError(ValueError):
    """Keys that cannot be used. The message names the setting and says why; no key is in it."""


class KeyPair(msgspec.Struct, frozen=True):
    """A process's own key, as 40 characters of Z85 (ZeroMQ RFC 32) each."""

    public: bytes
    secret: bytes

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public!r}, secret=…)"


class PublicKey(msgspec.Struct, frozen=True):
    """A line of a list of keys."""

    key: bytes
    note: str
    """What follows the key: its endpoint in a list of schedulers, a comment elsewhere."""


def new_key_pair() -> KeyPair:
    """A random one. Raises CurveError where libzmq was built without CURVE."""
    if not zmq.has("curve"):
        raise CurveError("this build of libzmq has no CURVE")
    return KeyPair(*zmq.curve_keypair())


def secret_file_text(pair: KeyPair) -> str:
    """What `ipc.curve_secret_key_file` names holds."""
    return f"# A secret CURVE key of Chairlift. Its public key is {pair.public.decode()}\n{pair.secret.decode()}\n"


def read_own_key(settings: IpcSettings) -> KeyPair:
    """The key of this process. Raises CurveError."""
    name = settings.curve_secret_key_file
    assert name is not None
    keys = _read(WatchedFile(name, "ipc.curve_secret_key_file"))
    if len(keys) != 1:
        raise CurveError("ipc.curve_secret_key_file: expected one secret key, as `chairlift keys new` writes it")
    try:
        return KeyPair(zmq.curve_public(keys[0].key), keys[0].key)
    except zmq.ZMQError:
        raise CurveError("ipc.curve_secret_key_file: is no CURVE key") from None


def use_as_server(
    socket: "zmq.Socket[bytes]", context: "zmq.Context[zmq.Socket[bytes]]", settings: IpcSettings, peers: str
) -> None:
    """Before `socket` binds: only those of `peers` ("gateway", "worker") get in whose keys are listed.

    Starts the guard of `context` with the first; it ends with the context. Raises CurveError.
    """
    lists = {"gateway": settings.curve_gateway_keys_file, "worker": settings.curve_worker_keys_file}
    name = lists[peers]
    if name is None:
        raise CurveError(f"ipc.curve_{peers}_keys_file: a scheduler with a CURVE key needs the list of who is let in")
    _read(WatchedFile(name, f"ipc.curve_{peers}_keys_file"))
    pair = read_own_key(settings)
    _Guard.start(context, {kind: path for kind, path in lists.items() if path is not None})
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, pair.secret)
    socket.setsockopt(zmq.ZAP_DOMAIN, peers.encode())
    # Without it a guard that is gone would mean that everybody gets in.
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)


def use_as_client(socket: "zmq.Socket[bytes]", endpoint: str, settings: IpcSettings) -> None:
    """Before `socket` connects to `endpoint`: to the scheduler with the pinned key only. Raises CurveError."""
    name = settings.curve_scheduler_keys_file
    if name is None:
        raise CurveError(
            "ipc.curve_scheduler_keys_file: with a CURVE key, the scheduler's public key is needed as well"
        )
    keys = _read(WatchedFile(name, "ipc.curve_scheduler_keys_file"))
    server = next((key.key for key in keys if key.note == endpoint), None)
    server = server or next((key.key for key in keys if not key.note), None)
    if server is None:
        raise CurveError(f"ipc.curve_scheduler_keys_file: holds no key for {endpoint}")
    pair = read_own_key(settings)
    socket.setsockopt(zmq.CURVE_SERVERKEY, server)
    socket.setsockopt(zmq.CURVE_PUBLICKEY, pair.public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, pair.secret)


def parse_keys(content: bytes, setting: str) -> tuple[PublicKey, ...]:
    """Keys, one a line, each perhaps with a note behind it; empty lines and lines that begin with ``# `` are passed
    over. Raises CurveError.
    """
    keys = []
    for number, line in enumerate(content.decode(errors="replace").splitlines(), 1):
        if not line.strip() or line.startswith("# "):
            continue
        key, _, note = line.strip().partition(" ")
        encoded = key.encode()
        if len(encoded) != _KEY_CHARS or not _Z85.issuperset(encoded):
            raise CurveError(f"{setting}, line {number}: expected {_KEY_CHARS} characters of Z85")
        keys.append(PublicKey(encoded, note.strip()))
    return tuple(keys)


def _read(file: WatchedFile) -> tuple[PublicKey, ...]:
    try:
        return parse_keys(file.read(), file.setting)
    except WatchedFileError as error:
        raise CurveError(str(error)) from None


class _Guard:
    """Answers libzmq's question who may connect (ZAP, ZeroMQ RFC 27), on a thread of its own, for one context."""

    def __init__(self, socket: "zmq.Socket[bytes]", lists: dict[str, str]) -> None:
        self._socket = socket
        self._lists = {kind: WatchedFile(path, f"ipc.curve_{kind}_keys_file") for kind, path in lists.items()}
        self._log = structlog.get_logger()
        self._num_refused = 0

    @classmethod
    def start(cls, context: "zmq.Context[zmq.Socket[bytes]]", lists: dict[str, str]) -> None:
        """Unless the context has its guard already."""
        # A shadow: whoever closes all sockets of the context at its end must not close this one under its thread.
        shadow: zmq.Context[zmq.Socket[bytes]] = zmq.Context.shadow(context.underlying)
        socket = shadow.socket(zmq.REP)
        socket.setsockopt(zmq.LINGER, 0)
        try:
            socket.bind(_ZAP_ENDPOINT)
        except zmq.ZMQError as error:
            socket.close()
            if error.errno != zmq.EADDRINUSE:
                raise
            return
        threading.Thread(target=cls(socket, lists).run, name="curve", daemon=True).start()

    def run(self) -> None:
        """Until the context ends."""
        try:
            while True:
                frames = self._socket.recv_multipart()
                self._socket.send_multipart(self._answer(frames))
        except zmq.ContextTerminated:
            pass
        finally:
            self._socket.close()

    def _answer(self, frames: list[bytes]) -> list[bytes]:
        match frames:
            case [version, number, domain, address, _, b"CURVE", key]:
                is_known = version == _ZAP_VERSION and self._is_listed(domain.decode(errors="replace"), key, address)
                return [_ZAP_VERSION, number, *((b"200", b"OK") if is_known else (b"400", b"not listed")), b"", b""]
            case [_, number, *_]:
                return [_ZAP_VERSION, number, b"400", b"CURVE only", b"", b""]
            case _:
                return [_ZAP_VERSION, b"", b"500", b"no request", b"", b""]

    def _is_listed(self, domain: str, key: bytes, address: bytes) -> bool:
        encoded = z85.encode(key)
        try:
            file = self._lists.get(domain)
            if file is not None and any(known.key == encoded for known in _read(file)):
                return True
            reason = "not in the list"
        except CurveError as error:
            reason = str(error)
        self._num_refused += 1
        if self._num_refused <= _LOG_FIRST or self._num_refused % _LOG_EVERY == 0:
            text = address.decode(errors="replace")
            self._log.warning(
                "peer_refused", peers=domain, address=text, key=encoded.decode(), reason=reason, count=self._num_refused
            )
        return False
