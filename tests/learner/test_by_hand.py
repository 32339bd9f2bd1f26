"""The steps of an update called by hand, as RLlib names them."""

from __future__ import annotations

from typing import Any

import pytest

from rlplug import ALL_MODULES
from tests.learner.small import batch, make, weights


def test_an_update_can_be_made_step_by_step() -> None:
    whole, apart = make(ids=("a", "b")), make(ids=("a", "b"))
    rows = {"a": batch(3.0), "b": batch(5.0)}
    whole.update(rows, timestep=1)
    losses = apart.compute_loss(apart.forward_train(rows), rows)
    assert [float(losses[name].detach()) for name in ("a", "b", ALL_MODULES)] == [6.0, 10.0, 16.0]
    gradients = apart.postprocess_gradients(apart.compute_gradients(losses))
    own = [param for param in gradients if param is apart.modules["b"].weight]
    assert [float(gradients[param]) for param in own] == [5.0]
    apart.apply_gradients(gradients)
    for name in ("a", "b"):
        assert weights(apart, name) == weights(whole, name)
    assert weights(apart, "b")[0] == 1.5


def test_additional_update_sees_the_averages_and_can_be_called_for_some() -> None:
    seen = []

    def additional(self: Any, module_id: str, metrics: Any, timestep: int) -> Any:
        seen.append((module_id, {name: float(value) for name, value in metrics.items()}))
        return {"at": timestep}

    learner = make(ids=("a", "b"), finish=additional, learning={"max_grad_norm": 9})
    learner.update({"a": batch(1.0)}, timestep=1, num_iters=2)
    # The losses are 2.0 and, after a step of 0.1, 1.9.
    assert seen[0][1]["loss"] == pytest.approx(1.95)
    rows = {"a": batch(1.0), "b": batch(1.0)}
    assert learner.additional_update(rows, timestep=7) == {"a": {"at": 7}, "b": {"at": 7}}
    assert learner.timestep == 7
    assert learner.additional_update({"b": rows["b"]}, timestep=8, module_ids=["b"]) == {
        "b": {"at": 8}
    }
    assert seen[-1] == ("b", {})


def test_registered_metrics_are_reported_once_with_their_module() -> None:
    learner = make()
    learner.register_metric("default", "lives", 3)
    learner.register_metrics("default", {"deaths": 1})
    learner.register_metric(ALL_MODULES, "games", 3)
    results = learner.update({"default": batch(1.0)}, timestep=1)
    assert (results["default"]["lives"], results["default"]["deaths"]) == (3, 1)
    assert results[ALL_MODULES]["games"] == 3
    results = learner.update({"default": batch(1.0)}, timestep=2)
    assert not {"lives", "games"} & {*results["default"], *results[ALL_MODULES]}
