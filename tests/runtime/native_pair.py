"""What the tests of the native runtime's faults and races ask of the fixtures `pair` and `texts`."""

from __future__ import annotations

from typing import Any

PROMPTS = [[5, 6, 7], [9] * 40, [30, 31], list(range(100, 170))]
LONG: dict[str, Any] = {"max_tokens": 24, "ignore_eos": True}
