"""A tokenizer from a transformers directory: tokenizer.json as it is, and what the files beside it say.

Only the `tokenizers` library reads tokenizer.json; this module looks at how its strings stand for bytes, what it puts
around a prompt, which of its tokens are control tokens, and where generation ends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import tokenizers

from forerun.errors import FileFormatError, UnsupportedModelError
from forerun.models.tokenizer_parts import TokenizerParts, check_id, guard_normalizer, unique

SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def read_directory_tokenizer(directory: Path) -> TokenizerParts:
    """Raises FileFormatError for missing or damaged files, UnsupportedModelError for tokenizers whose strings do not
    stand for bytes in a known way."""
    path = directory / "tokenizer.json"
    document = _read_json(path)
    if document is None:
        raise FileFormatError(
            f"{directory} has no tokenizer.json",
            "only the fast tokenizers of transformers are served",
            "make one: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)",
        )
    config = _read_json(directory / "tokenizer_config.json") or {}
    style, strips_space = _style(document, path)
    backend = _backend(document, path)
    by_id = {index: token for token, index in backend.get_vocab(with_added_tokens=True).items()}
    ids = {token: index for index, token in by_id.items()}
    size = max(by_id, default=-1) + 1
    if size == 0:
        raise FileFormatError(f"{path} has an empty vocabulary")
    added = backend.get_added_tokens_decoder()
    texts = {name: _text(config.get(name)) for name in SPECIAL_NAMES}
    special_tokens = {name: text for name, text in texts.items() if text is not None}
    bos_id, eos_id = ids.get(special_tokens.get("bos_token", "")), ids.get(special_tokens.get("eos_token", ""))
    prefix, suffix = _around(backend)
    return TokenizerParts(
        backend=backend,
        style=style,
        vocabulary_size=size,
        added_ids=frozenset(added),
        control_ids=frozenset(index for index, token in added.items() if token.special),
        bos_id=bos_id,
        eos_ids=unique([eos_id, *_generation_ends(directory, size)]),
        prefix=prefix,
        suffix=suffix,
        strips_space=strips_space,
        source="transformers",
        chat_template=_chat_template(directory, config),
        special_tokens=special_tokens,
    )


def _read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file, None if there is no such file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise FileFormatError(f"{path} cannot be read as JSON: {error}", "", "fetch the file again") from error
    if not isinstance(value, dict):
        raise FileFormatError(f"{path} holds no JSON object", "", "fetch the file again")
    return value


def _style(document: Mapping[str, Any], path: Path) -> tuple[Literal["byte-level", "sentencepiece"], bool]:
    """How strings stand for bytes, and whether the first space of a text is not its own: read off the decoder."""
    decoder = document.get("decoder") or {}
    steps = decoder.get("decoders", []) if decoder.get("type") == "Sequence" else [decoder]
    kinds = {step.get("type"): step for step in steps if isinstance(step, dict)}
    if "ByteLevel" in kinds:
        return "byte-level", False
    if "Metaspace" in kinds:
        metaspace = kinds["Metaspace"]
        scheme = metaspace.get("prepend_scheme", "always" if metaspace.get("add_prefix_space", True) else "never")
        return "sentencepiece", scheme != "never"
    if "ByteFallback" in kinds or (kinds.get("Replace") or {}).get("pattern") == {"String": "▁"}:
        return "sentencepiece", (kinds.get("Strip") or {}).get("start", 0) > 0
    raise UnsupportedModelError(
        f"the decoder {decoder.get('type')!r} of {path} is not served",
        "served are ByteLevel, Metaspace and SentencePiece's with byte fallback",
    )


def _backend(document: dict[str, Any], path: Path) -> tokenizers.Tokenizer:
    """The tokenizer without truncation or padding, and with the normaliser that drops GUARD.

    A control token that is looked for after normalisation would come back to life there; where normalising does not
    change its text it can be looked for before, with the same result.
    """
    try:
        backend = tokenizers.Tokenizer.from_str(json.dumps(document))
        for token in document.get("added_tokens", []):
            late = token.get("special") and token.get("normalized")
            if (
                late
                and backend.normalizer is not None
                and backend.normalizer.normalize_str(token["content"]) != token["content"]
            ):
                continue
            if late:
                token["normalized"] = False
        backend = tokenizers.Tokenizer.from_str(json.dumps(document))
    except Exception as error:  # the library raises bare Exception
        raise FileFormatError(f"{path} is no usable tokenizer: {error}", "", "fetch the file again") from error
    backend.normalizer = guard_normalizer(backend.normalizer)
    backend.no_truncation()
    backend.no_padding()
    return backend


def _around(backend: tokenizers.Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that the post-processor puts before and after a text, seen on a probe."""
    bare, whole = (backend.encode("a", add_special_tokens=special).ids for special in (False, True))
    for start in range(len(whole) - len(bare) + 1):
        if whole[start : start + len(bare)] == bare:
            return tuple(whole[:start]), tuple(whole[start + len(bare) :])
    return (), ()


def _text(token: Any) -> str | None:
    """A special token's text: given plainly, or as the content of an object."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) and text else None


def _generation_ends(directory: Path, size: int) -> list[int]:
    """The ids at which generation ends: generation_config.json's, else config.json's."""
    for name in ("generation_config.json", "config.json"):
        value = (_read_json(directory / name) or {}).get("eos_token_id")
        if value is not None:
            values = value if isinstance(value, list) else [value]
            ids = [check_id(one, "eos_token_id", 1 << 32, str(directory / name)) for one in values]
            return [one for one in ids if one is not None and one < size]
    return []


def _chat_template(directory: Path, config: Mapping[str, Any]) -> str | None:
    """chat_template.jinja, else the one in tokenizer_config.json; of several named ones the default."""
    path = directory / "chat_template.jinja"
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{path} cannot be read: {error}") from error
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {one.get("name"): one.get("template") for one in template if isinstance(one, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None
