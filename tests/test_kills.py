"""Kill -9 at random moments, and compare with runs that were not killed.

All shipped algorithms are for `python benchmarks/kills.py`; here, there is one of each kind of feed
and of each way to sample.
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
KILLS = 10


@pytest.mark.long
def test_kills_at_random_moments_lose_nothing_and_change_nothing(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(SCRIPT),
        "--cases",
        CASES,
        "--kills",
        str(KILLS),
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
    assert int(said[1]) >= KILLS
    # Most fall into runs: otherwise moments are drawn from too long a time.
    in_time = re.search(r"'run, in time': (\d+)", said[0])
    assert in_time is None or int(in_time[1]) <= 5
