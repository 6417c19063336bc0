r"""How each `tokenizer.ggml.pre` splits text before byte-level BPE.

A GGUF file names its pre-tokenizer and leaves the rule to the reader. This table gives the rule as the model's own
tokenizer.json states it: a list of regular expressions, each cutting the pieces of the one before it into matches and
what lies between them. Every entry was compared with llama.cpp (tests/models/tools/llamacpp_fixtures.py); where
llama.cpp only approximates a model's rule (case and combining marks outside ASCII in the o200k family, wide spaces in
DeepSeek's) the model's own is kept. A name that is not here is refused: a wrong rule still yields plausible tokens,
which is worse than none. No normaliser is applied, as in llama.cpp, so text survives encoding and decoding unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forerun.errors import UnsupportedModelError


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """`patterns` in the order they are applied. `ignore_merges`: a piece that is itself a token is taken whole.
    `add_bos`: what holds when the file does not say `tokenizer.ggml.add_bos_token`."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


# -- the regular expressions -------------------------------------------------------------------------------------------

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
ONE_DIGIT = r"\p{N}"
THREE_DIGITS = r"[0-9][0-9][0-9]"
CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _cl100k(digits: str) -> str:
    """The family of cl100k_base; its members differ in how many digits make a piece."""
    return rf"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES}"


def _o200k(digits: str, suffix: str) -> str:
    """The family of o200k_base: words are cut where lower case is followed by upper case."""
    lead, upper, lower = r"[^\r\n\p{L}\p{N}]?", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    words = f"{lead}{upper}*{lower}+{suffix}|{lead}{upper}+{lower}*{suffix}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}"


LLAMA3 = _cl100k(r"\p{N}{1,3}")
QWEN2 = _cl100k(r"\p{N}")
QWEN35 = (
    rf"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{SPACES}"
)
GPT4O = _o200k(r"\p{N}{1,3}", CONTRACTION + "?")
TEKKEN = _o200k(r"\p{N}", "")
SEED_CODER = rf"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{SPACES}"
BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
HAN_KANA = r"[一-龥぀-ゟ゠-ヿ]+"
DEEPSEEK_V3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{SPACES}"
)
DEEPSEEK_LLM = (
    r"[\r\n]",
    r"\s?[\p{Lu}\p{Ll}\p{Lt}]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    r"[一-龥ࠀ-一가-퟿]+",
    r"\p{N}+",
)
DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", ONE_DIGIT)
FALCON_MARKS = r"[\p{P}$+<=>^~|`]+"
DEFAULT_MARKS = r"[\p{P}$+<=>^~|]+"


# -- the table -----------------------------------------------------------------------------------------------------

_GPT2 = PreTokenizer((GPT2,))
_STARCODER = PreTokenizer((ONE_DIGIT, GPT2))
_LLAMA3 = PreTokenizer((LLAMA3,), ignore_merges=True, add_bos=True)
_DBRX = PreTokenizer((LLAMA3,))
_QWEN2 = PreTokenizer((QWEN2,))
_GPT4O = PreTokenizer((GPT4O,))
_BLOOM = PreTokenizer((BLOOM,))
_DEEPSEEK_V3 = PreTokenizer((r"\p{N}{1,3}", HAN_KANA, DEEPSEEK_V3))
_BAILING = PreTokenizer((BAILING,))

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "default": PreTokenizer((DEFAULT_MARKS, GPT2, r"\p{N}+", THREE_DIGITS)),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling"), _GPT2),
    **dict.fromkeys(("gigachat", "a.x-4.0", "mellum", "exaone4"), _GPT2),
    **dict.fromkeys(("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"), _STARCODER),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "lfm2"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), _DBRX),
    **dict.fromkeys(("glm4", "glm5"), PreTokenizer((LLAMA3,), ignore_merges=True)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez", "grok-2"), _QWEN2),
    "qwen35": PreTokenizer((QWEN35,)),
    **dict.fromkeys(("gpt-4o", "llama4", "minimax-m2"), _GPT4O),
    "tekken": PreTokenizer((TEKKEN,), ignore_merges=True, add_bos=True),
    "seed-coder": PreTokenizer((SEED_CODER,)),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), _BAILING),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), _BLOOM),
    "viking": PreTokenizer((BLOOM, ONE_DIGIT)),
    "deepseek-llm": PreTokenizer(DEEPSEEK_LLM),
    "deepseek-coder": PreTokenizer(DEEPSEEK_CODER),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), _DEEPSEEK_V3),
    "falcon": PreTokenizer((FALCON_MARKS, GPT2, THREE_DIGITS)),
}


def pre_tokenizer(name: object, where: str) -> PreTokenizer:
    """The rule for `tokenizer.ggml.pre`; `where` (a file) is for the message.

    Raises UnsupportedModelError for a name that is not in the table, and for a file that gives none.
    """
    if isinstance(name, str) and name in PRE_TOKENIZERS:
        return PRE_TOKENIZERS[name]
    raise UnsupportedModelError(
        f"the pre-tokenizer {name!r} is not known" if name else "the file does not name its pre-tokenizer",
        f"tokenizer.ggml.pre of {where}; known are {', '.join(sorted(PRE_TOKENIZERS))}",
        "use the model's transformers directory (its tokenizer.json says the rule), or a newer conversion",
    )
