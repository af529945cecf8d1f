"""Log-probabilities from the link's columns as messages of the public contract."""

from chairlift.ipc import front
from chairlift.ipc.tokens import unpack_f32, unpack_u32
from chairlift.v1 import inference_pb2 as pb
from gateway.text.token_table import TokenTable

_MAX_TOKENS_A_MESSAGE = 256


def token_logprob(entry: front.DeltaLogprobs | None, token_id: int, table: TokenTable) -> pb.TokenLogprob:
    """One output token's. Without an entry the token stands alone."""
    if entry is None:
        return pb.TokenLogprob(token_id=token_id, piece=_piece(table, token_id))
    ids, logprobs = unpack_u32(entry.token_ids), unpack_f32(entry.logprobs)
    return _from_row(list(ids), list(logprobs), table)


def first_prompt_logprob(token_id: int, table: TokenTable) -> pb.PromptLogprobs:
    """The prompt's first token, which nothing predicts."""
    return pb.PromptLogprobs(offset=0, logprobs=[pb.TokenLogprob(token_id=token_id, piece=_piece(table, token_id))])


def prompt_logprobs(part: front.DeltaPromptLogprobs, table: TokenTable) -> list[pb.PromptLogprobs]:
    """A run of later prompt tokens', at most 256 a message."""
    ids, logprobs, width = list(unpack_u32(part.token_ids)), list(unpack_f32(part.logprobs)), part.width
    rows = [
        _from_row(ids[start : start + width], logprobs[start : start + width], table)
        for start in range(0, len(ids), width)
    ]
    return [
        pb.PromptLogprobs(offset=part.offset + start, logprobs=rows[start : start + _MAX_TOKENS_A_MESSAGE])
        for start in range(0, len(rows), _MAX_TOKENS_A_MESSAGE)
    ]


def _from_row(ids: list[int], logprobs: list[float], table: TokenTable) -> pb.TokenLogprob:
    """The token itself comes first, then its alternatives."""
    return pb.TokenLogprob(
        token_id=ids[0],
        logprob=logprobs[0],
        piece=_piece(table, ids[0]),
        top=[
            pb.Alternative(token_id=token_id, logprob=logprob, piece=_piece(table, token_id))
            for token_id, logprob in zip(ids[1:], logprobs[1:], strict=True)
        ],
    )


def _piece(table: TokenTable, token_id: int) -> bytes:
    return table.pieces[token_id] if token_id < len(table.pieces) else b""
