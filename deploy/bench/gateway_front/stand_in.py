"""A scheduler that computes nothing: takes every request in, and gives each the same number of tokens a step.

Runs on a thread of its own; its steps come at fixed times, so that lateness does not add up.
"""

import threading
import time
from array import array

import msgspec
import zmq

from chairlift.ipc import front
from chairlift.ipc.common import PROTOCOL_MAJOR, PROTOCOL_MINOR, CancelOutcome, FinishReason, Reason
from chairlift.ipc.tokens import pack_u32, pack_u64
from chairlift.runtime.settings import IpcSettings
from chairlift.runtime.sockets import bind_router, gateway_endpoint, remove_socket_file

_BEAT_S = 0.2
_IDLE_S = 0.02
_LIMITS = front.ReplicaLimits(
    max_num_seqs=65_536,
    max_num_batched_tokens=1 << 20,
    max_num_queued_reqs=1 << 20,
    max_num_queued_tokens=1 << 30,
    block_size=16,
)
_FIRST_TOKEN, _NUM_TOKENS = 1000, 4000
"""Ordinary words of the built-in model's vocabulary, one after another."""


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    """What every stream is given, and when."""

    interval_s: float
    count: int
    tokens_each: int = 1


class SchedulerStandIn:
    """Serves the gateway link until closed. Its public methods belong to the thread that made it."""

    def __init__(self, settings: IpcSettings, model: front.ModelInfo) -> None:
        """Binds the endpoint. Raises EndpointError."""
        self.emitted_at: list[float] = []
        """When each step of the last `run` was sent, by the monotonic clock."""
        self.ends_new = False
        """Whether a request ends as soon as it is in, without a token."""
        self._endpoint = gateway_endpoint(settings)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = bind_router(self._context, self._endpoint, settings)
        self._model = model
        self._incoming = front.to_scheduler_codec()
        self._outgoing = front.to_gateway_codec()
        self._identity = b""
        self._live: dict[int, int] = {}
        """Tokens that each handle was given."""
        self._steps: Steps | None = None
        self._start_at = 0.0
        self._done = threading.Event()
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="scheduler stand-in", daemon=True)
        self._thread.start()

    @property
    def num_streams(self) -> int:
        """Requests that are in."""
        return len(self._live)

    def wait_for_streams(self, count: int, timeout_s: float) -> None:
        """Until so many requests are in. Raises TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while self.num_streams < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.num_streams} of {count} requests arrived")
            time.sleep(_IDLE_S)

    def run(self, steps: Steps) -> None:
        """Gives out steps, and returns after the last one."""
        self.emitted_at = []
        self._done.clear()
        self._start_at = time.monotonic() + steps.interval_s
        self._steps = steps
        self._done.wait()

    def finish_all(self) -> None:
        """Every request ends."""
        self.run(Steps(interval_s=0, count=0))

    def close(self) -> None:
        """Frees the endpoint."""
        self._is_closing.set()
        self._thread.join()
        self._socket.close(linger=0)
        self._context.term()
        remove_socket_file(self._endpoint)

    # ---- on its thread ----

    def _serve(self) -> None:
        next_beat = 0.0
        while not self._is_closing.is_set():
            now = time.monotonic()
            if now >= next_beat:
                next_beat = now + _BEAT_S
                self._send(front.ReplicaBeat(1, front.Load()))
            self._give_out(now)
            if self._socket.poll(self._pause_ms(time.monotonic(), next_beat)):
                self._drain()

    def _pause_ms(self, now: float, next_beat: float) -> int:
        due = min(next_beat, now + _IDLE_S)
        if self._steps is not None:
            due = min(due, self._due_at(self._steps))
        return max(0, int((due - now) * 1000))

    def _due_at(self, steps: Steps) -> float:
        return self._start_at + len(self.emitted_at) * steps.interval_s

    def _give_out(self, now: float) -> None:
        steps = self._steps
        if steps is None:
            return
        if not steps.count:
            for handle, num_tokens in self._live.items():
                self._send(front.Finished(handle, FinishReason.LENGTH, num_tokens, request_ended=True))
            self._live.clear()
        elif now < self._due_at(steps):
            return
        elif len(self.emitted_at) < steps.count:
            self._step(steps.tokens_each)
            return
        self._steps = None
        self._done.set()

    def _step(self, tokens_each: int) -> None:
        live = self._live
        offsets = array("I", live.values())
        tokens = array("I")
        for offset in offsets:
            tokens.extend(_FIRST_TOKEN + (offset + at) % _NUM_TOKENS for at in range(tokens_each))
        counts = b"" if tokens_each == 1 else pack_u32([tokens_each]) * len(live)
        deltas = front.Deltas(pack_u64(live), pack_u32(offsets), pack_u32(tokens), counts)
        for handle in live:
            live[handle] += tokens_each
        self.emitted_at.append(time.monotonic())
        self._send(deltas)

    def _drain(self) -> None:
        while True:
            try:
                identity, frame = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._take(identity, self._incoming.decode(frame))

    def _take(self, identity: bytes, message: front.ToScheduler) -> None:
        match message:
            case front.GatewayHello():
                self._identity = identity
                hello = front.SchedulerHello(
                    PROTOCOL_MAJOR,
                    PROTOCOL_MINOR,
                    self._incoming.tags,
                    "stand-in",
                    1,
                    _LIMITS,
                    ready=True,
                    draining=False,
                    model=self._model,
                )
                self._send(hello)
            case front.Submit():
                self._send(front.Accepted(message.handle, len(self._live), 0))
                if self.ends_new:
                    self._end_at_once(message)
                else:
                    self._live[message.handle] = 0
            case front.Attach(handle):
                self._send(front.Refused(handle, Reason.UNKNOWN_REQUEST, "no such request is known"))
            case front.Cancel(query):
                self._send(front.CancelReply(query, CancelOutcome.UNKNOWN))
            case front.ExplainQuery(query):
                self._send(front.QueryFailed(query, Reason.UNKNOWN_REQUEST, "no such request is known"))
            case front.Detach(handle):
                self._live.pop(handle, None)
            case front.LoadQuery(query):
                self._send(front.LoadReply(query, 1, ready=True, draining=False, load=front.Load()))
            case _:
                pass

    def _end_at_once(self, submit: front.Submit) -> None:
        for index in range(submit.n):
            is_last = index == submit.n - 1
            self._send(front.Finished(submit.handle + index, FinishReason.LENGTH, 0, request_ended=is_last))

    def _send(self, message: front.ToGateway) -> None:
        if not self._identity:
            return
        try:
            # Waits where the gateway is behind: nothing is lost that it has to count on.
            self._socket.send_multipart((self._identity, self._outgoing.encode(message)))
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
