"""The Hub's address, and its refusals as errors that say what to do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from forerun.errors import DownloadError, ForerunError, UnknownModelError
from forerun.models.store import DISK_ERRNOS


def endpoint() -> str:
    """The Hub's address, read when used: HF_ENDPOINT, or the public one."""
    from huggingface_hub import constants

    return (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")


@contextmanager
def hub_errors(repository: str) -> Iterator[None]:
    """Turn what huggingface_hub and its HTTP client raise into errors that say what to do.

    The HTTP client, and so the class of its errors, differs between versions of huggingface_hub: everything that is
    neither the Hub's answer nor the local disk's refusal is trouble on the way there.
    """
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        RepositoryNotFoundError,
    )

    try:
        yield
    except ForerunError:
        raise
    except GatedRepoError as error:
        raise DownloadError(
            f"the repository {repository} is gated: its owner grants access to accounts, one by one",
            f"the Hub refused {'the token in use' if _has_token() else 'a request without a token'}",
            f"ask for access at {endpoint()}/{repository}, then set HF_TOKEN to a token of that account",
        ) from error
    except RepositoryNotFoundError as error:
        raise UnknownModelError(
            f"the Hub has no repository {repository}, or it is private",
            f"at {endpoint()}, asked {'with' if _has_token() else 'without'} a token",
            "check the name; for a private repository set HF_TOKEN",
        ) from error
    except HFValidationError as error:
        raise UnknownModelError(f"{repository!r} is not the name of a Hub repository", str(error)) from error
    except HfHubHTTPError as error:
        raise _status_error(repository, cast(Any, error)) from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno in DISK_ERRNOS:
            raise  # the store names the file
        raise DownloadError(
            f"the connection to {endpoint()} failed: {str(error).strip() or 'no answer'}",
            type(error).__name__,
            "check the network, a proxy, or HF_ENDPOINT",
        ) from error


def _status_error(repository: str, error: Any) -> ForerunError:
    status = error.response.status_code
    said = (error.server_message or str(error)).strip().splitlines()
    context = f"{repository}: {said[0][:200] if said else 'no message'}"
    if status == 401:
        return DownloadError("the Hub does not accept the token", context, "check HF_TOKEN, or unset it")
    if status == 403:
        return DownloadError("the Hub forbids access", context, "use a token that may read this repository")
    if status == 404:
        return UnknownModelError("the Hub does not have this file", context)
    if status == 429:
        return DownloadError("the Hub asks to slow down (429)", context, "set HF_TOKEN, or pull again later")
    return DownloadError(f"the Hub answered {status}", context, "pull again later")


def _has_token() -> bool:
    from huggingface_hub import get_token

    return get_token() is not None
