"""Runtimes: things that turn tokens into rows of logits. One file each; `base.py` is the protocol they share."""
