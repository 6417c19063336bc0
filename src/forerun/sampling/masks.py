"""Which tokens constraints allow after a draft prefix, with every constraint's state following the path looked at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from forerun.constraints import Constraint
from forerun.errors import ForerunError, UserCodeError


class Masks:
    """The constraints of one text. Their state is that of the committed tokens plus a path of draft tokens, which is
    rolled back and walked again as other prefixes are asked for; each prefix's mask is worked out once a round, for
    the drafter and the verifier together.
    """

    def __init__(self, constraints: Sequence[Constraint], vocabulary_size: int) -> None:
        self._constraints, self._size = constraints, vocabulary_size
        self._path: list[int] = []  # tokens the constraints took beyond the committed ones
        self._known: dict[tuple[int, ...], np.ndarray | None] = {}

    def __bool__(self) -> bool:
        return bool(self._constraints)

    def commit(self, tokens: Sequence[int]) -> None:
        """Take committed tokens; what else was walked is undone."""
        with _only_this_request():
            self._walk(tokens)
        self._path.clear()
        self.release()

    def release(self) -> None:
        """Forget the masks of a round."""
        self._known.clear()

    def after(self, prefix: Sequence[int]) -> np.ndarray | None:
        """Legal ids [vocabulary_size] bool after a draft prefix. None behind an illegal token and behind the end of
        the text: what is drawn there is never committed, so any row will do."""
        key = tuple(prefix)
        if key not in self._known:
            with _only_this_request():
                is_reachable = self._walk(key) and not self._ended()
                self._known[key] = self._mask() if is_reachable else None
        return self._known[key]

    def is_finished(self, prefix: Sequence[int]) -> bool:
        """Whether nothing may follow the committed tokens and `prefix`."""
        with _only_this_request():
            return self._walk(prefix) and self._ended()

    def _ended(self) -> bool:
        return any(constraint.is_finished for constraint in self._constraints)

    def _mask(self) -> np.ndarray:
        masks = [constraint.mask() for constraint in self._constraints]
        for mask in masks:
            if getattr(mask, "shape", None) != (self._size,) or mask.dtype != np.bool_:
                raise UserCodeError(
                    f"a constraint's mask is {getattr(mask, 'dtype', type(mask).__name__)} of shape "
                    f"{getattr(mask, 'shape', None)} where {self._size} booleans are needed"
                )
        return masks[0] if len(masks) == 1 else np.logical_and.reduce(masks)

    def _walk(self, prefix: Sequence[int]) -> bool:
        """Move every constraint to the committed tokens plus `prefix`; False if a token of it is illegal, then as far
        as is legal."""
        shared = 0
        while shared < min(len(self._path), len(prefix)) and self._path[shared] == prefix[shared]:
            shared += 1
        if len(self._path) > shared:
            for constraint in self._constraints:
                constraint.rollback(len(self._path) - shared)
            del self._path[shared:]
        return all(self._step(token) for token in prefix[shared:])

    def _step(self, token: int) -> bool:
        """Advance every constraint, or none: also where one of them fails, as that may be behind a rejected draft."""
        num_taken = 0
        try:
            for constraint in self._constraints:
                if not constraint.advance(token):
                    return False
                num_taken += 1
        finally:
            if num_taken < len(self._constraints):
                for constraint in self._constraints[:num_taken]:
                    constraint.rollback(1)
        self._path.append(token)
        return True


@contextmanager
def _only_this_request() -> Iterator[None]:
    """What a constraint raises, a library's error or a bug, ends the request that brought it and no other."""
    try:
        yield
    except UserCodeError:
        raise
    except Exception as error:
        reason = str(error) if isinstance(error, ForerunError) else f"{type(error).__name__}: {error}"
        raise UserCodeError(f"a constraint failed: {reason}") from error
