"""The schedulers that this gateway knows: which takes a request, and questions to them.

A request is placed by rendezvous hash of its key (Thaler and Ravishankar, 1998) over the replicas that can take it, so
that any gateway that looks for it finds it, and few requests move when a replica comes or goes.
"""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec
import zmq

from chairlift.ipc import front, operator
from chairlift.ipc.common import Reason
from chairlift.runtime.settings import IpcSettings
from gateway.errors.api_error import ApiError
from gateway.link.iterations import IterationHub
from gateway.link.replica_link import ReplicaLink

Answer: TypeAlias = (
    front.CancelReply
    | front.ExplainReply
    | front.QueryFailed
    | front.LoadReply
    | operator.ConfigReply
    | operator.RequestsReply
    | operator.InspectReply
    | operator.ServerInfoReply
)
Question: TypeAlias = (
    front.Cancel
    | front.ExplainQuery
    | front.LoadQuery
    | operator.ConfigQuery
    | operator.ConfigChange
    | operator.ConfigRollback
    | operator.RequestsQuery
    | operator.InspectQuery
    | operator.ServerInfoQuery
    | operator.LogLevelCommand
    | front.DrainCommand
    | front.FlushPrefixCacheCommand
)


class RequestKey(msgspec.Struct, frozen=True):
    """What names a request among all of a deployment."""

    tenant: str
    request_id: str


class Replicas:
    """Owns the links. What belongs to requests, and the loss of a link, is handed on by the functions given."""

    def __init__(
        self,
        endpoints: Sequence[str],
        settings: IpcSettings,
        gateway_id: str,
        epoch: int,
        fingerprint: str,
        *,
        on_message: Callable[[ReplicaLink, front.ToGateway], None],
        on_lost: Callable[[ReplicaLink], None],
        on_changed: Callable[[], None],
    ) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._timeout_s = settings.heartbeat_timeout_s
        self._on_message = on_message
        self._on_lost = on_lost
        self._on_changed = on_changed
        self._questions: dict[int, _Pending] = {}
        self._next_question = 1
        self.links = tuple(
            ReplicaLink(endpoint, settings, gateway_id, epoch, fingerprint, self) for endpoint in endpoints
        )

        self.iterations = IterationHub(lambda: self.links)
        """Who watches iterations."""

    def open(self) -> None:
        """Starts to connect to all. Raises EndpointError."""
        for link in self.links:
            link.open(self._context)

    def close(self) -> None:
        """Says goodbye to all and frees the sockets."""
        self.iterations.close()
        for link in self.links:
            link.close()
        self._context.term()

    @property
    def model(self) -> front.ModelInfo | None:
        """What is served, as any replica that is attached has told."""
        return next((link.model for link in self.links if link.is_attached and link.model is not None), None)

    @property
    def is_ready(self) -> bool:
        """Whether any replica takes requests."""
        return any(link.is_attached and link.is_ready and not link.is_draining for link in self.links)

    def place(self, key: RequestKey) -> ReplicaLink:
        """The replica for a request. Raises ApiError with the reason why there is none."""
        takers = [link for link in self.links if link.is_attached and link.model is not None and not link.is_draining]
        ready = [link for link in takers if link.is_ready] or takers
        if ready:
            return max(ready, key=lambda link: _score(key, link.replica_id))
        raise self.why_none()

    def candidates(self, key: RequestKey, replica_id: str | None = None) -> list[ReplicaLink]:
        """Attached replicas in the order in which a request is looked for; a named one comes first."""
        found = [link for link in self.links if link.is_attached]
        found.sort(key=lambda link: _score(key, link.replica_id), reverse=True)
        found.sort(key=lambda link: link.replica_id != replica_id)
        return found

    def find(self, replica_id: str) -> list[ReplicaLink]:
        """The replica of that name, or all for an empty name. Raises ApiError for a name that nobody has."""
        found = [link for link in self.links if replica_id in ("", link.replica_id)]
        if not found:
            raise ApiError("UNKNOWN_REPLICA", "this gateway knows no replica of that name")
        return found

    def why_none(self) -> ApiError:
        """The error for a request that no replica can take."""
        attached = [link for link in self.links if link.is_attached]
        if not attached:
            return ApiError(Reason.NO_SCHEDULER, "no scheduler is connected to this gateway")
        if any(link.model is None for link in attached):
            return ApiError(Reason.NO_WORKER, "no worker is up yet")
        return ApiError(Reason.DRAINING, "every replica is about to end")

    async def ask(self, link: ReplicaLink, make: Callable[[int], Question]) -> Answer | None:
        """The answer to a question; None when the replica is gone or does not answer in time."""
        number, self._next_question = self._next_question, self._next_question + 1
        future: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()
        self._questions[number] = _Pending(link, future)
        try:
            if not link.send(make(number)):
                return None
            async with asyncio.timeout(self._timeout_s):
                return await future
        except TimeoutError:
            return None
        finally:
            del self._questions[number]

    # ---- as a listener of links ----

    def on_attached(self, _: ReplicaLink) -> None:
        """See `LinkListener`."""
        self._on_changed()

    def on_lost(self, link: ReplicaLink) -> None:
        """See `LinkListener`."""
        for pending in self._questions.values():
            if pending.link is link and not pending.future.done():
                pending.future.set_result(None)
        self._on_lost(link)

    def on_changed(self, _: ReplicaLink) -> None:
        """See `LinkListener`."""
        self._on_changed()

    def on_message(self, link: ReplicaLink, message: front.ToGateway) -> None:
        """See `LinkListener`."""
        match message:
            case (
                front.CancelReply()
                | front.ExplainReply()
                | front.QueryFailed()
                | front.LoadReply()
                | operator.ConfigReply()
                | operator.RequestsReply()
                | operator.InspectReply()
                | operator.ServerInfoReply()
            ):
                pending = self._questions.get(message.query)
                if pending is not None and pending.link is link and not pending.future.done():
                    pending.future.set_result(message)
            case operator.IterationReport():
                self.iterations.on_report(link, message)
            case _:
                self._on_message(link, message)


class _Pending(msgspec.Struct, frozen=True):
    link: ReplicaLink
    future: "asyncio.Future[Answer | None]"


def _score(key: RequestKey, replica_id: str) -> bytes:
    """Rendezvous weight: the same in every gateway."""
    text = "\0".join((key.tenant, key.request_id, replica_id))
    return hashlib.blake2b(text.encode(), digest_size=8).digest()
