"""A tokenizer from the metadata of a GGUF file, without transformers.

Two kinds are served. "gpt2": byte-level BPE, its merges in the file and its pre-tokenizer in pretokenizers.py.
"llama": SentencePiece BPE, where the file has a score for every token and the pair whose union scores highest is
merged first; as a merge list that is every way to cut a token into two tokens, best score first.

Control tokens are those the file marks so, and added tokens whose name says that they end a turn. llama.cpp goes
further and turns ordinary tokens into control tokens by their spelling, such as the "</s>" of HTML in Qwen's
vocabulary; the models were not trained that way, so this does not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from forerun.errors import FileFormatError, UnsupportedModelError
from forerun.models.gguf import GGUFFile
from forerun.models.pretokenizers import pre_tokenizer
from forerun.models.tokenizer_cache import cached
from forerun.models.tokenizer_parts import TokenizerParts, check_id, guard_normalizer, unique

UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 2, 3, 4, 5, 6
"""Values of tokenizer.ggml.token_type; 1 is an ordinary token."""

KINDS = ("gpt2", "llama")
PAD = re.compile(r"\[PAD(\d+)\]")
_END_NAMES = """
    <|im_end|> <|endoftext|> <|end_of_text|> <|eot_id|> <|eom_id|> <|end|> <|return|> <|call|> <end_of_turn> <turn|>
    <|END_OF_TURN_TOKEN|> <|endofturn|> [|endofturn|] <EOT> [EOT] <end_of_utterance> <｜end▁of▁sentence｜> <eos> </s>
"""
ENDS = frozenset(_END_NAMES.split())
"""Added tokens after which a model has finished its turn, whatever the file's own eos id says."""


def read_gguf_tokenizer(file: GGUFFile) -> TokenizerParts:
    """Raises UnsupportedModelError for other kinds and unknown pre-tokenizers, FileFormatError for metadata that is
    missing or contradicts itself."""
    metadata, where = file.metadata, str(file.path)
    kind = metadata.get("tokenizer.ggml.model")
    if kind is None:
        raise FileFormatError(f"{where} holds no tokenizer", "tokenizer.ggml.model is missing", "convert it again")
    if kind not in KINDS:
        raise UnsupportedModelError(
            f"tokenizers of kind {kind!r} are not served", f"in {where}; served are {', '.join(KINDS)}"
        )
    rule = pre_tokenizer(metadata.get("tokenizer.ggml.pre"), where) if kind == "gpt2" else None
    tokens = _array(metadata, "tokenizer.ggml.tokens", str, where)
    num_all = len(tokens)
    types = _array(metadata, "tokenizer.ggml.token_type", int, where, num_all, default=1)
    tokens = tokens[: _real_size(tokens, types)]
    _refuse_duplicates(tokens, where)
    added = [i for i, kind_of in enumerate(types[: len(tokens)]) if kind_of in (UNKNOWN, CONTROL, USER_DEFINED)]
    control = frozenset(i for i in added if types[i] != USER_DEFINED or tokens[i] in ENDS)

    def special(name: str) -> int | None:
        return check_id(metadata.get(key := f"tokenizer.ggml.{name}_token_id"), key, len(tokens), where)

    def flag(name: str, default: bool) -> bool:
        return bool(metadata.get(f"tokenizer.ggml.{name}", default))

    bos_id, eos_id = special("bos"), special("eos")
    named: dict[str, Any] = {"bos": bos_id, "eos": eos_id}
    for short, long in (("unk", "unknown"), ("sep", "seperator"), ("pad", "padding"), ("mask", "mask")):
        named[short] = metadata.get(f"tokenizer.ggml.{long}_token_id")
    add_bos = flag("add_bos_token", rule.add_bos if rule is not None else True)
    add_eos = flag("add_eos_token", False)
    add_space = kind == "llama" and flag("add_space_prefix", True)

    template = metadata.get("tokenizer.chat_template")

    def build() -> tokenizers.Tokenizer:
        if rule is not None:
            merges = _array(metadata, "tokenizer.ggml.merges", str, where)
            backend = _byte_level(tokens, merges, rule.patterns, rule.ignore_merges, where)
        else:
            scores = _array(metadata, "tokenizer.ggml.scores", float, where, num_all)
            backend = _sentencepiece(tokens, types, scores, add_space)
        strips = re.search(r"phi-?3", str(metadata.get("general.name", "")).lower()) is not None
        backend.add_tokens([_added(tokens[i], i in control, strips) for i in added if tokens[i]])
        return backend

    return TokenizerParts(
        backend=cached(file, build),
        style="byte-level" if rule is not None else "sentencepiece",
        vocabulary_size=len(tokens),
        added_ids=frozenset(added),
        control_ids=control,
        bos_id=bos_id,
        eos_ids=unique([eos_id, special("eot"), special("eom"), *_ends(tokens, control)]),
        prefix=unique([bos_id if add_bos else None]),
        suffix=unique([eos_id if add_eos else None]),
        strips_space=add_space,
        source="gguf",
        chat_template=template if isinstance(template, str) else None,
        special_tokens={
            f"{short}_token": tokens[i] for short, i in named.items() if isinstance(i, int) and 0 <= i < len(tokens)
        },
    )


