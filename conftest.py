"""How many processes the tests run in, and that none of them fails for being slow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

MOST = 8
"""Every process imports torch: on many cores they would want more memory than they save time."""


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One per core. None where only files are named: what tests print is seen, and at once."""
    here = config.invocation_params.dir
    if all((here / Path(named.partition("::")[0])).is_file() for named in config.args):
        return 0
    # Together they use every core as it is.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return min(len(os.sched_getaffinity(0)), MOST)
