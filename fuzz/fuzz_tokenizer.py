"""Tokenizers and chat templates of GGUF files: metadata edited, then text through them and back.

python fuzz/fuzz_tokenizer.py [corpus folder] [libFuzzer options]; `make fuzz` builds what it needs.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import atheris

with atheris.instrument_imports(include=["forerun"]):
    from forerun.models import gguf_tokenizer, template_sandbox
    from forerun.models.tokenizer import load_tokenizer

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.models.tiny_gguf import write_tiny_gguf

from fuzz import common, edits

KEYS = (b"tokenizer.",)
WORDS = """
    tokenizer.ggml.model tokenizer.ggml.pre tokenizer.ggml.tokens tokenizer.ggml.scores tokenizer.ggml.token_type
    tokenizer.ggml.merges tokenizer.ggml.bos_token_id tokenizer.ggml.eot_token_id tokenizer.ggml.add_bos_token
    tokenizer.ggml.add_eos_token tokenizer.ggml.add_space_prefix tokenizer.ggml.unknown_token_id tokenizer.chat_template
    gpt2 llama bert qwen2 llama-bpe gpt-2 deepseek-llm default falcon starcoder tekken <|im_end|> </s> <unk> <0x41>
    <0xFF> <0x100> [PAD5] [PAD299] <|return|> <|call|> <|end|> aĠb ▁ é ((( [
"""
TEXTS = (*(w.encode() for w in WORDS.split()), b"", b" ", b"  ", b"a b", b" a", b"a ", b"\n", b"\0", b"x" * 5000)
SNIPPETS = tuple(
    """{{ messages }}~{% for m in messages %}~{% endfor %}~{{ m.content }}~{{ m['role'] }}~{{ bos_token }}~{{ f(1) }}
{#~#}~{% if add_generation_prompt %}~{% endif %}~{% else %}~{{ x }}~{% set x = [1] %}~{% set x = x + x %}
{{ ns.a }}~{{ 1 / 0 }}~{% set ns = namespace(a=1) %}~{% set ns.a = ns.a * 1000 %}~{{ 'a' * 100000 }}
{{ x | tojson }}~{% macro f(n) %}~{{ tools }}~{% for i in range(1000) %}~{% endmacro %}
{{ raise_exception('no') }}~{{ strftime_now('%Y') }}~{{ x | join(',') }}~text~{{ messages[0].content | upper }}
{{ '%s' | format(x) }}~{{ '{0}'.format(x) }}~{{ messages | length }}~{{ x.__class__ }}
{{ messages | map(attribute='role') | list }}~{% generation %}~{% endgeneration %}~{%- break %}~{{ 2 ** 100 }}
{% raw %}~{{ messages | groupby('role') }}~{{ x | batch(3) | list }}~{{ [x, x] | sum(start=[]) }}~{% endraw %}
{{ x[::-1] }}~{{ dict(a=1) }}~{% set x = messages[0]['content'] %}~{{ x.split('a') }}~{{ x | trim }}
{{ x.replace('', 'aaaa') }}~{{ x | indent(5) }}~{{ '<|im_start|>' }}~{{ cycler('a','b').next() }}
{{ lipsum(3) }}~{{ x | wordwrap(1) }}~{{ x | int }}~{% filter upper %}~{% endfilter %}~{% call f(1) %}
{% endcall %}""".replace("\n", "~").split("~")
)
"""What templates are made of."""
template_sandbox.MAX_SECONDS = 1.0  # what a template may take is no hang
gguf_tokenizer.cached = lambda file, build: build()  # nothing is kept on the disk


def bases() -> list[edits.Parts]:
    """Byte-level BPE and SentencePiece."""
    with tempfile.TemporaryDirectory() as folder:
        settings: tuple[dict[str, Any], ...] = (
            {"num_tokens": 300},
            {"num_tokens": 400, "padding": 3, "metadata": {"tokenizer.ggml.pre": "llama-bpe"}},
            {"kind": "llama", "architecture": "llama", "num_tokens": 380},
        )
        return [
            edits.parse(write_tiny_gguf(Path(folder, f"{i}.gguf"), vocabulary_only=True, **one))
            for i, one in enumerate(settings)
        ]


BASES = bases()
PATH = common.scratch("t.gguf")


def one(data: bytes) -> None:
    """Edit a base as `data` says, read its tokenizer, and use it."""
    take = atheris.FuzzedDataProvider(data)
    parts = edits.copy(BASES[take.ConsumeIntInRange(0, len(BASES) - 1)])
    for _ in range(take.ConsumeIntInRange(0, 3)):
        edits.edit(parts, take, TEXTS, KEYS)
    count = take.ConsumeIntInRange(0, 12)
    if count:
        template = "".join(SNIPPETS[take.ConsumeIntInRange(0, len(SNIPPETS) - 1)] for _ in range(count))
        template += take.ConsumeUnicodeNoSurrogates(take.ConsumeIntInRange(0, 30))
        text = template.encode("utf-8", "replace")
        kept = [key for key in parts.keys if key[0] != b"tokenizer.chat_template"]
        parts.keys = [*kept, (b"tokenizer.chat_template", edits.STRING, len(text).to_bytes(8, "little") + text)]
    PATH.write_bytes(parts.write())
    tokenizer = load_tokenizer(PATH)
    any_text = take.ConsumeUnicode if take.ConsumeIntInRange(0, 9) == 0 else take.ConsumeUnicodeNoSurrogates
    text = any_text(take.ConsumeIntInRange(0, 200))
    for special in (True, False):
        use(tokenizer, tokenizer.encode(text, add_special=special, parse_special=special))
    use(tokenizer, [take.ConsumeIntInRange(0, tokenizer.vocabulary_size - 1) for _ in range(20)])
    content = any_text(take.ConsumeIntInRange(0, 40))
    messages = [{"role": "user", "content": content}, {"role": "assistant", "content": "<|im_end|>yes"}]
    if tokenizer.chat_template is not None:
        tokenizer.encode_chat(messages, tools=[{"name": content}])


def use(tokenizer: Any, ids: list[int]) -> None:
    """Ids are real, and every way back to text gives a text."""
    assert all(0 <= i < tokenizer.vocabulary_size for i in ids)
    whole = tokenizer.decode(ids)
    detokenizer = tokenizer.detokenizer()
    pieces = "".join(detokenizer.add(i) for i in ids) + detokenizer.finish()
    assert whole == pieces, (whole, pieces)


if __name__ == "__main__":
    common.main(one, "tokenizer")