def _array(
    metadata: Mapping[str, Any], key: str, kind: type, where: str, length: int | None = None, default: Any = None
) -> list[Any]:
    """A non-empty list of `kind`, at least `length` long; `default` repeated if the key may be missing."""
    values = metadata.get(key)
    if values is None and default is not None and length is not None:
        return [default] * length
    kinds = (int, float) if kind is float else (kind,)
    if not isinstance(values, list) or not values or type(values[0]) not in kinds:
        raise FileFormatError(f"{key} is no list of {kind.__name__}", f"in {where}", "convert the model again")
    if length is not None and len(values) < length:
        raise FileFormatError(f"{key} has {len(values)} entries for {length} tokens", f"in {where}")
    return values


def _real_size(tokens: Sequence[str], types: Sequence[int]) -> int:
    """How many leading ids are real: rows at the end are padding if unused or named [PADn] with their own id."""
    size = len(tokens)
    while size > 1:
        match = PAD.fullmatch(tokens[size - 1])
        if types[size - 1] != UNUSED and (match is None or int(match[1]) != size - 1):
            break
        size -= 1
    return size


def _refuse_duplicates(tokens: Sequence[str], where: str) -> None:
    first: dict[str, int] = {}
    for index, token in enumerate(tokens):
        if token and first.setdefault(token, index) != index:
            raise FileFormatError(f"ids {first[token]} and {index} are both the token {token!r}", f"in {where}")


def _ends(tokens: Sequence[str], control: frozenset[int]) -> list[int]:
    """Control tokens that end a turn by their name. In the harmony format <|end|> only ends a message."""
    found = {tokens[i]: i for i in sorted(control) if tokens[i] in ENDS}
    if {"<|return|>", "<|call|>"} <= found.keys():
        found.pop("<|end|>", None)
    return list(found.values())


def _added(token: str, is_control: bool, strips: bool) -> AddedToken:
    """Matched before normalisation. Phi-3's tokens swallow the white space after them, save three."""
    rstrip = strips and token not in ("<unk>", "<s>", "<|endoftext|>")
    return AddedToken(token, normalized=False, special=is_control, rstrip=rstrip)


def _byte_level(
    tokens: Sequence[str], merges: Sequence[str], patterns: Sequence[str], ignore_merges: bool, where: str
) -> tokenizers.Tokenizer:
    vocabulary = {token: index for index, token in enumerate(tokens) if token}
    pairs = []
    for merge in merges:
        cut = merge.find(" ", 1)
        left, right = merge[: max(cut, 0)], merge[cut + 1 :]
        if left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
            raise FileFormatError(f"the merge {merge!r} does not join two tokens into a third", f"in {where}")
        pairs.append((left, right))
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=ignore_merges))
    backend.normalizer = guard_normalizer()
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(
    tokens: Sequence[str], types: Sequence[int], scores: Sequence[float], add_space: bool
) -> tokenizers.Tokenizer:
    vocabulary = {token: index for index, token in enumerate(tokens) if token}
    joined = {t: i for t, i in vocabulary.items() if types[i] not in (UNKNOWN, CONTROL, BYTE)}
    order = sorted((token for token in joined if len(token) > 1), key=lambda token: -scores[joined[token]])
    pairs = [
        (token[:cut], token[cut:])
        for token in order
        for cut in range(1, len(token))
        if token[:cut] in joined and token[cut:] in joined
    ]
    unknown = next((token for token, i in vocabulary.items() if types[i] == UNKNOWN), None)
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, pairs, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    space = normalizers.Replace(" ", "▁")
    inner = normalizers.Sequence([normalizers.Prepend("▁"), space]) if add_space else space
    backend.normalizer = guard_normalizer(inner)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if add_space else steps)
    return backend
