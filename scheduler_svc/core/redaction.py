"""Events without anything that a user wrote or was told: what a recording holds unless token values are asked for.

Lengths stay, and what decides a plan: which tokens ended something, what fitted and what did not. Names are replaced
by keyed hashes of themselves, so that equal ones stay equal.
"""

from array import array
from collections.abc import Callable
from hashlib import blake2b
from itertools import islice
from typing import Any

import msgspec

from chairlift.ipc import device, front
from chairlift.ipc.common import SamplingParams
from chairlift.ipc.tokens import pack_u32, unpack_u32
from scheduler_svc.core import events, validation
from scheduler_svc.core.config import SchedulingConfig
from scheduler_svc.core.request import RequestKey
from scheduler_svc.core.revisions import Revision

_NO_COLUMN = b"?"
"""Sampled ids that fit no plan."""


class Redactor:
    """`key` makes the hashes of names; it is not kept with the recording."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._geometry: device.Geometry | None = None
        self._rules = self._state_rules()

    def name(self, name: str) -> str:
        """Another name for a tenant or a request id; empty stays empty, as that is refused."""
        return blake2b(name.encode(), digest_size=12, key=self._key).hexdigest() if name else ""

    def config(self, config: SchedulingConfig) -> SchedulingConfig:
        """Rules of tenants under their other names."""
        rules = []
        for rule in config.tenants:
            name, _, values = rule.partition(":")
            rules.append(f"{self.name(name)}:{values}")
        return msgspec.structs.replace(config, tenants=tuple(rules))

    def event(self, event: events.Event, *, was_bad: bool) -> events.Event:
        """`was_bad`: the core found that a result did not fit its plan."""
        match event:
            case events.StepDone(message):
                return events.StepDone(_result(message, was_bad=was_bad))
            case events.Submit(gateway, message):
                return events.Submit(gateway, self._submit(message))
            case events.Attach(gateway, message):
                return events.Attach(gateway, msgspec.structs.replace(message, **self._names(message)))
            case events.Cancel(gateway, message):
                return events.Cancel(gateway, msgspec.structs.replace(message, **self._names(message)))
            case events.Explain(gateway, message):
                return events.Explain(gateway, msgspec.structs.replace(message, **self._names(message)))
            case events.StepFailed(message):
                return events.StepFailed(msgspec.structs.replace(message, message=""))
            case events.WorkerUp(_, geometry):
                self._geometry = geometry
                return event
            case events.ConfigChanged(config):
                return msgspec.structs.replace(event, config=self.config(config), comment="", actor="")
            case events.ConfigRolledBack():
                return msgspec.structs.replace(event, comment="", actor="")
            case _:
                return event

    def _names(self, message: front.Submit | front.Attach | front.Cancel | front.ExplainQuery) -> dict[str, str]:
        return {"tenant": self.name(message.tenant), "request_id": self.name(message.request_id)}

    def _submit(self, message: front.Submit) -> front.Submit:
        geometry = self._geometry
        is_sound = geometry is not None and validation.find_fault(message, geometry.vocab_size) is None
        digest = blake2b(message.digest, digest_size=16, key=self._key).digest() if len(message.digest) == 16 else b""
        changes: dict[str, Any] = {
            "digest": digest,
            # What is no request is refused for its empty prompt instead.
            "prompt": bytes(len(message.prompt)) if is_sound else b"",
            "sampling": SamplingParams(),
            "emitted": (),
            "gateway_state": b"",
            "traceparent": "",
            "tracestate": "",
            "cache_salt": "",
        }
        if geometry is not None and is_sound:
            stops = _stand_ins(len(message.sampling.stop_token_ids), geometry)
            changes["sampling"] = _sampling(message.sampling, stops)
            changes["emitted"] = tuple(
                _output(packed, message.sampling.stop_token_ids, stops, geometry) for packed in message.emitted
            )
        return msgspec.structs.replace(message, **changes, **self._names(message))

    def state_value(self, owner: str, attribute: str, value: Any) -> Any:
        """What a checkpoint holds for an attribute of the core's state; see `checkpoint.Redact`."""
        rule = self._rules.get((owner, attribute))
        return value if rule is None else rule(value)

    def _state_rules(self) -> dict[tuple[str, str], Callable[[Any], Any]]:
        return {
            ("Request", "prompt"): lambda prompt: bytes(len(prompt)),
            ("Request", "gateway_state"): lambda _: b"",
            ("Request", "sampling"): self._request_sampling,
            ("Request", "digest"): lambda digest: blake2b(digest, digest_size=16, key=self._key).digest(),
            ("Request", "key"): self._request_key,
            ("Request", "prompt_logprobs"): lambda _: None,
            ("Request", "trace_id"): lambda _: "",
            ("Sequence", "outputs"): lambda outputs: array("I", bytes(4 * len(outputs))),
            ("Sequence", "output_logprobs"): lambda _: None,
            ("Sequence", "end"): lambda end: end and msgspec.structs.replace(end, stop_token_id=None),
            ("Confirmed", "_columns"): lambda columns: [array("I", bytes(4 * len(one))) for one in columns],
            ("SchedulerState", "requests"): self._by_key,
            ("SchedulerState", "ended"): self._by_key,
            ("SchedulerState", "config"): self.config,
            ("Revisions", "_history"): self._history,
            ("Tenant", "name"): self.name,
            ("Tenants", "_tenants"): self._by_name,
            ("Tenants", "_idle"): self._by_name,
            ("Tenants", "_named"): self._by_name,
            ("Queue", "_parked"): self._by_name,
            ("Fair", "_queues"): self._by_name,
        }

    def _request_sampling(self, sampling: SamplingParams) -> SamplingParams:
        assert self._geometry is not None, "there is no request before there was a worker"
        return _sampling(sampling, _stand_ins(len(sampling.stop_token_ids), self._geometry))

    def _by_key(self, requests: dict[RequestKey, Any]) -> dict[RequestKey, Any]:
        return type(requests)((self._request_key(key), request) for key, request in requests.items())

    def _by_name(self, named: dict[str, Any]) -> dict[str, Any]:
        return type(named)((self.name(name), item) for name, item in named.items())

    def _history(self, history: list[Revision]) -> list[Revision]:
        return [msgspec.structs.replace(one, config=self.config(one.config), comment="", actor="") for one in history]

    def _request_key(self, key: RequestKey) -> RequestKey:
        return RequestKey(self.name(key.tenant), self.name(key.request_id))


