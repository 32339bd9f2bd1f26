"""The command line: parses, prints, and turns errors into exit codes."""

import os
import signal
import sys
from types import FrameType


def _end(number: int, frame: FrameType | None) -> None:
    """End the process before or after a run, when it has nothing to save."""
    os.write(2, f"rlplug: ended by {signal.Signals(number).name}\n".encode())
    os._exit(128 + number)


for _name in ("SIGTERM", "SIGHUP", "SIGUSR1"):
    _number = getattr(signal, _name, None)
    # `nohup` ignores SIGHUP.
    if _number is not None and signal.getsignal(_number) == signal.SIG_DFL:
        # SIGUSR1 asks a run for a checkpoint, and there is no run yet.
        signal.signal(_number, signal.SIG_IGN if _name == "SIGUSR1" else _end)

try:
    from rlplug.cli.main import main
except KeyboardInterrupt:
    # Ctrl-C during the imports, before `main` can handle it.
    print("rlplug: interrupted", file=sys.stderr)
    sys.exit(130)

__all__ = ["main"]
