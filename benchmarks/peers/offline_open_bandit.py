"""Open Bandit Pipeline's estimators: on an archive of arrays, or on the data that it ships."""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy
import obp
import pandas
from obp.dataset import OpenBanditDataset
from obp.ope import (
    DirectMethod,
    DoublyRobust,
    InverseProbabilityWeighting,
    RegressionModel,
    ReplayMethod,
    SelfNormalizedDoublyRobust,
    SelfNormalizedInverseProbabilityWeighting,
    SwitchDoublyRobust,
)
from sklearn.linear_model import LogisticRegression

ESTIMATORS = {
    "replay": ReplayMethod(),
    "dm": DirectMethod(),
    "ips": InverseProbabilityWeighting(),
    "snips": SelfNormalizedInverseProbabilityWeighting(),
    "dr": DoublyRobust(),
    "sndr": SelfNormalizedDoublyRobust(),
    "switch_dr": SwitchDoublyRobust(tau=10.0),
}
DATA = Path(obp.__file__).parent / "dataset" / "obd"


class Campaign(OpenBanditDataset):
    """Its preprocessing as written, without the call that newer pandas refuses."""

    def pre_process(self) -> None:
        users = self.data.columns.str.contains("user_feature")
        features = pandas.get_dummies(self.data.loc[:, users], drop_first=True)
        self.context = features.to_numpy(dtype=float)
        self.action_context = numpy.eye(self.n_actions)


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


def agreement(out: str) -> None:
    """Estimates of a policy on both campaigns of the data that it ships, and their inputs."""
    for behavior in ("random", "bts"):
        logged = Campaign(behavior, "all").obtain_batch_bandit_feedback()
        n, arms, places = logged["n_rounds"], 80, 3
        # Every other user is shown arm 5, the others by a distribution that prefers some arms.
        mixed = numpy.random.default_rng(0).dirichlet(numpy.ones(arms))
        fixed = numpy.eye(arms)[5]
        chosen = numpy.where((logged["context"][:, :1] > 0), fixed, mixed)
        policy = numpy.repeat(chosen[:, :, None], places, axis=2)
        given = {
            name: logged[name] for name in ("context", "action", "reward", "pscore", "position")
        }
        values = {}
        q = {}
        for method in ("normal", "mrdr"):
            model = RegressionModel(
                n_actions=arms,
                len_list=places,
                action_context=logged["action_context"],
                base_model=LogisticRegression(max_iter=200),
                fitting_method=method,
            )
            # The model changes the policy that it is given in place.
            q[method] = model.fit_predict(**given, action_dist=policy.copy())
        for name, estimator in ESTIMATORS.items():
            values[name] = estimator.estimate_policy_value(
                **{key: given[key] for key in ("reward", "action", "pscore", "position")},
                action_dist=policy,
                estimated_rewards_by_reg_model=q["normal"],
            )
        values["mrdr"] = ESTIMATORS["dr"].estimate_policy_value(
            **{key: given[key] for key in ("reward", "action", "pscore", "position")},
            action_dist=policy,
            estimated_rewards_by_reg_model=q["mrdr"],
        )
        rows = numpy.arange(n)
        at = logged["position"]
        numpy.savez(
            f"{out}/{behavior}.npz",
            rewards=logged["reward"].astype(float),
            actions=logged["action"],
            propensities=logged["pscore"],
            context=logged["context"],
            position=at,
            policy=policy[:, :, 0],
            q=q["normal"][rows, :, at],
            mrdr_q=q["mrdr"][rows, :, at],
        )
        Path(out, f"{behavior}.json").write_text(json.dumps(values))
    print(json.dumps({"data": str(DATA)}))


if __name__ == "__main__":
    if sys.argv[1] == "speed":
        speed(sys.argv[2], int(sys.argv[3]))
    else:
        agreement(sys.argv[2])
