"""ZeroMQ sockets with every option that matters set, and the folder that holds their files.

libzmq's defaults lose or keep too much: a ROUTER drops silently to an unknown peer, a DEALER queues for a peer that is
not there, LINGER waits for ever, messages are unbounded. Sockets made here do none of that.
"""

import os
import socket as unix_socket
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import zmq

from chairlift.runtime.addresses import is_loopback_host
from chairlift.runtime.curve import CurveError, use_as_client, use_as_server
from chairlift.runtime.private_folder import PrivateFolderError, make_private_folder
from chairlift.runtime.settings import IpcSettings

_READABLE = int(zmq.POLLIN)
MAX_UNIX_PATH = 100
"""Bytes of a socket's path that every system takes."""


class EndpointError(ValueError):
    """An endpoint that cannot or must not be used; the message says why."""


def gateway_endpoint(settings: IpcSettings) -> str:
    """Where the scheduler binds for gateways, and they connect. Raises EndpointError."""
    return check_endpoint(settings.gateway_endpoint or f"ipc://{run_dir(settings) / 'gateway.sock'}", settings)


def worker_endpoint(settings: IpcSettings) -> str:
    """Where the scheduler binds for workers, and they connect. Raises EndpointError."""
    return check_endpoint(settings.worker_endpoint or f"ipc://{run_dir(settings) / 'worker.sock'}", settings)


def check_endpoint(endpoint: str, settings: IpcSettings) -> str:
    """`endpoint` itself when it may be used. Raises EndpointError."""
    parts = urlsplit(endpoint)
    if parts.scheme == "ipc":
        if len(endpoint.removeprefix("ipc://").encode()) > MAX_UNIX_PATH:
            raise EndpointError(f"{endpoint}: a socket's path may have {MAX_UNIX_PATH} bytes; set ipc.run_dir")
        return endpoint
    if parts.scheme != "tcp" or not parts.hostname:
        raise EndpointError(f"{endpoint}: expected ipc://PATH or tcp://HOST:PORT")
    is_safe = is_loopback_host(parts.hostname) or _is_encrypted(endpoint, settings)
    if not is_safe and not settings.allow_plaintext:
        raise EndpointError(
            f"{endpoint}: plaintext to another host; whoever reaches this port can send plans "
            "(set ipc.curve_secret_key_file, or ipc.allow_plaintext=true where the network itself is trusted)"
        )
    return endpoint


def run_dir(settings: IpcSettings) -> Path:
    """The 0700 folder for socket files, made if needed. Raises EndpointError when others may write to it."""
    if settings.run_dir is not None:
        folder = Path(settings.run_dir)
    else:
        base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
        folder = Path(base) / f"chairlift-{os.getuid()}"
    try:
        return make_private_folder(folder)
    except PrivateFolderError as error:
        raise EndpointError(str(error)) from None


def bind_router(context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str, settings: IpcSettings) -> "zmq.Socket[bytes]":
    """A bound ROUTER. Sending to a peer that is gone or full raises (EHOSTUNREACH, EAGAIN) instead of dropping.

    Over tcp with a CURVE key it lets in who is listed for the endpoint: workers, else gateways. Raises EndpointError.
    """
    _refuse_living_owner(endpoint)
    socket = context.socket(zmq.ROUTER)
    _set_common(socket, endpoint, settings)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
    try:
        if _is_encrypted(endpoint, settings):
            peers = "worker" if endpoint == settings.worker_endpoint else "gateway"
            use_as_server(socket, context, settings, peers)
        socket.bind(endpoint)
    except (zmq.ZMQError, CurveError) as error:
        socket.close()
        raise EndpointError(f"{endpoint}: {_why(error)}") from None
    return socket


def remove_socket_file(endpoint: str) -> None:
    """Removes the file of an ipc endpoint that this process bound; libzmq leaves it behind."""
    if endpoint.startswith("ipc://"):
        Path(endpoint.removeprefix("ipc://")).unlink(missing_ok=True)


def connect_dealer(
    context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str, settings: IpcSettings, identity: bytes
) -> "zmq.Socket[bytes]":
    """A DEALER that connects, and again after every loss, and queues nothing for a peer that is not there."""
    socket = context.socket(zmq.DEALER)
    _set_common(socket, endpoint, settings)
    socket.setsockopt(zmq.IDENTITY, identity)
    socket.setsockopt(zmq.IMMEDIATE, 1)
    socket.setsockopt(zmq.RECONNECT_IVL, 50)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
    try:
        if _is_encrypted(endpoint, settings):
            use_as_client(socket, endpoint, settings)
        socket.connect(endpoint)
    except (zmq.ZMQError, CurveError) as error:
        socket.close()
        raise EndpointError(f"{endpoint}: {_why(error)}") from None
    return socket


def has_message(socket: "zmq.Socket[bytes]") -> bool:
    """Whether a message can be taken at once. Asking is cheaper than the exception of a vain try, above all where code
    runs from cold caches.
    """
    return bool(int(socket.getsockopt(zmq.EVENTS)) & _READABLE)


class DisconnectWatch:
    """Hears of every loss of `socket`'s connection, at once. Whatever was on its way then may be lost, unseen by
    libzmq's own reconnecting: the handshake has to begin anew.
    """

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        """To be closed before `socket` is."""
        self._watched = socket
        self.socket: zmq.Socket[bytes] = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        """Readable when there is something to `take`; its descriptor is edge-triggered, as all of libzmq's are."""

    def take(self) -> bool:
        """Whether the connection was lost since the last call."""
        is_lost = False
        while has_message(self.socket):
            self.socket.recv_multipart(zmq.NOBLOCK)
            is_lost = True
        return is_lost

    def close(self) -> None:
        """Stops listening. A second time does nothing."""
        if not self.socket.closed:
            self._watched.disable_monitor()
            self.socket.close(linger=0)


def _is_encrypted(endpoint: str, settings: IpcSettings) -> bool:
    """A folder that is this user's alone needs no keys."""
    return settings.curve_secret_key_file is not None and endpoint.startswith("tcp://")


def _why(error: zmq.ZMQError | CurveError) -> str:
    match error:
        case zmq.ZMQError():
            return error.strerror or "libzmq refuses"
        case _:
            return str(error)


def _refuse_living_owner(endpoint: str) -> None:
    """libzmq takes an ipc path over from whoever listens there: two schedulers would each get half of the peers."""
    if not endpoint.startswith("ipc://"):
        return
    with unix_socket.socket(unix_socket.AF_UNIX, unix_socket.SOCK_STREAM) as probe:
        try:
            probe.connect(endpoint.removeprefix("ipc://"))
        except OSError:
            return
    raise EndpointError(f"{endpoint}: in use by another process")


def _set_common(socket: "zmq.Socket[bytes]", endpoint: str, settings: IpcSettings) -> None:
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, settings.send_queue_messages)
    socket.setsockopt(zmq.RCVHWM, settings.send_queue_messages)
    socket.setsockopt(zmq.MAXMSGSIZE, settings.max_message_bytes)
    # A connection within one machine ends with its processes, which the kernel tells at once.
    if not endpoint.startswith("ipc://"):
        socket.setsockopt(zmq.HEARTBEAT_IVL, round(settings.heartbeat_timeout_s * 1000))
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, round(settings.heartbeat_timeout_s * 3000))
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
