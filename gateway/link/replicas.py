"""The schedulers that this gateway knows: which takes a request, and questions to them.

A request that its client has named is placed by rendezvous hash of its key over the replicas that can take it, so that
a repeat finds it through any gateway, and few requests move when a replica comes or goes. Others go by prefix and load.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec
import zmq

from chairlift.ipc import front, operator
from chairlift.ipc.common import Reason
from chairlift.runtime.settings import IpcSettings
from gateway.errors.api_error import ApiError
from gateway.link.iterations import IterationHub
from gateway.link.placement import Candidate, PrefixPlacement, rendezvous
from gateway.link.replica_link import LinkState, ReplicaLink

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


_SILENT_AFTER_BEATS = 3
"""Heartbeats that may be missing before others are preferred to a replica."""


class Replicas:
    """Owns the links. What belongs to requests, and the loss of a link, is handed on by the functions given."""

    def __init__(
        self,
        settings: IpcSettings,
        gateway_id: str,
        epoch: int,
        fingerprint: str,
        *,
        on_message: Callable[[ReplicaLink, front.ToGateway], None],
        on_lost: Callable[[ReplicaLink], None],
        on_changed: Callable[[], None],
        is_used: Callable[[ReplicaLink], bool],
    ) -> None:
        """`is_used` tells whether requests are on a link."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._timeout_s = settings.heartbeat_timeout_s
        self._on_message = on_message
        self._on_lost = on_lost
        self._on_changed = on_changed
        self._questions: dict[int, _Pending] = {}
        self._next_question = 1
        self._is_used = is_used
        self._silent_after_s = _SILENT_AFTER_BEATS * settings.heartbeat_interval_s
        self._settings = settings
        self._identity = gateway_id, epoch, fingerprint
        self._placement = PrefixPlacement()
        self._placed: dict[str, tuple[float, int]] = {}
        """By replica: when its load was told, and how many requests were sent to it since."""
        self._retired: set[str] = set()
        """Endpoints that are listed no more, whose requests go on."""
        self.links: tuple[ReplicaLink, ...] = ()
        self.num_malformed = 0
        """Messages dropped on any link, also on those that are gone."""
        self.iterations = IterationHub(lambda: self.links)
        """Who watches iterations."""

    def follow(self, endpoints: Sequence[str]) -> None:
        """Connects to these from now on. A link that is listed no more takes nothing new and goes when it is unused.

        Raises EndpointError.
        """
        known = {link.endpoint for link in self.links}
        for endpoint in endpoints:
            if endpoint not in known:
                link = ReplicaLink(endpoint, self._settings, *self._identity, self)
                self.links = (*self.links, link)
                link.open(self._context)
        self._retired = known - set(endpoints)
        for link in self.links:
            if link.endpoint in self._retired and not self._is_used(link):
                link.close()
        gone = [link for link in self.links if link.state is LinkState.CLOSED]
        if gone:
            self.links = tuple(link for link in self.links if link not in gone)
            self._on_changed()

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
        return any(link.is_ready for link in self._takers())

    def place(self, key: RequestKey, submit: front.Submit | None = None) -> ReplicaLink:
        """The replica for a request: by its key, or by prefix and load where `submit` is given.

        Raises ApiError with the reason why there is none.
        """
        takers = self._takers()
        ready = [link for link in takers if link.is_ready] or takers
        if not ready:
            raise self.why_none()
        if submit is None:
            return max(ready, key=lambda link: _score(key, link.replica_id))
        awake = [link for link in ready if not self._is_silent(link)] or ready
        if len(awake) == 1:
            return awake[0]
        by_id = {link.replica_id: link for link in awake}
        candidates = [Candidate(link.replica_id, self._load_of(link)) for link in awake]
        chosen = self._placement.choose(submit.prompt, f"{key.tenant}\0{submit.cache_salt}", candidates)
        link = by_id[chosen]
        at, count = self._placed.get(chosen, (link.load_at, 0))
        self._placed[chosen] = (link.load_at, (count if at == link.load_at else 0) + submit.n)
        return link

    def _takers(self) -> list[ReplicaLink]:
        """Those that can be given something new."""
        return [
            link
            for link in self.links
            if link.is_attached
            and link.model is not None
            and not link.is_draining
            and link.endpoint not in self._retired
        ]

    def _load_of(self, link: ReplicaLink) -> int:
        """What it told, and what was sent to it since."""
        at, count = self._placed.get(link.replica_id, (0.0, 0))
        return link.load.running + link.load.waiting + (count if at == link.load_at else 0)

    def _is_silent(self, link: ReplicaLink) -> bool:
        return link.load_at > 0 and link.silence_s > self._silent_after_s

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
        return ApiError(Reason.DRAINING, "every replica is draining")

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

    def on_malformed(self, _: ReplicaLink) -> None:
        """See `LinkListener`."""
        self.num_malformed += 1

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
    return rendezvous(b"", f"{key.tenant}\0{key.request_id}\0{replica_id}")
