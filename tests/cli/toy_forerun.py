"""`forerun` with the toy models: what the subprocess tests start. Run as a script, with forerun's own arguments."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.cli.toys import patch

from forerun.cli import main

if "TOY_TERMINAL" in os.environ:  # make standard input the controlling terminal, so that its Ctrl-C reaches us
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)

patch(lambda mapping, key, value: mapping.__setitem__(key, value), setattr)
main()
