"""The requests of a run: a seeded catalogue in which every feature that must survive a break takes part."""

import random
from collections.abc import Sequence

import msgspec

from chairlift.client import Completion, GenerateOptions, Prompt

_SUBJECTS = (
    "the history of lighthouses", "how bread rises", "a village on a river", "why the sea is salt", "two old friends",
    "a train through the mountains", "the colours of autumn", "an honest clockmaker", "how to repair a bicycle",
    "the first snow", "a map of the moon", "learning to swim",
)  # fmt: skip
_OPENINGS = ("Here is a short text about {}.", "Tell me about {}:", "Once upon a time, {}", "A list about {}:\n1.")
STREAM_TIMEOUT_S = 240.0
"""Deadline of a request: far beyond any recovery, so that a stream that stands still is found."""
_STOP_CHARACTERS = 14
"""Of a stop string: several tokens long, so that a break may fall into its middle."""


class Job(msgspec.Struct, frozen=True):
    """A request that can be asked any number of times."""

    name: str
    prompt: Prompt
    options: GenerateOptions


def make_catalogue(seed: int, size: int) -> list[Job]:
    """`size` jobs that take turns in what they ask for."""
    chance = random.Random(seed)
    kinds = list(_KINDS)
    return [_job(chance, number, kinds[number % len(kinds)]) for number in range(size)]


def with_stop_strings(jobs: Sequence[Job], outputs: Sequence[Completion]) -> list[Job]:
    """Some of `jobs`, each cut short by a stop string out of its own undisturbed output."""
    found = []
    for job, output in zip(jobs, outputs, strict=True):
        text = output.choices[0].text
        at = len(text) * 3 // 5
        stop = text[at : at + _STOP_CHARACTERS]
        if job.name.startswith(("greedy", "together", "seeded")) and len(stop) == _STOP_CHARACTERS:
            options = GenerateOptions(**{**job.options, "stop": stop})
            found.append(Job(f"stop of {job.name}", job.prompt, options))
    return found


_KINDS: dict[str, GenerateOptions] = {
    "greedy": {"temperature": 0.0},
    "together": {"temperature": 0.8, "n": 2, "repetition_penalty": 1.1, "frequency_penalty": 0.2, "logprobs": 1},
    "seeded": {"temperature": 0.8, "top_p": 0.95},
    "choices": {"temperature": 0.9, "n": 2, "top_k": 40},
    "penalties": {"temperature": 0.7, "repetition_penalty": 1.2, "presence_penalty": 0.4, "frequency_penalty": 0.3},
    "logprobs": {"temperature": 0.6, "logprobs": 2},
    "long": {"temperature": 0.0},
    "chat": {"temperature": 0.5, "min_p": 0.05},
    "biased": {"temperature": 0.7, "logit_bias": {260: -2.0, 281: 1.5}, "min_tokens": 20},
}


def _job(chance: random.Random, number: int, kind: str) -> Job:
    text = chance.choice(_OPENINGS).format(chance.choice(_SUBJECTS)) + f" ({number})"
    if kind == "long":
        text = " ".join(f"{subject}, {text}" for subject in _SUBJECTS * 2)
    prompt: Prompt = [{"role": "user", "content": text}] if kind == "chat" else text
    options = GenerateOptions(
        **_KINDS[kind],
        seed=chance.randrange(1 << 30),
        max_tokens=chance.randrange(40, 140),
        token_ids=True,
        timeout=STREAM_TIMEOUT_S,
        # Ends by length mostly, so that streams live long enough to be broken.
        ignore_eos=kind != "chat",
    )
    return Job(f"{kind} {number}", prompt, options)
