"""Keeps text that merely spells a special token from becoming that token.

A chat message whose text is ``<|im_end|>`` must reach the model as those nine characters: as a token it would let a
user end their own turn and speak as the system. The template's own special tokens must stay tokens, and templates look
into messages (they trim, split and compare), so neither escaping after rendering nor encoding messages apart would do.
Therefore:

1. `SpecialTextGuard.mark` puts joints between the characters of each special token that a user's string spells, before
   the template sees it: pairs of characters that no tokenizer knows, so that the string spells the token no more.
2. The tokenizer's normaliser, which runs after special tokens have been recognised, removes the joints. What is left is
   the user's text to the letter, encoded in its context as ordinary text.
3. Added tokens that are not special but that the template writes too (``<think>``) may be looked for by the template in
   the messages: these are only wrapped in marks, and `SpecialTextGuard.seal` joints them after rendering.

Marks and joints are pairs of Unicode noncharacters. A user's own U+FDD0 is doubled into a pair of its own, so no text
can forge a mark and none is lost. A token of one single character cannot be taken apart and stays a token.

After ``split_special_tokens`` of the Hugging Face tokenizers, and the marks of transformers' chat utilities.
"""

import re
from collections.abc import Iterable

from tokenizers import Tokenizer, normalizers

_ESCAPE = "\ufdd0"
_JOINT = "\ufdd0\ufdd1"
_LITERAL = "\ufdd0\ufdd2"
_OPEN = "\ufdd0\ufdd3"
_CLOSE = "\ufdd0\ufdd4"
_LONE_MARK = re.compile(f"{_OPEN}|{_CLOSE}")
_NEVER = r"(?!)"


def remove_joints(tokenizer: Tokenizer) -> None:
    """Makes `tokenizer` drop joints, and restore escaped literals, after it has recognised special tokens."""
    steps: list[normalizers.Normalizer] = [normalizers.Replace(_JOINT, ""), normalizers.Replace(_LITERAL, _ESCAPE)]
    if tokenizer.normalizer is not None:
        steps.append(tokenizer.normalizer)
    tokenizer.normalizer = normalizers.Sequence(steps)


def escape_literals(text: str) -> str:
    """`text` for a tokenizer that removes joints, so that it encodes every character of it."""
    return text.replace(_ESCAPE, _LITERAL) if _ESCAPE in text else text


class SpecialTextGuard:
    """Guards against two sets of spellings: of special tokens, and of tokens that only the template may write."""

    def __init__(self, special: Iterable[str], written: Iterable[str] = ()) -> None:
        self._written = frozenset(written) - {""}
        spellings = self._written.union(special) - {""}
        self._spelled = _any_of(spellings)
        self._marked = re.compile(f"{_OPEN}({_any_of(self._written).pattern}){_CLOSE}")

    def mark(self, text: str) -> str:
        """A user's string as the template may see it."""
        return self._spelled.sub(self._guard, escape_literals(text))

    def seal(self, rendered: str) -> str:
        """A rendered chat as the tokenizer may see it. Marks that the template has torn apart still break what they
        stand in."""
        if _ESCAPE not in rendered:
            return rendered
        return _LONE_MARK.sub(_JOINT, self._marked.sub(lambda match: _joint(match[1]), rendered))

    def _guard(self, match: re.Match[str]) -> str:
        return f"{_OPEN}{match[0]}{_CLOSE}" if match[0] in self._written else _joint(match[0])


def _any_of(spellings: Iterable[str]) -> re.Pattern[str]:
    longest_first = sorted(spellings, key=lambda spelling: (-len(spelling), spelling))
    return re.compile("|".join(map(re.escape, longest_first)) or _NEVER)


def _joint(spelling: str) -> str:
    """Joints around it too: what overlaps it may be another token's spelling."""
    return _JOINT + _JOINT.join(spelling) + _JOINT
