"""Open Bandit Pipeline's estimators on an archive of arrays."""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any

import numpy
from obp.ope import (
    DirectMethod,
    DoublyRobust,
    InverseProbabilityWeighting,
    ReplayMethod,
    SelfNormalizedDoublyRobust,
    SelfNormalizedInverseProbabilityWeighting,
    SwitchDoublyRobust,
)

ESTIMATORS = {
    "replay": ReplayMethod(),
    "dm": DirectMethod(),
    "ips": InverseProbabilityWeighting(),
    "snips": SelfNormalizedInverseProbabilityWeighting(),
    "dr": DoublyRobust(),
    "sndr": SelfNormalizedDoublyRobust(),
    "switch_dr": SwitchDoublyRobust(tau=10.0),
}


def speed(file: str, samples: int) -> None:
    """Time the intervals of all estimators on the arrays of a file."""
    with numpy.load(file) as archive:
        arrays = {name: archive[name] for name in archive.files}
    feedback: dict[str, Any] = {
        "reward": arrays["rewards"],
        "action": arrays["actions"],
        "pscore": arrays["propensities"],
        "position": numpy.zeros(len(arrays["rewards"]), int),
        "action_dist": arrays["policy"][:, :, None],
        "estimated_rewards_by_reg_model": arrays["q"][:, :, None],
    }
    began = time.process_time()
    values = {}
    for name, estimator in ESTIMATORS.items():
        found = estimator.estimate_interval(**feedback, n_bootstrap_samples=samples, random_state=0)
        values[name] = found["mean"]
    seconds = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    print(json.dumps({"cpu_seconds": seconds, "peak_mb": peak, "values": values}))


if __name__ == "__main__":
    speed(sys.argv[1], int(sys.argv[2]))
