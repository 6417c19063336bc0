"""What the OpenAI API can be asked, and what others add to it. Unknown fields are kept, to be warned of."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, StrictBool, StrictStr, Tag


def _whole(value: Any) -> Any:
    """JSON has one kind of number: 16.0 is 16."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Number = Annotated[float, Field(strict=True)]
Whole = Annotated[int, BeforeValidator(_whole, json_schema_input_type=int), Field(strict=True)]
Token = Annotated[int, Field(strict=True, ge=0)]
Text = StrictStr
Switch = StrictBool
Texts = Annotated[
    list[Text], Field(fail_fast=True)
]  # the first that is wrong is told: a million more would take minutes to list
Tokens = Annotated[list[Token], Field(fail_fast=True)]


def _kind(value: Any) -> str:
    """Which of its kinds something is meant to be. Only that one is tried, or a long list would be read for each."""
    if not isinstance(value, list):
        return "a text"
    first = value[0] if value else ""
    return "texts of" if isinstance(first, str) else "lists of" if isinstance(first, list) else "ids of"


def _numbers(value: Any) -> Any:
    """The first of many values that is no number is told; the rest is left to the kind itself."""
    if isinstance(value, dict):
        for key, one in value.items():
            if isinstance(one, bool) or not isinstance(one, (int, float)):
                raise ValueError(f"the value of {str(key)[:20]!r} is no number")
    return value


Biases = Annotated[dict[str, Number], BeforeValidator(_numbers, json_schema_input_type=dict[str, Number])]
TextOrTexts = Annotated[
    Annotated[Text, Tag("a text")] | Annotated[Texts, Tag("texts of")],
    Discriminator(lambda value: "texts of" if isinstance(value, list) else "a text"),
]
Prompts = Annotated[
    Annotated[Text, Tag("a text")]
    | Annotated[Texts, Tag("texts of")]
    | Annotated[Tokens, Tag("ids of")]
    | Annotated[list[Tokens], Field(fail_fast=True), Tag("lists of")],
    Discriminator(_kind),
]


class _Request(BaseModel):
    model_config = ConfigDict(extra="allow", protected_namespaces=())

    @property
    def unknown(self) -> list[str]:
        """Names of fields that nothing here knows, those of its parts behind their own: "stream_options.colour"."""
        parts = ((name, value) for name, value in self if isinstance(value, _Request) and name in self.model_fields_set)
        return [*sorted(self.model_extra or {}), *(f"{name}.{inner}" for name, part in parts for inner in part.unknown)]


class StreamOptions(_Request):
    """What a stream tells beside its text."""

    include_usage: Switch = False
    continuous_usage_stats: Switch = False


class Speculation(BaseModel):
    """An extension: whether and how this request is drafted for. It never changes the text."""

    model_config = ConfigDict(extra="forbid")

    enabled: Switch = True
    max_k: Annotated[Whole, Field(ge=0, le=1024)] | None = None
    drafter: TextOrTexts | None = None
    explain: Switch = False


class JsonSchema(_Request):
    """A schema and what it is called."""

    name: Text | None = None
    description: Text | None = None
    strict: Switch | None = None
    schema_: dict[str, Any] | Switch | None = Field(None, alias="schema")


class ResponseFormat(_Request):
    """What kind of text is wanted."""

    type: Text
    json_schema: JsonSchema | None = None
    grammar: Text | None = None


class StructuredOutputs(BaseModel):
    """The same wishes as `regex`, `guided_json` and so on, in one place, as in vLLM."""

    model_config = ConfigDict(extra="forbid")

    json_: dict[str, Any] | Text | None = Field(None, alias="json")
    regex: Text | None = None
    grammar: Text | None = None
    choice: Texts | None = None
    json_object: Switch | None = None


class Function(_Request):
    """A function that the model may call; `parameters` is a JSON schema."""

    name: Annotated[Text, Field(min_length=1, max_length=256)]
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: Switch | None = None


class Tool(_Request):
    """A tool; functions are the only kind."""

    type: Literal["function"] = "function"
    function: Function


class Sampled(_Request):
    """What completions and chats have in common."""

    model: Text | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    top_k: Whole | None = None
    min_p: Number | None = None
    n: Whole | None = None
    seed: Whole | None = None
    stop: TextOrTexts | None = None
    stop_token_ids: Tokens | None = None
    include_stop_str_in_output: Switch | None = None
    ignore_eos: Switch | None = None
    min_tokens: Whole | None = None
    max_tokens: Whole | None = None
    logit_bias: Biases | None = None
    frequency_penalty: Number | None = None
    presence_penalty: Number | None = None
    repetition_penalty: Number | None = None
    bad_words: Texts | None = None
    allowed_token_ids: Tokens | None = None
    regex: Text | None = None
    guided_regex: Text | None = None
    grammar: Text | None = None
    one_of: Texts | None = None
    guided_json: dict[str, Any] | Text | None = None
    guided_grammar: Text | None = None
    guided_choice: Texts | None = None
    structured_outputs: StructuredOutputs | None = None
    response_format: ResponseFormat | None = None
    stream: Switch | None = None
    stream_options: StreamOptions | None = None
    user: Text | None = None
    priority: Whole | None = None
    timeout: Annotated[Number, Field(gt=0)] | None = None
    speculation: Speculation | None = None


class CompletionRequest(Sampled):
    """What /v1/completions is asked."""

    prompt: Prompts = ""
    suffix: Text | None = None
    echo: Switch | None = None
    best_of: Whole | None = None
    logprobs: Whole | None = None


class ChatRequest(Sampled):
    """What /v1/chat/completions is asked."""

    messages: Annotated[list[dict[str, Any]], Field(fail_fast=True, min_length=1)]
    max_completion_tokens: Whole | None = None
    logprobs: Switch | None = None
    top_logprobs: Whole | None = None
    tools: Annotated[list[Tool], Field(fail_fast=True)] | None = None
    tool_choice: Text | dict[str, Any] | None = None
    parallel_tool_calls: Switch | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: Text | None = None


class TokenizeRequest(_Request):
    """What /tokenize is asked: a text, or messages."""

    model: Text | None = None
    prompt: Text | None = None
    messages: Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = None
    add_special_tokens: Switch = True
    return_token_strs: Switch = False


class DetokenizeRequest(_Request):
    """What /detokenize is asked."""

    model: Text | None = None
    tokens: Tokens


WITHOUT_EFFECT = {
    "metadata": "it is not stored",
    "store": "nothing is stored",
    "service_tier": "there is one tier; `priority` orders requests",
    "safety_identifier": "it is not looked at",
    "prompt_cache_key": "beginnings are shared without it",
    "prompt_cache_retention": "beginnings are shared without it",
    "return_token_ids": "`speculation: {explain: true}` tells the tokens of streams",
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
