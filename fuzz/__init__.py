"""Fuzzing of what files say: `make fuzz`. Each harness is a script; common.py says what counts as a finding."""
