"""Prints the hash of a mode's texts: level 4 starts it as a process of its own, so that nothing is shared but the
arguments (mode, dtype, prompts of the bed, tokens, prompts to write)."""

from __future__ import annotations

import sys

from tests.ladder.bed import Bed, digest


def main(mode: str, dtype: str, num_prompts: str, num_tokens: str, num: str) -> None:
    bed = Bed(dtype, int(num_prompts), int(num_tokens))
    made = bed.write(bed.all_of(mode)[: int(num)], "self", 2, 2, rereads=True)
    print(digest(made))


if __name__ == "__main__":
    main(*sys.argv[1:])
