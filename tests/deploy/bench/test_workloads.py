"""Workloads: the same for the same seed, with the lengths, prefixes and times that they promise."""

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from deploy.bench.workload.catalogue import WorkloadOptions, find_workload
from deploy.bench.workload.lengths import LengthRange, parse_length_range
from deploy.bench.workload.names import WorkloadError
from deploy.bench.workload.peers import PeersWorkload
from deploy.bench.workload.request import Session

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,48,10
2023-11-16 18:17:05.4799600,31,8
"""
MOONCAKE = """{"timestamp": 500, "input_length": 1100, "output_length": 5, "hash_ids": [7, 8, 9]}
{"timestamp": 2000, "input_length": 1030, "output_length": 3, "hash_ids": [7, 8, 10]}

{"timestamp": 2000, "input_length": 9000, "output_length": 3, "hash_ids": []}
"""


def first(name: str, number: int = 40, **options: Any) -> list[Session]:
    workload = find_workload(name, WorkloadOptions(**options))
    return list(itertools.islice(workload.sessions(), number))


@pytest.mark.parametrize(
    "name",
    [
        "short-short",
        "short-long",
        "long-short",
        "long-long",
        "mixed",
        "sparse",
        "shared-prefix",
        "chat",
        "noisy-neighbour",
    ],
)
def test_a_seed_gives_the_same_requests_and_another_gives_others(name: str) -> None:
    assert first(name, 5, seed=3) == first(name, 5, seed=3)
    assert first(name, 5, seed=3) != first(name, 5, seed=4)


@pytest.mark.parametrize(
    ("name", "prompt", "output"),
    [("short-long", (32, 128), (128, 256)), ("long-short", (512, 1024), (8, 32)), ("mixed", (32, 256), (16, 256))],
)
def test_lengths_fill_their_range(name: str, prompt: tuple[int, int], output: tuple[int, int]) -> None:
    turns = [session.turns[0] for session in first(name, 300)]
    for lengths, (low, high) in (
        ([len(turn.prompt) for turn in turns], prompt),
        ([turn.output_tokens for turn in turns], output),
    ):
        assert low <= min(lengths) < low + (high - low) / 10
        assert high - (high - low) / 10 < max(lengths) <= high
    assert len({turn.prompt[:8] for turn in turns}) == 300


def test_lengths_can_be_chosen() -> None:
    turns = [session.turns[0] for session in first("mixed", prompt=LengthRange(5, 5), output=LengthRange(2, 3))]
    assert {len(turn.prompt) for turn in turns} == {5}
    assert {turn.output_tokens for turn in turns} == {2, 3}


@pytest.mark.parametrize("text", ["", "0", "5:4", "a", "1:2:3", "-1"])
def test_a_bad_length_is_refused(text: str) -> None:
    with pytest.raises(WorkloadError, match="expected"):
        parse_length_range(text)


def test_token_ids_stay_within_a_small_vocabulary() -> None:
    ids = {token for session in first("mixed", vocab_size=300) for token in session.turns[0].prompt}
    assert min(ids) > 0
    assert max(ids) < 300


def test_prefixes_are_shared_and_the_popular_ones_more_often() -> None:
    prefixes = [session.turns[0].prompt[:512] for session in first("shared-prefix", 400)]
    counts = sorted((prefixes.count(one) for one in set(prefixes)), reverse=True)
    assert len(counts) == 8
    assert counts[0] > 3 * counts[-1]
    assert len({session.turns[0].prompt for session in first("shared-prefix", 400)}) == 400


def test_conversations_have_pauses_and_begin_alike() -> None:
    conversations = first("chat", 30)
    assert {len(conversation.turns) for conversation in conversations} == {2, 3, 4, 5}
    assert len({conversation.turns[0].prompt[:128] for conversation in conversations}) == 1
    assert all(turn.think_s > 0 for conversation in conversations for turn in conversation.turns[1:])
    assert all(conversation.turns[0].think_s == 0 for conversation in conversations)


def test_clients_go_away_in_the_share_asked_for() -> None:
    turns = [session.turns[0] for session in first("mixed", 400, abandon_share=0.25)]
    leaving = [turn for turn in turns if turn.abandon_after is not None]
    assert 70 <= len(leaving) <= 130
    assert all(1 <= (turn.abandon_after or 0) <= turn.output_tokens for turn in leaving)


def test_the_peers_workload_is_the_one_they_were_measured_with() -> None:
    """Lengths and ids as the peers' own scripts make them: 64 requests, 9,440 tokens in, 8,752 out."""
    requests = [session.turns[0] for session in PeersWorkload(shape="mixed", repetition=2).sessions()]
    assert [(len(one.prompt), one.output_tokens) for one in requests[:4]] == [
        (32, 16),
        (69, 69),
        (106, 122),
        (143, 175),
    ]
    assert len(requests) == 64
    source = random.Random(1_000_003 * 2 + 7919 * 3 + 143)
    assert requests[3].prompt == tuple(source.randrange(1000, 48000) for _ in range(143))
    (single,) = PeersWorkload(shape="single").sessions()
    assert (len(single.turns[0].prompt), single.turns[0].output_tokens) == (128, 128)
    (prefill,) = PeersWorkload(shape="prefill").sessions()
    assert (len(prefill.turns[0].prompt), prefill.turns[0].output_tokens) == (1024, 1)


