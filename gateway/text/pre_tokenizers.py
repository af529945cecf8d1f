"""How a byte-level vocabulary cuts text before merging: the names that GGUF files use, and what they stand for.

A GGUF file names its rule in ``tokenizer.ggml.pre``; the rule itself stands in the original model's tokenizer.json.
A wrong rule still gives ids, only worse ones, so a name that is not in this table is refused.
"""

import msgspec
from tokenizers import Regex, pre_tokenizers

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_REST_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = rf"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*|\p{{N}}|{_REST_SLASH}"
_GPT4O = (
    rf"{_LEAD}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_LEAD}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}|{_REST_SLASH}"
)


class PreTokenizerRule(msgspec.Struct, frozen=True):
    """One way to cut text."""

    patterns: tuple[str, ...]
    """Applied one after another; what a pattern matches and what lies between its matches become pieces."""
    ignore_merges: bool = False
    """A piece that is a token as a whole is taken as it is, without merging."""
    add_bos: bool = False
    """Whether BOS is added where the file does not say."""
    nfc: bool = False
    """Text is brought to Unicode's composed form first."""


_LLAMA3_RULE = PreTokenizerRule((_LLAMA3,), ignore_merges=True, add_bos=True)
_QWEN2_RULE = PreTokenizerRule((_QWEN2,), nfc=True)
_DIGITS_RULE = PreTokenizerRule((r"\p{N}", _GPT2))
_GPT2_RULE = PreTokenizerRule((_GPT2,))

PRE_TOKENIZERS: dict[str, PreTokenizerRule] = {
    "default": PreTokenizerRule((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": _GPT2_RULE,
    "olmo": _GPT2_RULE,
    "smollm": _DIGITS_RULE,
    "starcoder": _DIGITS_RULE,
    "refact": _DIGITS_RULE,
    "command-r": _DIGITS_RULE,
    "minerva-7b": _DIGITS_RULE,
    "llama-bpe": _LLAMA3_RULE,
    "llama3": _LLAMA3_RULE,
    "llama-v3": _LLAMA3_RULE,
    "falcon3": _LLAMA3_RULE,
    "pixtral": _LLAMA3_RULE,
    "dbrx": PreTokenizerRule((_LLAMA3,)),
    "smaug-bpe": PreTokenizerRule((_LLAMA3,)),
    "qwen2": _QWEN2_RULE,
    "deepseek-r1-qwen": _QWEN2_RULE,
    "stablelm2": PreTokenizerRule((_QWEN2,)),
    "tekken": PreTokenizerRule((_TEKKEN,), ignore_merges=True, add_bos=True),
    "gpt-4o": PreTokenizerRule((_GPT4O,)),
    "llama4": PreTokenizerRule((_GPT4O,)),
    "deepseek-coder": PreTokenizerRule(
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"),
    ),
}


def build_pre_tokenizer(rule: PreTokenizerRule) -> pre_tokenizers.PreTokenizer:
    """Cuts by `rule`'s patterns, then spells bytes in GPT-2's byte alphabet (Radford et al., 2019)."""
    steps: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in rule.patterns
    ]
    return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
