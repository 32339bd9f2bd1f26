"""The unmutated small algorithms pass every quick check, and few checks pass them by."""

from __future__ import annotations

from typing import Any

import pytest

from rlplug.testing import CheckFailed, Subject, checks_for
from rlplug.testing.algorithms import ArmMeans, PolicyGradient, QLearning
from rlplug.testing.checks import check_named


# What is shipped, and what `rlplug plugins new` writes, passes it for each change.
@pytest.mark.long
@pytest.mark.parametrize("kind", [PolicyGradient, QLearning])
def test_a_small_algorithm_passes_all_that_applies(kind: type[Any]) -> None:
    # What its mutants are given, too: with a second training, their failures would prove less.
    subject = Subject.of(kind, trainings=1)
    outcomes = [check.outcome(subject) for check in checks_for(subject)]
    assert {one.check: one.text for one in outcomes if one.status == "failed"} == {}
    assert sum(one.status == "passed" for one in outcomes) > 40


def test_an_algorithm_that_ignores_observations_fails_where_they_matter() -> None:
    subject = Subject.of(ArmMeans, trainings=1)
    check_named("solves_known_best_arm")(subject)
    with pytest.raises(CheckFailed, match="observations and actions of different rows"):
        check_named("solves_reward_by_observation_and_action")(subject)
