"""Workloads by name, or by the path of a trace."""

from pathlib import Path

import msgspec

from deploy.bench.workload.lengths import LengthRange
from deploy.bench.workload.names import NOISY_NEIGHBOUR, WORKLOADS, WorkloadError
from deploy.bench.workload.peers import PeersShape, PeersWorkload
from deploy.bench.workload.prompts import TokenIds, token_ids_within
from deploy.bench.workload.request import Workload
from deploy.bench.workload.synthetic import (
    LONG_OUTPUT,
    LONG_PROMPT,
    SHORT_OUTPUT,
    SHORT_PROMPT,
    ChatWorkload,
    NoisyNeighbourWorkload,
    RandomWorkload,
    SharedPrefixWorkload,
)
from deploy.bench.workload.traces import TraceWorkload, read_trace

_SHAPES = {
    "short-short": (SHORT_PROMPT, SHORT_OUTPUT),
    "short-long": (SHORT_PROMPT, LONG_OUTPUT),
    "long-short": (LONG_PROMPT, SHORT_OUTPUT),
    "long-long": (LONG_PROMPT, LONG_OUTPUT),
    "mixed": (LengthRange(32, 256), LengthRange(16, 256)),
    "sparse": (SHORT_PROMPT, LengthRange(32, 64)),
}


class WorkloadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a user may change about a workload."""

    seed: int = 0
    vocab_size: int | None = None
    prompt: LengthRange | None = None
    output: LengthRange | None = None
    abandon_share: float = 0.0
    length_scale: float = 1.0
    max_model_len: int | None = None
    """Requests of a trace that do not fit are left out."""


def find_workload(name: str, options: WorkloadOptions) -> Workload:
    """The workload called `name`, or the trace at that path. Raises WorkloadError."""
    ids = token_ids_within(options.seed, options.vocab_size)
    if name in _SHAPES:
        prompt, output = _SHAPES[name]
        return RandomWorkload(
            name=name,
            ids=ids,
            prompt=options.prompt or prompt,
            output=options.output or output,
            abandon_share=options.abandon_share,
        )
    if options.abandon_share:
        raise WorkloadError(f"{name}: only {', '.join(_SHAPES)} have clients that go away")
    return _find_special(name, ids, options)


def _find_special(name: str, ids: TokenIds, options: WorkloadOptions) -> Workload:
    match name:
        case "shared-prefix":
            shared = SharedPrefixWorkload(name=name, ids=ids)
            return SharedPrefixWorkload(
                name=name, ids=ids, suffix=options.prompt or shared.suffix, output=options.output or shared.output
            )
        case "chat":
            chat = ChatWorkload(name=name, ids=ids)
            return ChatWorkload(
                name=name, ids=ids, message=options.prompt or chat.message, output=options.output or chat.output
            )
        case "noisy-neighbour":
            return _noisy_neighbour(ids, options)
        case "peers-mixed":
            return _peers("mixed", name, options)
        case "peers-single":
            return _peers("single", name, options)
        case "peers-prefill":
            return _peers("prefill", name, options)
        case _:
            return _find_trace(name, ids, options)


def _peers(shape: PeersShape, name: str, options: WorkloadOptions) -> Workload:
    _refuse_lengths(name, "its lengths are its definition", options)
    return PeersWorkload(shape=shape, repetition=options.seed)


def _noisy_neighbour(ids: TokenIds, options: WorkloadOptions) -> Workload:
    _refuse_lengths(NOISY_NEIGHBOUR, "its two tenants have lengths of their own", options)
    return NoisyNeighbourWorkload(name=NOISY_NEIGHBOUR, ids=ids)


def _refuse_lengths(name: str, why: str, options: WorkloadOptions) -> None:
    if options.prompt is not None or options.output is not None:
        raise WorkloadError(f"{name}: takes no --prompt-tokens or --output-tokens: {why}")


def _find_trace(name: str, ids: TokenIds, options: WorkloadOptions) -> Workload:
    path = Path(name).expanduser()
    if path.suffix not in (".csv", ".jsonl"):
        raise WorkloadError(
            f"{name}: no such workload; known: {', '.join(WORKLOADS)}, and traces by path (Azure .csv, Mooncake .jsonl)"
        )
    _refuse_lengths(name, "a trace has its own, which --length-scale multiplies", options)
    return TraceWorkload(
        path=path,
        ids=ids,
        rows=read_trace(path),
        length_scale=options.length_scale,
        max_model_len=options.max_model_len,
    )
