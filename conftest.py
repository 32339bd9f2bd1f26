"""How many processes the tests run in: one per core for all of them, this one for a few."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

MOST = 8
"""Every process imports torch: on many cores they would want more memory than they save time."""


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """None where only files are named: their tests start at once, and what they print is seen."""
    here = config.invocation_params.dir
    if all((here / Path(named.partition("::")[0])).is_file() for named in config.args):
        return 0
    # Together they use every core as it is.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return min(len(os.sched_getaffinity(0)), MOST)
