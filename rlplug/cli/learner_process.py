"""The process of a learner that `--learners` starts: takes its place, and ends with its parent."""

from __future__ import annotations

import json
import os
import sys
import threading
from io import BufferedReader

from rlplug.scale.launcher import Place, place_of_torchrun

__all__ = ["follow_torchrun", "main"]


def main() -> None:
    """Take part in the run of the process that started this one."""
    orders = os.fdopen(os.dup(0), "rb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    line = orders.readline()
    if not line:
        return
    order = json.loads(line)
    # What the parent finds, this process finds in the same place.
    sys.path[:] = order["path"]
    threading.Thread(target=_end_with_parent, args=(orders,), daemon=True).start()
    from rlplug.runs.learners import follow

    code = follow(Place(**order["place"]))
    sys.stderr.flush()
    # Threads of torch.distributed are not waited for.
    os._exit(code)


def follow_torchrun() -> int:
    """Take part as torchrun's process with this rank; the options come from rank 0."""
    from rlplug.runs.learners import follow

    place = place_of_torchrun()
    assert place is not None
    return follow(place)


def _end_with_parent(orders: BufferedReader) -> None:
    orders.read()
    os._exit(1)


if __name__ == "__main__":
    main()
