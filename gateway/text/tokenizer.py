"""Text to token ids and back, for one model.

Wraps a `tokenizers.Tokenizer` that a GGUF file or a Hugging Face folder gave. Encoding releases the GIL, so large texts
may be encoded in threads: `encode_batch` does, where `encode` holds it for the whole call (tokenizers 0.23), which for
a megabyte is seconds in which nothing else of the process runs.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from gateway.text.errors import ModelTextError
from gateway.text.special_text import SpecialTextGuard, escape_literals, remove_joints
from gateway.text.token_table import Spelling, TokenTable, build_token_table


class TextTokenizer:
    """One model's tokenizer. Takes `tokenizer` over and changes its normaliser."""

    def __init__(self, tokenizer: Tokenizer, spelling: Spelling, path: Path) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        remove_joints(tokenizer)
        self._tokenizer = tokenizer
        self._added = tokenizer.get_added_tokens_decoder()
        self.path = path
        """Where it came from, for messages."""
        self.table: TokenTable = build_token_table(tokenizer.get_vocab(), self._added, spelling)
        if not self.table.pieces:
            raise ModelTextError(path, "its tokenizer has no tokens")

    @property
    def vocab_size(self) -> int:
        """Ids that the tokenizer knows; the model may have more, which stand for nothing."""
        return len(self.table.pieces)

    def encode_prompt(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of a raw prompt: BOS and EOS as the model's configuration says; spelled special tokens become tokens.

        Whoever sends a raw prompt writes the model's format by hand, as in other servers' completion calls. Untrusted
        text belongs into chat messages.
        """
        return self._encode(escape_literals(text), add_special_tokens)

    def encode_rendered(self, sealed: str, *, add_special_tokens: bool = False) -> list[int]:
        """Ids of a rendered chat that `SpecialTextGuard.seal` has returned. Most templates write their own BOS."""
        return self._encode(sealed, add_special_tokens)

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return self._tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)[0].ids

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `ids`; ids that no token has add nothing, bytes that are no UTF-8 become U+FFFD."""
        pieces, special = self.table.pieces, self.table.special_ids
        size = len(pieces)
        kept = (i for i in ids if i < size and not (skip_special_tokens and i in special))
        text = b"".join([pieces[i] for i in kept]).decode("utf-8", "replace")
        return text[1:] if self.table.strips_leading_space and text.startswith(" ") else text

    def piece(self, token_id: int) -> bytes:
        """Bytes that the token stands for, special ones spelled out; empty for an id that no token has."""
        return self.table.pieces[token_id] if token_id < len(self.table.pieces) else b""

    def token_id(self, token: str) -> int | None:
        """Id of a token by its spelling in the vocabulary."""
        return self._tokenizer.token_to_id(token)

    def guards(self, template_literals: str) -> "ChatGuards":
        """What to guard in the messages of a chat whose template holds `template_literals`.

        Special tokens always. Tokens that were added but are not special (``<tool_response>``) where the template
        writes them itself, so that nobody but it can; the assistant's own turns may hold those (``<think>``).
        """
        special = [token.content for token in self._added.values() if token.special]
        written = [
            token.content
            for token in self._added.values()
            if not token.special and token.content in template_literals and not token.content.isspace()
        ]
        return ChatGuards(special, written)


class ChatGuards:
    """Marks the strings of one chat, role by role, and seals what the template made of them."""

    def __init__(self, special: Sequence[str], written_by_template: Sequence[str]) -> None:
        self._assistant = SpecialTextGuard(special)
        self._others = SpecialTextGuard(special, written_by_template)

    def mark(self, text: str, role: str) -> str:
        """A string of a message of that role, as the template may see it."""
        return (self._assistant if role == "assistant" else self._others).mark(text)

    def seal(self, rendered: str) -> str:
        """The rendered chat, as `TextTokenizer.encode_rendered` takes it."""
        return self._others.seal(rendered)
