"""The processes of a run's learners: started here, or by torchrun."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

import attrs

from rlplug.errors import RequestError

__all__ = ["LearnerProcesses", "Place", "is_follower", "place_of_torchrun"]

MODULE = "rlplug.cli.child"
"""What the processes execute; a name, as the command line is above this layer."""

_ENDING_SECONDS = 10.0
"""How long the processes may take to end after the last message of the first one."""


@attrs.frozen(kw_only=True)
class Place:
    """Which of a run's learners a process is, and where they meet."""

    index: int
    size: int
    host: str
    port: int
    local_index: int
    local_size: int
    """Learners on this machine."""
    by_torchrun: bool = False
    own_gpu: bool | None = None
    """Whether each learner has a GPU of its own; None: if this machine has one for each."""


def place_of_torchrun(environ: Mapping[str, str] = os.environ) -> Place | None:
    """What torchrun tells its processes; None if this is none of several."""
    if "TORCHELASTIC_RUN_ID" not in environ or int(environ.get("WORLD_SIZE", "1")) < 2:
        return None
    size = int(environ["WORLD_SIZE"])
    return Place(
        index=int(environ["RANK"]),
        size=size,
        host=environ["MASTER_ADDR"],
        port=int(environ["MASTER_PORT"]),
        local_index=int(environ["LOCAL_RANK"]),
        local_size=int(environ.get("LOCAL_WORLD_SIZE", size)),
        by_torchrun=True,
    )


def is_follower() -> bool:
    """Whether torchrun started this process as another than the first."""
    place = place_of_torchrun()
    return place is not None and place.index > 0


class LearnerProcesses:
    """The processes of all learners but the first, which is this process.

    Each reads its place on its standard input, which closes when this process has gone, however it
    went: then it ends at once.
    """

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, places: Sequence[Place]) -> None:
        """Start one for each place."""
        for place in places:
            # -P: the working directory is not searched, as it is not for `rlplug`.
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", MODULE],
                stdin=subprocess.PIPE,
                # What a plugin prints must not get into the output of --json.
                stdout=sys.__stderr__,
                # Ctrl-C reaches this process alone, which tells the others.
                start_new_session=True,
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
            )
            self._processes.append(process)
            assert process.stdin is not None
            order = {"kind": "learner", "place": attrs.asdict(place), "path": sys.path}
            with contextlib.suppress(OSError):
                process.stdin.write(json.dumps(order).encode() + b"\n")
                process.stdin.flush()

    def ended(self) -> dict[int, str]:
        """Learner → how its process ended, of those that have."""
        codes = enumerate((one.poll() for one in self._processes), start=1)
        return {index: _told(code) for index, code in codes if code is not None}

    def refuse_ended(self) -> None:
        """Raise if one has ended before the run has begun."""
        for index, how in self.ended().items():
            raise RequestError(
                f"the process of learner {index} {how} while it started.",
                "what it printed is above; try: rlplug plugins list --check",
            )

    def close(self, *, kill: bool) -> None:
        """Wait until all have ended; those that do not are killed."""
        deadline = time.monotonic() + (0 if kill else _ENDING_SECONDS)
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(deadline - time.monotonic(), 0))
            if process.poll() is None:
                process.kill()
                process.wait()
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
        self._processes.clear()


def _told(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
