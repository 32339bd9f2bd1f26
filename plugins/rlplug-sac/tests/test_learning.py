"""What is learned on Pendulum-v1; the seeds and thresholds were fixed beforehand.

benchmarks/learn.py has all seeds and the whole length; the probes of test_conformance.py are
learned for each change.
"""

from __future__ import annotations

import pytest

from rlplug import run

pytestmark = [pytest.mark.usefixtures("home"), pytest.mark.long]


@pytest.mark.parametrize(("algorithm", "steps"), [("sac", 5_000), ("td3", 7_000)])
def test_the_preset_for_pendulum_swings_it_up(algorithm: str, steps: int) -> None:
    options = {"run.preset": "pendulum", "tracking.enabled": False, "evaluation.every": 0}
    result = run(algorithm, steps=steps, seed=1, options=options)
    # Hanging down earns about -1,200, swinging up and staying there -150.
    assert result.metrics["eval/return_mean"] >= -400
