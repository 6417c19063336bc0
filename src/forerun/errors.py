"""Every error forerun raises on purpose.

Each message has three parts: the fact, the context it happened in, and the remedy (often the line to type)::

    ForerunError                      base of all; `except ForerunError` catches everything below
    ├── InputError (ValueError)       the request cannot be served as written            exit code 2
    │   ├── ParameterError            a sampling parameter or setting: unknown, out of range, not built yet
    │   ├── PromptError               empty, or not text / token ids / messages
    │   └── ContextLengthError        prompt and output do not fit the model's context
    ├── ModelError                    a model cannot be found, fetched, read or paired   exit code 3
    │   ├── UnknownModelError         no such name, file or repository
    │   ├── DownloadError (OSError)   network, mirror or Hub trouble
    │   │   ├── ChecksumError         the bytes are not the registry's bytes
    │   │   └── DiskFullError         not enough room for the file
    │   ├── FileFormatError           truncated or foreign file
    │   ├── UnsupportedModelError     an architecture, tokenizer or layer type that is not served
    │   └── VocabularyMismatchError   draft and target disagree about a token
    ├── NumericalError                the model produced NaN, or no finite logit          exit code 4
    │   └── NoLegalTokenError         masks, biases or processors ruled out the whole vocabulary
    ├── DeadlineError (TimeoutError)  the text was not done in time                      exit code 4
    ├── UserCodeError                 a logits processor or constraint of the request failed    exit code 5
    ├── ContractError                 a Model, Drafter or Policy broke its protocol       exit code 5
    └── MissingDependencyError (ImportError)   an extra is not installed                  exit code 6
"""

from __future__ import annotations


class ForerunError(Exception):
    """Base of every error raised on purpose; prints as `fact. context. remedy`."""

    exit_code = 1

    def __init__(self, fact: str, context: str = "", remedy: str = "") -> None:
        self.fact, self.context, self.remedy = fact, context, remedy
        text = ""
        for part in (fact, context, remedy):
            if part:  # a part that ends its line needs no full stop before the next one
                text += ". " * bool(text and not text.endswith("\n")) + part.rstrip(".")
        super().__init__(text if text.endswith("?") else text + ".")


class InputError(ForerunError, ValueError):
    """The request cannot be served as written."""

    exit_code = 2


class ParameterError(InputError):
    """A parameter is unknown, out of range, or not built yet; `name` says which and `reason` why."""

    def __init__(self, name: str, fact: str, remedy: str = "") -> None:
        self.name, self.reason = name, fact
        super().__init__(f"{name}: {fact}", "", remedy)


class PromptError(InputError):
    """The prompt is empty, or is neither text, token ids nor chat messages."""


class ContextLengthError(InputError):
    """The prompt leaves no room in the model's context, or in the memory there is (`context_length_exceeded`).

    `context_length` is the smaller of the two; `max_cached`, where it is the memory's bound on cached tokens.
    """

    def __init__(self, num_tokens: int, context_length: int, max_cached: int | None = None) -> None:
        self.num_tokens, self.context_length, self.max_cached = num_tokens, context_length, max_cached
        holder = "the context holds" if max_cached is None else "the memory for caches (max_cached) holds"
        remedy = f"shorten the prompt to {context_length - 1} tokens or fewer"
        super().__init__(
            f"context_length_exceeded: the prompt has {num_tokens} tokens and {holder} {context_length}",
            "at least one position must be left for the first new token",
            remedy if max_cached is None else f"{remedy}, or allow more with --max-cached",
        )


class ModelError(ForerunError):
    """A model cannot be found, fetched, read or paired."""

    exit_code = 3


class UnknownModelError(ModelError):
    """No registered model, file, directory or repository has this name."""


class DownloadError(ModelError, OSError):
    """The bytes could not be fetched."""


class ChecksumError(DownloadError):
    """The bytes that arrived are not the registry's bytes."""


class DiskFullError(DownloadError):
    """There is not enough room for the file."""


class FileFormatError(ModelError):
    """The file is truncated, damaged, or something else than its name says."""


class UnsupportedModelError(ModelError):
    """The architecture, tokenizer or layer type is not served; says what is."""


class VocabularyMismatchError(ModelError):
    """Draft and target disagree about a token; names the first one."""


class NumericalError(ForerunError):
    """A row of logits holds NaN or no finite value, so no token can be chosen from it."""

    exit_code = 4


class NoLegalTokenError(NumericalError):
    """Everything in the vocabulary is ruled out at this place, so the text can neither go on nor end."""


class DeadlineError(ForerunError, TimeoutError):
    """A request was not done by its deadline, whether it waited or ran."""

    exit_code = 4

    def __init__(self, num_tokens: int) -> None:
        super().__init__(
            "the deadline passed before the text was done",
            f"{num_tokens} tokens were written",
            "allow more time, or ask for fewer tokens",
        )


class UserCodeError(ForerunError):
    """A logits processor or constraint that a request brought along raised, or returned something else than it must.
    It ends that request only."""

    exit_code = 5


class ContractError(ForerunError):
    """A Model, Drafter or Policy broke its protocol: a bug in that object, not in the request."""

    exit_code = 5


class MissingDependencyError(ForerunError, ImportError):
    """An optional dependency is not installed; the remedy is the install command."""

    exit_code = 6
