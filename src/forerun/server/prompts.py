"""From what a request says to token ids: prompts, texts with a hole, conversations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from forerun.llm import LLM, Prompt
from forerun.server.errors import ApiError
from forerun.server.messages import for_template
from forerun.server.reasoning import CLOSE, OPEN
from forerun.server.requests import ChatRequest, CompletionRequest, TokenizeRequest
from forerun.server.tools import ToolWish

if TYPE_CHECKING:
    from forerun.models.tokenizer import Tokenizer

INFILLING = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<|fim▁begin|>", "<|fim▁hole|>", "<|fim▁end|>"),
    ("<PRE>", "<SUF>", "<MID>"),
)
"""Control tokens of models that fill in the middle: what comes before the prefix, the suffix and the middle."""


def prompts_of(llm: LLM, request: CompletionRequest) -> list[Prompt]:
    """Each prompt of a completion, as text or token ids."""
    given: Any = request.prompt
    if isinstance(given, str) or (given and isinstance(given[0], int)):
        given = [given]
    if not given:
        raise ApiError(400, "prompt: there is none", param="prompt")
    if request.suffix:
        return [_infilling(llm, prompt, request.suffix) for prompt in given]
    return list(given)


def _infilling(llm: LLM, prompt: Prompt, suffix: str) -> list[int]:
    """The tokens of a text with a hole in it, in the way its model was trained on."""
    if not isinstance(prompt, str):
        raise ApiError(400, "suffix: needs prompts of text", param="suffix")
    tokenizer = need_tokenizer(llm)
    known = {tokenizer.tokens[token] for token in tokenizer.parts.added_ids}
    for before, hole, after in INFILLING:
        if {before, hole, after} <= known:
            parts = ((before, True), (prompt, False), (hole, True), (suffix, False), (after, True))
            ids = [
                token
                for text, is_special in parts
                for token in tokenizer.encode(text, add_special=False, parse_special=is_special)
            ]
            first = tokenizer.encode("", add_special=True)[:1]  # a beginning of text, if the model wants one
            return [*first, *ids] if first == [tokenizer.bos_id] else ids
    raise ApiError(
        400, "suffix: this model has no tokens for filling in the middle. Put all of the text into the prompt",
        param="suffix", code="unsupported_parameter",
    )  # fmt: skip


class Conversation(NamedTuple):
    """A conversation as token ids, whether they leave the model in the middle of its thoughts, and whether the model
    and the request let its answer begin with thoughts."""

    ids: list[int]
    is_thinking: bool
    may_think: bool


def conversation(llm: LLM, request: ChatRequest, wish: ToolWish) -> Conversation:
    """What the model's template makes of the messages."""
    tokenizer = need_tokenizer(llm)
    template = dict(request.chat_template_kwargs or {})
    for name in ("self", "messages", "tools", "parse_special"):
        if name in template:
            place = f"chat_template_kwargs.{name}"
            raise ApiError(400, f"{place}: cannot be set here", param=place)
    if wish.tools:
        template["tools"] = [tool.model_dump(exclude_none=True) for tool in wish.tools]
    if request.reasoning_effort is not None:
        template["reasoning_effort"] = request.reasoning_effort
    messages = for_template(request.messages)
    ids = list(tokenizer.encode_chat(messages, **template))
    tail = tokenizer.decode(ids[-8:], skip_special=False, continues=True)
    return Conversation(ids, tail.rstrip().endswith(OPEN), _may_think(tokenizer, template, tail.rstrip()))


def _may_think(tokenizer: Tokenizer, template: Mapping[str, Any], tail: str) -> bool:
    """Whether thoughts may come first: where the prompt has opened them, or its template knows of them and the prompt
    has not closed them; never where the request says no."""
    if template.get("enable_thinking") is False or template.get("thinking") is False:
        return False
    if template.get("reasoning_effort") == "none" or tail.endswith(CLOSE):
        return False
    return tail.endswith(OPEN) or OPEN in (tokenizer.chat_template or "")


def tokens_of(llm: LLM, request: TokenizeRequest) -> list[int]:
    """The token ids of a text or of messages."""
    tokenizer = need_tokenizer(llm)
    if request.messages is not None:
        return list(tokenizer.encode_chat(for_template(request.messages)))
    return list(tokenizer.encode(request.prompt or "", add_special=request.add_special_tokens))


def text_of(llm: LLM, tokens: Sequence[int]) -> str:
    """The text of token ids, control tokens included."""
    tokenizer = need_tokenizer(llm)
    unknown = next((token for token in tokens if not 0 <= token < tokenizer.vocabulary_size), None)
    if unknown is not None:
        raise ApiError(400, f"tokens: {unknown} is no token id", param="tokens")
    return tokenizer.decode(tokens, skip_special=False, continues=True)


def need_tokenizer(llm: LLM) -> Tokenizer:
    """The tokenizer. ApiError 400 where a model has none."""
    if llm.tokenizer is None:
        raise ApiError(400, "this model has no tokenizer, so text means nothing to it; give token ids")
    return llm.tokenizer
