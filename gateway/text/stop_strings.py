"""Finds any of several stop strings in text that arrives piece by piece.

Aho and Corasick's automaton (1975): one state a stream, constant time a character however many strings there are and
however they overlap. Which match wins: the one that is complete first; of several that are complete at the same
character the longest, so that nothing of any of them is left in the text.
"""

from collections.abc import Sequence


class StopAutomaton:
    """The stop strings of one request; shared by its choices, which keep a state (an int, 0 at first) each."""

    __slots__ = ("_fail", "_goto", "first_characters", "hold", "match")

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops` are not empty; O(total length)."""
        self._goto: list[dict[str, int]] = [{}]
        self._fail: list[int] = [0]
        self.match: list[str] = [""]
        """By state: the stop string that is complete here (the longest), or nothing."""
        self.hold: list[int] = [0]
        """By state: how many of the last characters may be the beginning of a stop string."""
        depths = [0]
        for stop in stops:
            self._add(stop, depths)
        self._link(depths)
        self.first_characters = frozenset(stop[0] for stop in stops)
        """A character outside of it leaves state 0 as it is."""

    def step(self, state: int, character: str) -> int:
        """The state after one more character."""
        goto, fail = self._goto, self._fail
        while (target := goto[state].get(character)) is None:
            if state == 0:
                return 0
            state = fail[state]
        return target

    def _add(self, stop: str, depths: list[int]) -> None:
        state = 0
        for character in stop:
            target = self._goto[state].get(character)
            if target is None:
                target = len(self._goto)
                self._goto[state][character] = target
                self._goto.append({})
                self._fail.append(0)
                self.match.append("")
                depths.append(depths[state] + 1)
            state = target
        self.match[state] = stop

    def _link(self, depths: list[int]) -> None:
        """Breadth first: where to go on when no string continues with the next character."""
        self.hold = [0] * len(depths)
        layer = list(self._goto[0].values())
        while layer:
            deeper = []
            for state in layer:
                shorter = self._fail[state]
                self.match[state] = self.match[state] or self.match[shorter]
                self.hold[state] = depths[state] if self._goto[state] else self.hold[shorter]
                for character, target in self._goto[state].items():
                    self._fail[target] = self.step(shorter, character) if state else 0
                    deeper.append(target)
            layer = deeper
