"""From a prompt and parameters to a sequence; what cannot be served is refused here, before any work."""

from __future__ import annotations

from collections.abc import Callable, Collection
from collections.abc import Sequence as Seq
from functools import lru_cache

from forerun.checks import inside
from forerun.constraints import Constraint, Grammar, TokenSet
from forerun.engine.sequence import Sequence, Watch
from forerun.errors import ContextLengthError, ParameterError, PromptError, UserCodeError
from forerun.randomness import fresh_seed
from forerun.sampling import Processing, SamplingParams


def make_sequence(
    sequence_id: int,
    prompt: Seq[int],
    params: SamplingParams,
    *,
    vocabulary_size: int,
    context_length: int | None,
    max_cached: int | None = None,
    eos_ids: Collection[int],
    choice: int = 0,
    seed: int | None = None,
    watch: Watch | None = None,
    constraints: Seq[Constraint] = (),
    make_processing: Callable[..., Processing] = Processing,
) -> Sequence:
    """A sequence that is ready to be scheduled. `max_cached`: all memory there is, in tokens. Raises PromptError,
    ContextLengthError or ParameterError."""
    if max_cached is not None and (context_length is None or max_cached < context_length):
        context_length = max_cached
    else:
        max_cached = None
    _check_prompt(prompt, vocabulary_size, context_length, max_cached)
    _check_params(params, vocabulary_size, watch, constraints)
    if params.max_tokens is None and context_length is None:
        raise ParameterError("max_tokens", "must be given for a model whose context is unbounded")
    limits = [] if params.max_tokens is None else [len(prompt) + params.max_tokens]
    limits += [] if context_length is None else [context_length]
    stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else frozenset(eos_ids))
    constraints = list(constraints)
    if params.constraint is not None:
        constraints.append(_started(params.constraint))
    if params.allowed_token_ids is not None:
        constraints.append(_token_set(params.allowed_token_ids, vocabulary_size).start())
    tokens = [int(token) for token in prompt]
    if seed is None:
        seed = params.seed if params.seed is not None else fresh_seed()
    return Sequence(
        sequence_id=sequence_id,
        tokens=tokens,
        prompt_length=len(tokens),
        params=params,
        vocabulary_size=vocabulary_size,
        seed=seed,
        choice=int(choice),
        limit=min(limits),
        stop_ids=stop_ids,
        processing=make_processing(params, vocabulary_size, tokens, stop_ids=stop_ids, constraints=constraints),
        watch=watch,
        prompt_logprobs=None if params.prompt_logprobs is None else [None],
    )


def _check_prompt(prompt: Seq[int], vocabulary_size: int, context_length: int | None, max_cached: int | None) -> None:
    if len(prompt) == 0:
        raise PromptError("the prompt is empty", "a model needs at least one token to start from", "give some text")
    outside = next((token for token in prompt if not 0 <= token < vocabulary_size), None)
    if outside is not None:
        raise PromptError(f"prompt token id {outside} is outside 0..{vocabulary_size - 1}")
    if context_length is not None and len(prompt) >= context_length:
        raise ContextLengthError(len(prompt), context_length, max_cached)


def _check_params(
    params: SamplingParams, vocabulary_size: int, watch: Watch | None, constraints: Seq[Constraint]
) -> None:
    """Refuse ids the model does not have, and what needs a tokenizer where there is none (`LLM` prepares it)."""
    inside("stop_token_ids", params.stop_token_ids, vocabulary_size)
    inside("logit_bias", (token for token, _ in params.biases), vocabulary_size)
    for word in params.bad_words or ():
        if isinstance(word, str):
            raise needs_tokenizer("bad_words", "give the words as token ids")
        inside("bad_words", word, vocabulary_size)
    if params.stops and watch is None:
        raise needs_tokenizer("stop", "use stop_token_ids")
    if params.structure is not None and not constraints:
        raise needs_tokenizer(params.structure[0], "give a constraint over token ids")


@lru_cache(maxsize=16)
def _token_set(ids: tuple[int, ...], vocabulary_size: int) -> TokenSet:
    """The choices of a request, and requests that allow the same ids, share one mask."""
    return TokenSet(ids, vocabulary_size)


def _started(grammar: Grammar) -> Constraint:
    try:
        return grammar.start()
    except Exception as error:
        raise UserCodeError(
            f"a constraint could not be started: {type(error).__name__}: {error}", repr(grammar)
        ) from error


def needs_tokenizer(name: str, remedy: str) -> ParameterError:
    """The error of a parameter that speaks of text where there are only token ids."""
    return ParameterError(name, "text means nothing to a model without a tokenizer", remedy)
