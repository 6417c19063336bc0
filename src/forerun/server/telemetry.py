"""A span for every request, where OpenTelemetry is installed and set up: `opentelemetry-instrument forerun serve ...`.

Without it nothing is imported but its absence. Names are those of its semantic conventions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

TOLD = {"prompt_tokens": "gen_ai.usage.input_tokens", "completion_tokens": "gen_ai.usage.output_tokens",
        "id": "gen_ai.response.id"}  # fmt: skip
"""What the log says of a request -> the attribute of its span."""

End = Callable[[int, Mapping[str, Any]], None]
"""Told the status of the answer and what the log says of it."""


@contextmanager
def span(method: str, path: str, headers: Mapping[bytes, bytes]) -> Iterator[End]:
    """A span around a request, below the one that its `traceparent` names."""
    try:
        from opentelemetry import propagate, trace
    except ImportError:
        yield lambda status, told: None
        return
    carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()}
    tracer = trace.get_tracer("forerun.server")
    attributes = {"http.request.method": method, "url.path": path}
    with tracer.start_as_current_span(
        f"{method} {path}", propagate.extract(carrier), kind=trace.SpanKind.SERVER, attributes=attributes
    ) as current:

        def end(status: int, told: Mapping[str, Any]) -> None:
            current.set_attribute("http.response.status_code", status)
            for name, attribute in TOLD.items():
                if name in told:
                    current.set_attribute(attribute, told[name])
            if status >= 500:
                current.set_status(trace.StatusCode.ERROR)

        yield end
