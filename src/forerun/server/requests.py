"""What the OpenAI API can be asked, and what the rest of the world adds to it. Unknown fields are kept, to be warned of."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Number = Annotated[float, Field(strict=False)]


class _Request(BaseModel):
    model_config = ConfigDict(extra="allow", protected_namespaces=())

    @property
    def unknown(self) -> list[str]:
        """Names of fields that nothing here knows."""
        return sorted(self.model_extra or {})


class StreamOptions(_Request):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class Speculation(BaseModel):
    """An extension: whether and how this request is drafted for. It never changes the text."""

    model_config = ConfigDict(extra="forbid")

    enabled: bool = True
    max_k: Annotated[int, Field(ge=0, le=1024)] | None = None
    drafter: str | list[str] | None = None
    explain: bool = False


class JsonSchema(_Request):
    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    schema_: dict[str, Any] | bool | None = Field(None, alias="schema")


class ResponseFormat(_Request):
    type: str
    json_schema: JsonSchema | None = None


class Function(_Request):
    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(_Request):
    type: Literal["function"] = "function"
    function: Function


class Sampled(_Request):
    """What completions and chats have in common."""

    model: str | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    top_k: int | None = None
    min_p: Number | None = None
    n: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None
    logit_bias: dict[str, Number] | None = None
    frequency_penalty: Number | None = None
    presence_penalty: Number | None = None
    repetition_penalty: Number | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    regex: str | None = None
    guided_regex: str | None = None
    guided_json: dict[str, Any] | str | None = None
    response_format: ResponseFormat | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    priority: int | None = None
    timeout: Annotated[Number, Field(gt=0)] | None = None
    speculation: Speculation | None = None
    return_token_ids: bool | None = None


class CompletionRequest(Sampled):
    prompt: str | list[str] | list[int] | list[list[int]] = ""
    suffix: str | None = None
    echo: bool | None = None
    best_of: int | None = None
    logprobs: int | None = None


class ChatRequest(Sampled):
    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None


class TokenizeRequest(_Request):
    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False


class DetokenizeRequest(_Request):
    model: str | None = None
    tokens: list[int]


WITHOUT_EFFECT = {
    "metadata": "it is not stored",
    "store": "nothing is stored",
    "service_tier": "there is one tier; `priority` orders requests",
    "safety_identifier": "it is not looked at",
    "prompt_cache_key": "beginnings are shared without it",
    "prompt_cache_retention": "beginnings are shared without it",
    "verbosity": "the model has no such setting",
    "skip_special_tokens": "control tokens are always left out",
    "spaces_between_special_tokens": "control tokens are always left out",
}
"""Fields of the API that are understood and change nothing here, and why."""

REFUSED = {
    "audio": "the model writes text alone",
    "modalities": "the model writes text alone",
    "functions": "give `tools`",
    "function_call": "give `tool_choice`",
    "prediction": "drafts come from the server's own sources; give `speculation`",
    "web_search_options": "there is no web search",
    "guided_grammar": "give `regex` or `response_format`",
    "guided_choice": "give `regex`, for example 'yes|no'",
    "use_beam_search": "there is no beam search",
    "length_penalty": "there is no beam search",
    "early_stopping": "there is no beam search",
    "prompt_logprobs": "give `echo` and `logprobs` to /v1/completions",
    "typical_p": "`min_p` is the nearest",
    "mirostat": "`min_p` is the nearest",
    "dry_multiplier": "`repetition_penalty` and `frequency_penalty` are the nearest",
    "xtc_probability": "there is nothing like it",
}
"""Fields that would change the text and that are not served: refused, since to ignore them would be to answer another
question."""
