"""Kill -9 at random moments, and compare with runs that were not killed.

All shipped algorithms are for `python benchmarks/kills.py`; of the long tests, there is one of each
kind of feed and of each way to sample.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "kills.py"


CASES = "linucb,ppo,dqn,sac,bc,ppo+agents,ppo+lock-step,dqn+workers"


@pytest.mark.parametrize(
    ("cases", "kills"),
    [("ppo+lock-step", 2), pytest.param(CASES, 10, marks=pytest.mark.long)],
    ids=["few", "each-kind"],
)
def test_kills_at_random_moments_lose_nothing_and_change_nothing(
    tmp_path: Path, cases: str, kills: int
) -> None:
    command = [
        sys.executable,
        str(SCRIPT),
        "--cases",
        cases,
        "--kills",
        str(kills),
        "--short",
        "--workers",
        "1",
    ]
    done = subprocess.run(
        [*command, "--keep", str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = re.search(r"^(\d+) kills: .*; 0 failures$", done.stdout, re.MULTILINE)
    assert said is not None, done.stdout
    assert int(said[1]) >= kills
    # Most fall into runs: otherwise moments are drawn from too long a time.
    in_time = re.search(r"'run, in time': (\d+)", said[0])
    assert in_time is None or int(in_time[1]) <= 5
