"""Our estimators and those of Open Bandit Pipeline, on the data set that it ships."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest

from rlplug import ope
from rlplug.config.sections import DataSection
from rlplug.logs import Log


@pytest.mark.parametrize("behavior", ["random", "bts"])
def test_estimates_are_those_of_open_bandit_pipeline(behavior: str) -> None:
    obp = pytest.importorskip("obp", reason="the test extra installs it")
    from obp import ope as theirs

    folder = Path(obp.__file__).parent / "dataset" / "obd" / behavior / "all"
    rows = Log.open(DataSection(files=(str(folder),), format="obd")).whole()
    n, arms, random = len(rows), 80, numpy.random.default_rng(0)
    # Half of the users are shown arm 5, the others arms by a distribution that prefers some.
    policy = numpy.where(
        rows["context"][:, :1] > 0, numpy.eye(arms)[5], random.dirichlet(numpy.ones(arms))
    )
    q, robust = random.uniform(0, 0.02, (2, n, arms))
    r, actions = rows["reward"], rows["action"]
    every = numpy.arange(n)
    w = ope.importance_weights(policy[every, actions], rows["propensity"])
    model = q[every, actions], (policy * q).sum(1)
    mine = [
        (theirs.ReplayMethod(), ope.replay(r, policy[every, actions] == 1)),
        (theirs.DirectMethod(), ope.dm(model[1])),
        (theirs.InverseProbabilityWeighting(), ope.ips(r, w)),
        (theirs.SelfNormalizedInverseProbabilityWeighting(), ope.snips(r, w)),
        (theirs.DoublyRobust(), ope.dr(r, w, *model)),
        (theirs.SelfNormalizedDoublyRobust(), ope.sndr(r, w, *model)),
        (theirs.SwitchDoublyRobust(tau=10.0), ope.switch_dr(r, w, *model, threshold=10.0)),
    ]
    given: dict[str, Any] = {
        "reward": r,
        "action": actions,
        "pscore": rows["propensity"],
        "position": numpy.zeros(n, int),
        "action_dist": policy[:, :, None],
        "estimated_rewards_by_reg_model": q[:, :, None],
    }
    for estimator, terms in mine:
        found = estimator.estimate_policy_value(**given)
        assert terms.value == pytest.approx(found, abs=1e-6, rel=1e-6), type(estimator).__name__
    # MRDR is DR with a model that was fitted for it.
    given["estimated_rewards_by_reg_model"] = robust[:, :, None]
    mrdr = ope.dr(r, w, robust[every, actions], (policy * robust).sum(1)).value
    assert mrdr == pytest.approx(theirs.DoublyRobust().estimate_policy_value(**given), abs=1e-6)
