"""The command line: parses, prints, and turns errors into exit codes."""

import os
import signal
import sys
from types import FrameType


def _end(number: int, frame: FrameType | None) -> None:
    """End the process, which has nothing to save, before or after a run: imports may take long."""
    os.write(2, f"rlplug: ended by {signal.Signals(number).name}\n".encode())
    os._exit(128 + number)


for _name in ("SIGTERM", "SIGHUP"):
    _number = getattr(signal, _name, None)
    # `nohup` ignores SIGHUP.
    if _number is not None and signal.getsignal(_number) == signal.SIG_DFL:
        signal.signal(_number, _end)

try:
    from rlplug.cli.main import main
except KeyboardInterrupt:
    # So early that `main` cannot answer it.
    print("rlplug: interrupted", file=sys.stderr)
    sys.exit(130)

__all__ = ["main"]
