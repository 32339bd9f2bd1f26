"""The process of one of several seeds: carries out the command that its parent sends."""

from __future__ import annotations

import json
import os
import sys
import threading
from io import BufferedReader, BufferedWriter

from rlplug.cli.main import main as command
from rlplug.cli.seed_run import SeedRun

__all__ = ["main"]


def main() -> None:
    """Carry out the command that the parent sends, and report to it."""
    orders, reports = _take_pipes()
    order = json.loads(orders.readline())
    # What the parent finds, this process finds in the same place.
    sys.path[:] = order["path"]
    # As it would be typed, for the record of the run.
    sys.argv[:] = ["rlplug", *order["arguments"]]
    run = SeedRun(reports, order.get("part", {}))
    threading.Thread(target=run.obey, args=(orders,), daemon=True).start()
    command(seed_run=run)


def _take_pipes() -> tuple[BufferedReader, BufferedWriter]:
    """Keep the pipes from what the run calls: it finds no input, and prints to stderr."""
    orders = os.fdopen(os.dup(0), "rb")
    reports = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    return orders, reports


if __name__ == "__main__":
    main()
