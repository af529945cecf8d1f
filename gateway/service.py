"""The gateway process: puts the parts together, runs them on one event loop, and takes them down in order."""

import asyncio
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from chairlift.ipc.common import Reason
from chairlift.runtime.addresses import parse_address
from chairlift.runtime.aside import run_aside
from chairlift.runtime.exposure import gateway_addresses
from chairlift.runtime.lean_memory import settle
from chairlift.runtime.life_sign import LifeSign
from chairlift.runtime.metric_table import (
    GATEWAY_MALFORMED,
    OPEN_STREAMS,
    RESUBMISSIONS,
    SLOW_CLIENTS,
    MetricSpec,
)
from chairlift.runtime.model_source import ModelSource, fingerprint_model
from chairlift.runtime.probes import ProbeServer, ProcessState
from chairlift.runtime.process import StopSignal, new_epoch
from chairlift.runtime.round_times import until_round_time
from chairlift.runtime.settings import Settings
from chairlift.runtime.tracing import Tracing
from gateway.errors.api_error import ApiError
from gateway.gate import Gate
from gateway.link.endpoints import EndpointSource
from gateway.link.replicas import Replicas
from gateway.methods.generate import GenerateMethod
from gateway.methods.models import GetModelMethod, ListModelsMethod
from gateway.methods.ops_reads import GatewayIdentity
from gateway.methods.ops_service import ops_methods
from gateway.methods.resume import CancelMethod, ExplainMethod, ResumeMethod
from gateway.methods.served_model import ServedModel
from gateway.methods.tokens import DetokenizeMethod, TokenizeMethod
from gateway.observing import CallObserver
from gateway.security.secret_files import SecretFiles
from gateway.server import INFERENCE, OPS, Health, ServeMethod, bind, make_server
from gateway.streams.generation_table import GenerationTable, StreamLimits
from gateway.text.model_text import ModelText
from gateway.text.prompt_encoder import PromptEncoder

if TYPE_CHECKING:
    from gateway.http.front import HttpFront

_TICK_S = 0.25
_IDLE_TICK_S = 10.0
"""While no stream is open: to show that the loop turns."""
_LAST_WORDS_S = 2.0
"""For statuses to reach clients after the drain is over."""
_RENDERED_CHARS_A_REQUEST_BYTE = 2
"""A template may add that much to what a request holds."""