def test_azures_trace(tmp_path: Path) -> None:
    path = tmp_path / "code.csv"
    path.write_text(AZURE)
    sessions = first(str(path))
    assert [session.at_s for session in sessions] == pytest.approx([0.0, 1.5])
    assert [(len(s.turns[0].prompt), s.turns[0].output_tokens) for s in sessions] == [(48, 10), (31, 8)]


def test_mooncakes_trace_shares_its_blocks_and_leaves_out_what_cannot_fit(tmp_path: Path) -> None:
    path = tmp_path / "conversation.jsonl"
    path.write_text(MOONCAKE)
    one, other = first(str(path), max_model_len=8192)
    assert (one.at_s, other.at_s) == (0.0, 1.5)
    assert len(one.turns[0].prompt) == 1100
    assert one.turns[0].prompt[:1024] == other.turns[0].prompt[:1024]
    assert one.turns[0].prompt[1024:1030] != other.turns[0].prompt[1024:]
    workload = find_workload(str(path), WorkloadOptions(max_model_len=8192))
    assert workload.describe()["left_out"] == 1
    scaled = first(str(path), length_scale=0.5, max_model_len=8192)
    assert [len(session.turns[0].prompt) for session in scaled] == [550, 515, 4500]
    assert scaled[0].turns[0].prompt[:512] == scaled[1].turns[0].prompt[:512]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "TIMESTAMP,Context\n2023-11-16 18:17:03,5\n", "needs the columns"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "no request in it"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,5,5\n", "line 2"),
        ("a.jsonl", '{"timestamp": 1}\n', "line 1"),
        ("a.jsonl", '{"timestamp": 1, "input_length": -1, "output_length": 1}\n', "line 1"),
        ("a.jsonl", "not json\n", "line 1"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_by_its_place(tmp_path: Path, name: str, content: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(WorkloadError, match=message):
        first(str(path))


@pytest.mark.parametrize("name", ["peers-mixed", "peers-single", "peers-prefill", "noisy-neighbour", "trace.csv"])
@pytest.mark.parametrize("option", ["prompt", "output"])
def test_lengths_are_refused_where_they_would_mean_nothing(name: str, option: str) -> None:
    with pytest.raises(WorkloadError, match=f"{name}: takes no --prompt-tokens"):
        first(name, 1, **{option: LengthRange(1, 2)})


def test_an_unknown_workload_is_refused_with_those_that_exist() -> None:
    with pytest.raises(WorkloadError, match=r"mixed.*traces by path"):
        first("mixd")
    with pytest.raises(WorkloadError, match="No such file"):
        first("nowhere.csv")
