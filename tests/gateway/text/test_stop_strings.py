import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.text.stop_strings import StopAutomaton

_ALPHABET = "abé"
_STOPS = st.lists(st.text(_ALPHABET, min_size=1, max_size=4), min_size=1, max_size=5)


@given(stops=_STOPS, text=st.text(_ALPHABET + "x", max_size=30))
@settings(max_examples=300, deadline=None)
def test_state_tells_the_match_and_what_to_hold_at_every_character(stops: list[str], text: str) -> None:
    automaton = StopAutomaton(stops)
    state = 0
    for end in range(1, len(text) + 1):
        state = automaton.step(state, text[end - 1])
        seen = text[:end]
        assert automaton.match[state] == max((s for s in stops if seen.endswith(s)), key=len, default="")
        proper = {stop[:cut] for stop in stops for cut in range(1, len(stop))}
        assert automaton.hold[state] == max((len(p) for p in proper if seen.endswith(p)), default=0)


def test_a_long_repetitive_stop_string_costs_constant_time_a_character() -> None:
    """Naive matching of a repetitive text against a repetitive string is quadratic."""
    automaton = StopAutomaton(["a" * 1000 + "b"])
    state = 0
    for _ in range(20_000):
        state = automaton.step(state, "a")
    assert automaton.hold[state] == 1000
    assert automaton.match[automaton.step(state, "b")] == "a" * 1000 + "b"


@pytest.mark.parametrize("stops", [["a"], ["日本", "é"]])
def test_first_characters_are_those_that_leave_the_first_state(stops: list[str]) -> None:
    automaton = StopAutomaton(stops)
    for character in "a日本éx":
        assert (automaton.step(0, character) != 0) == (character in automaton.first_characters)
        assert (character in automaton.first_characters) == bool(re.match("|".join(s[0] for s in stops), character))