class GatewayService:
    """The gateway of one process. Made and run in one event loop."""

    def __init__(
        self, settings: Settings, source: ModelSource, text: ModelText, tracing: Tracing | None = None
    ) -> None:
        """Checks addresses, endpoints and secrets; owns `tracing`; opens nothing yet.

        Raises AddressError, EndpointError and SecretsError.
        """
        own = settings.gateway
        self._settings = settings
        self._log = structlog.get_logger()
        self._addresses = gateway_addresses(own)
        self._secrets = SecretFiles(own)
        self._endpoints = EndpointSource(settings)
        epoch = new_epoch()
        name = f"gateway-{own.index}@{socket.gethostname()}"
        self._identity = GatewayIdentity(name, epoch, time.monotonic_ns())
        self.state = ProcessState(sign=LifeSign.inherited())
        self._gate = Gate(own.max_concurrent_streams)
        self._health = Health()
        self._changed = asyncio.Event()
        self._drain_timer: asyncio.TimerHandle | None = None
        limits = StreamLimits(
            queue_tokens=own.stream_queue_tokens,
            slow_timeout_s=own.slow_client_timeout_s,
            orphan_grace_s=settings.scheduler.worker_restart_grace_s,
        )
        self._table = GenerationTable(
            text.tokenizer.table, limits, lambda key, submit: self._replicas.place(key, submit)
        )
        self._replicas = Replicas(
            settings.ipc,
            name,
            epoch,
            fingerprint_model(source),
            on_message=self._table.on_message,
            on_lost=self._table.on_lost,
            on_changed=self._on_change,
            is_used=self._table.is_used,
        )
        self._encoder = PromptEncoder(
            text,
            template_timeout_s=own.template_timeout_s,
            max_chars=_RENDERED_CHARS_A_REQUEST_BYTE * own.max_request_bytes,
        )
        model = ServedModel(settings.model.served_name or source.name, text, self._encoder, self._replicas, own)
        self._observer = CallObserver(model.name, self._readings(), tracing)
        who = self._secrets.authenticator
        methods = self._inference_methods(model)
        self._public = make_server(INFERENCE, methods, self._gate, self._health, own, who, self._observer)
        operations = ops_methods(self._identity, self._replicas, self._table, self._gate, self._drain_here, own)
        self._ops = make_server(OPS, operations, Gate(own.max_concurrent_streams), self._health, own, who)
        self._http = self._make_http(methods) if self._addresses.http is not None else None
        self._probes: ProbeServer | None = None
        self.port = 0
        """The bound public port, once `start` has returned."""
        self.ops_port = 0
        """The bound operator's port."""
        self.http_port: int | None = None
        """The bound HTTP port, where there is one."""

    # ---- life ----

    async def start(self) -> None:
        """Opens sockets and ports. Raises ChatTemplateError, EndpointError, AddressError and OSError."""
        await self._encoder.start()
        self._replicas.follow(await self._endpoints.current())
        self.state.set_ready(False, "no scheduler yet")
        listen = self._settings.gateway.metrics_listen
        if listen:
            probe = parse_address(listen, "gateway.metrics_listen", self._settings.gateway.index)
            self._probes = ProbeServer(str(probe), self.state, self._observer.exposition)
        public, ops = str(self._addresses.public), str(self._addresses.ops)
        self.port = bind(self._public, public, "gateway.listen", self._secrets.public_tls)
        self.ops_port = bind(self._ops, ops, "gateway.ops_listen", self._secrets.ops_tls)
        await self._health.set_live()
        await self._health.set_ready(False)
        await self._public.start()
        await self._ops.start()
        if self._http is not None:
            self.http_port = await self._http.start()
        self._log.info(
            "gateway_started",
            gateway_id=self._identity.gateway_id,
            port=self.port,
            ops_port=self.ops_port,
            http_port=self.http_port,
        )

    @property
    def probe_port(self) -> int | None:
        """Port of the probes; None where they are switched off."""
        return self._probes.port if self._probes is not None else None

    async def run(self, stop: StopSignal) -> None:
        """Serves until `stop` is requested, then drains within `gateway.drain_timeout_s`."""
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(stop.fileno(), stopped.set)
        keeping = [self._keep_time, self._keep_health]
        if self._secrets.are_watched:
            keeping.append(self._keep_secrets)
        if self._endpoints.may_change:
            keeping.append(self._keep_replicas)
        keepers = [asyncio.create_task(keep()) for keep in keeping]
        settle()
        try:
            waiter = asyncio.create_task(stopped.wait())
            # A keeper ends only by a fault: then the process must not go on looking healthy.
            await asyncio.wait([waiter, *keepers], return_when=asyncio.FIRST_COMPLETED)
            waiter.cancel()
            loop.remove_reader(stop.fileno())
            await self._drain()
            for keeper in keepers:
                if keeper.done():
                    keeper.result()
        finally:
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)

    async def close(self) -> None:
        """Frees ports, sockets and processes; what is left of calls is cancelled."""
        if self._drain_timer is not None:
            self._drain_timer.cancel()
        await asyncio.gather(self._public.stop(None), self._ops.stop(None))
        if self._http is not None:
            await self._http.close()
        self._replicas.close()
        await self._encoder.close()
        if self._probes is not None:
            self._probes.close()
        self._observer.close()

    async def _drain(self) -> None:
        """Takes nothing new, lets streams end, ends the rest so that clients go on elsewhere."""
        timeout_s = self._settings.gateway.drain_timeout_s
        self._log.info("gateway_draining", streams=self._gate.num_streams)
        self._drain_here(True, None)
        await self._health.set_ready(False)
        # The port stays open: who comes now is told to go elsewhere, who is in may still cancel, resume and ask.
        if not await self._gate.wait_idle(timeout_s):
            self._log.info("drain_timed_out", streams=self._gate.num_streams)
            self._table.cut_all(_ending())
            await self._gate.wait_idle(_LAST_WORDS_S)
        await self._public.stop(None)
        if self._http is not None:
            await self._http.close()
        self._log.info("gateway_stopped")

    async def _keep_time(self) -> None:
        while True:
            self._table.tick()
            if self._table.num_open:
                self.state.turned()
                await asyncio.sleep(_TICK_S)
            else:
                await self._rest()

    async def _rest(self) -> None:
        """Returns when a stream has opened, at the latest after `_IDLE_TICK_S`."""
        pause_s = until_round_time(time.monotonic(), _IDLE_TICK_S)
        self.state.turned(pause_s)
        self._table.opened.clear()
        try:
            async with asyncio.timeout(pause_s):
                await self._table.opened.wait()
        except TimeoutError:
            return

    async def _keep_health(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            ready = self._replicas.is_ready and not self._gate.is_draining
            self.state.set_ready(ready, "" if ready else self._why_not_ready())
            await self._health.set_ready(ready)

    async def _keep_secrets(self) -> None:
        while True:
            await asyncio.sleep(self._settings.gateway.secret_poll_interval_s)
            # A mounted file may be slow to read.
            await run_aside(self._secrets.reload, "secrets")
            if self._http is not None:
                await run_aside(self._http.reload_tls, "secrets")

    async def _keep_replicas(self) -> None:
        while True:
            await asyncio.sleep(self._settings.gateway.replica_poll_interval_s)
            self._replicas.follow(await self._endpoints.current())

    def _why_not_ready(self) -> str:
        if self._gate.is_draining:
            return "draining"
        refused = next((link.why_refused for link in self._replicas.links if link.why_refused), "")
        return refused or self._replicas.why_none().message

    def _on_change(self) -> None:
        self._changed.set()
        self._table.adopt_orphans()

    def _drain_here(self, draining: bool, deadline_s: float | None) -> None:
        """Stops, or lets on, admission in this gateway."""
        self._gate.is_draining = draining
        if self._drain_timer is not None:
            self._drain_timer.cancel()
            self._drain_timer = None
        if draining and deadline_s is not None:
            loop = asyncio.get_running_loop()
            self._drain_timer = loop.call_later(deadline_s, self._table.cut_all, _ending())
        self._changed.set()

    def _readings(self) -> dict[MetricSpec, Callable[[], int]]:
        return {
            OPEN_STREAMS: lambda: self._gate.num_streams,
            RESUBMISSIONS: lambda: self._table.num_resubmitted,
            SLOW_CLIENTS: lambda: self._table.num_cut,
            GATEWAY_MALFORMED: lambda: self._replicas.num_malformed,
        }

    # ---- methods ----

    def _make_http(self, methods: dict[str, ServeMethod]) -> "HttpFront":
        # What it is built on takes memory that a gateway without HTTP need not have.
        from gateway.http.front import HttpFront

        address, own, who = self._addresses.http, self._settings.gateway, self._secrets.authenticator
        assert address is not None
        return HttpFront(address, own, methods, self._gate, who, self._observer, self.state)

    def _inference_methods(self, model: ServedModel) -> dict[str, ServeMethod]:
        replicas = self._replicas
        return {
            "Generate": GenerateMethod(model, self._table),
            "Resume": ResumeMethod(replicas, self._table),
            "Cancel": CancelMethod(replicas),
            "Explain": ExplainMethod(replicas),
            "Tokenize": TokenizeMethod(model),
            "Detokenize": DetokenizeMethod(model),
            "ListModels": ListModelsMethod(model, replicas),
            "GetModel": GetModelMethod(model, replicas),
        }


def _ending() -> ApiError:
    return ApiError(Reason.DRAINING, "this gateway has ended; the request goes on for whoever resumes it")