def _stand_ins(count: int, geometry: device.Geometry) -> tuple[int, ...]:
    """Ids for stop tokens: not those that end a sequence anyhow."""
    free = (token for token in range(geometry.vocab_size - 1, 0, -1) if token not in geometry.eos_token_ids)
    return tuple(islice(free, count))


def _sampling(sampling: SamplingParams, stops: tuple[int, ...]) -> SamplingParams:
    """What decides how long a choice runs, and what has to be computed."""
    return SamplingParams(
        min_tokens=sampling.min_tokens,
        ignore_eos=sampling.ignore_eos,
        stop_token_ids=stops,
        logprobs=sampling.logprobs,
        prompt_logprobs=sampling.prompt_logprobs,
    )


def _output(packed: bytes, real: tuple[int, ...], stops: tuple[int, ...], geometry: device.Geometry) -> bytes:
    """An earlier attempt's output: only what its last token is tells whether it was complete."""
    if not packed:
        return b""
    other = next(token for token in range(geometry.vocab_size) if token not in geometry.eos_token_ids + stops)
    last = unpack_u32(packed[-4:])[0]
    if last in real:
        last = stops[real.index(last)]
    elif last not in geometry.eos_token_ids:
        last = other
    return pack_u32([other] * (len(packed) // 4 - 1) + [last])


def _result(message: device.StepDone, *, was_bad: bool) -> device.StepDone:
    return msgspec.structs.replace(
        message,
        sampled=_NO_COLUMN if was_bad else bytes(len(message.sampled)),
        ends=b"" if was_bad else message.ends,
        logprobs=(),
        prompt_logprobs=tuple(
            msgspec.structs.replace(part, token_ids=bytes(len(part.token_ids)), logprobs=bytes(len(part.logprobs)))
            for part in message.prompt_logprobs
        ),
    )
