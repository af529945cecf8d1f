"""Workloads made from length distributions: the shapes in which batching gains much, little or nothing."""

import itertools
from collections.abc import Iterator

import msgspec

from deploy.bench.workload.lengths import LengthRange
from deploy.bench.workload.names import FLOODING_TENANT, QUIET_TENANT
from deploy.bench.workload.prompts import Purpose, TokenIds, random_stream
from deploy.bench.workload.request import BenchRequest, Session

SHORT_PROMPT = LengthRange(32, 128)
LONG_PROMPT = LengthRange(512, 1024)
SHORT_OUTPUT = LengthRange(8, 32)
LONG_OUTPUT = LengthRange(128, 256)


class RandomWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """Unrelated requests with lengths drawn from two ranges."""

    name: str
    ids: TokenIds
    prompt: LengthRange
    output: LengthRange
    abandon_share: float = 0.0
    """Share of requests whose client goes away somewhere in its output."""

    def describe(self) -> dict[str, str | int | float]:
        """Lengths and seed."""
        return {
            "prompt_tokens": str(self.prompt),
            "output_tokens": str(self.output),
            "seed": self.ids.seed,
            "abandon_share": self.abandon_share,
        }

    def sessions(self) -> Iterator[Session]:
        """Endless."""
        return (Session((self._request(number),)) for number in itertools.count())

    def _request(self, number: int) -> BenchRequest:
        random = random_stream(self.ids.seed, Purpose.SHAPE, number)
        prompt = self.ids.draw(Purpose.UNIQUE, number, self.prompt.draw(random))
        output = self.output.draw(random)
        is_abandoned = random.random() < self.abandon_share
        return BenchRequest(
            prompt=prompt,
            output_tokens=output,
            abandon_after=int(random.integers(1, output + 1)) if is_abandoned else None,
        )


class NoisyNeighbourWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """Two tenants: one floods with long requests, the other sends a short one now and then."""

    name: str
    ids: TokenIds
    flooding_prompt: LengthRange = LengthRange(128, 512)
    flooding_output: LengthRange = LengthRange(64, 192)
    quiet_prompt: LengthRange = SHORT_PROMPT
    quiet_output: LengthRange = SHORT_OUTPUT
    quiet_every: int = 8
    """One request of so many is the quiet tenant's."""

    def describe(self) -> dict[str, str | int | float]:
        """Lengths of both, the share, and seed."""
        return {
            "flooding_prompt_tokens": str(self.flooding_prompt),
            "flooding_output_tokens": str(self.flooding_output),
            "quiet_prompt_tokens": str(self.quiet_prompt),
            "quiet_output_tokens": str(self.quiet_output),
            "quiet_every": self.quiet_every,
            "seed": self.ids.seed,
        }

    def sessions(self) -> Iterator[Session]:
        """Endless; the quiet tenant's requests are spread evenly."""
        return (Session((self._request(number),)) for number in itertools.count())

    def _request(self, number: int) -> BenchRequest:
        random = random_stream(self.ids.seed, Purpose.SHAPE, number)
        is_quiet = number % self.quiet_every == self.quiet_every - 1
        prompt = (self.quiet_prompt if is_quiet else self.flooding_prompt).draw(random)
        output = (self.quiet_output if is_quiet else self.flooding_output).draw(random)
        return BenchRequest(
            prompt=self.ids.draw(Purpose.UNIQUE, number, prompt),
            output_tokens=output,
            tenant=QUIET_TENANT if is_quiet else FLOODING_TENANT,
        )


class SharedPrefixWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that begin with one of a few long prefixes, popular ones more often (Zipf, exponent 1)."""

    name: str
    ids: TokenIds
    num_prefixes: int = 8
    prefix: int = 512
    """Tokens of each prefix."""
    suffix: LengthRange = LengthRange(16, 96)
    output: LengthRange = LengthRange(16, 64)

    def describe(self) -> dict[str, str | int | float]:
        """Lengths, number of prefixes and seed."""
        return {
            "num_prefixes": self.num_prefixes,
            "prefix_tokens": self.prefix,
            "suffix_tokens": str(self.suffix),
            "output_tokens": str(self.output),
            "seed": self.ids.seed,
        }

    def sessions(self) -> Iterator[Session]:
        """Endless."""
        prefixes = [self.ids.draw(Purpose.SHARED, number, self.prefix) for number in range(self.num_prefixes)]
        weights = [1 / rank for rank in range(1, self.num_prefixes + 1)]
        shares = [weight / sum(weights) for weight in weights]
        for number in itertools.count():
            random = random_stream(self.ids.seed, Purpose.SHAPE, number)
            prefix = prefixes[int(random.choice(self.num_prefixes, p=shares))]
            suffix = self.ids.draw(Purpose.UNIQUE, number, self.suffix.draw(random))
            yield Session((BenchRequest(prompt=prefix + suffix, output_tokens=self.output.draw(random)),))


class ChatWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """Conversations: each turn sends all that was said before, and comes after a pause (exponential)."""

    name: str
    ids: TokenIds
    system: int = 128
    """Tokens that every conversation begins with."""
    turns: LengthRange = LengthRange(2, 5)
    message: LengthRange = LengthRange(16, 96)
    output: LengthRange = LengthRange(32, 128)
    think_mean_s: float = 1.0

    def describe(self) -> dict[str, str | int | float]:
        """Lengths, turns, pauses and seed."""
        return {
            "system_tokens": self.system,
            "turns": str(self.turns),
            "message_tokens": str(self.message),
            "output_tokens": str(self.output),
            "think_mean_s": self.think_mean_s,
            "seed": self.ids.seed,
        }

    def sessions(self) -> Iterator[Session]:
        """Endless."""
        system = self.ids.draw(Purpose.SHARED, 0, self.system)
        for number in itertools.count():
            random = random_stream(self.ids.seed, Purpose.SHAPE, number)
            lengths = [self.message.draw(random) for _ in range(self.turns.draw(random))]
            said = self.ids.draw(Purpose.UNIQUE, number, sum(lengths))
            turns: list[BenchRequest] = []
            for turn, (end, length) in enumerate(zip(itertools.accumulate(lengths), lengths, strict=True)):
                message = said[end - length : end]
                turns.append(
                    BenchRequest(
                        prompt=message if turn else system + message,
                        output_tokens=self.output.draw(random),
                        think_s=float(random.exponential(self.think_mean_s)) if turn else 0.0,
                    )
                )
            yield Session(tuple(turns))
