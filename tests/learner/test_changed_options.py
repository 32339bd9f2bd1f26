"""Options that one module alone has, changed after it was built."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.optim import SGD

from rlplug.errors import RequestError


def scaled(self: Any, fwd_out: Any, config: Any) -> Any:
    return fwd_out["out"].mean() * config.scale


def test_an_option_of_a_loss_is_in_force_from_the_next_update_on(make: Any, batch: Any) -> None:
    learner = make(ids=("a", "b"), compute_loss_for_module=scaled)
    learner.set_options("a", {"scale": 3.0})
    results = learner.update({"a": batch(1.0), "b": batch(1.0)}, timestep=1)
    assert [float(results[name]["loss"]) for name in ("a", "b")] == [6.0, 2.0]


def with_default_optimizer() -> dict[str, Any]:
    return {"configure_optimizers_for_module": None}


def reads_twice(self: Any, module: Any, config: Any) -> Any:
    momentum = min(config.scale, 0.5)
    return SGD(module.parameters(), config.learning_rate, momentum)


@pytest.mark.parametrize(
    ("hooks", "options"),
    [
        ({}, {"learning_rate": 0.5}),
        (with_default_optimizer(), {"learning_rate": 0.5}),
        ({"configure_optimizers_for_module": reads_twice}, {"scale": 0.25}),
    ],
)
def test_what_the_optimizers_of_a_module_were_made_with_is_refused(
    make: Any, batch: Any, hooks: Any, options: Any
) -> None:
    learner = make(ids=("a", "b"), **hooks)
    (name,) = options
    with pytest.raises(RequestError, match=f"made with '{name}'"):
        learner.set_options("a", options)
    assert learner.calls.overrides("a") == {}
    # For a module that is not there yet nothing was made.
    learner.add_module("c", learner.spaces["a"], options=options)
    assert getattr(learner.calls.overrides("c")["alg"], name) == options[name]


def test_a_state_brings_options_and_the_optimizers_that_read_them(make: Any, batch: Any) -> None:
    learner, fresh = make(ids=("a",)), make(ids=("a",))
    spaces = learner.spaces["a"]
    learner.add_module("b", spaces, options={"learning_rate": 0.5})
    fresh.add_module("b", spaces)
    learner.update({"b": batch(1.0)}, timestep=1)
    fresh.set_state(learner.get_state())
    assert fresh.get_optimizer("b").param_groups[0]["lr"] == 0.5
    rates = [
        one.update({"b": batch(1.0)}, timestep=2)["b"]["learning_rate"] for one in (learner, fresh)
    ]
    assert rates == [0.5, 0.5]
    assert torch.equal(learner.modules["b"].weight, fresh.modules["b"].weight)


def test_optimizers_are_configured_once_also_where_a_state_is_loaded(make: Any) -> None:
    calls = []

    def inside(self: Any, module_id: str, module: Any, config: Any) -> Any:
        calls.append(module_id)

        class Mine(SGD):
            """Another class in each call."""

        return Mine(module.parameters(), config.learning_rate)

    learner, fresh = (make(ids=("a", "b"), configure_optimizers_for_module=inside) for _ in "12")
    assert calls == ["a", "b"] * 2
    fresh.set_state(learner.get_state())
    learner.set_options("a", {"scale": 2.0})
    fresh.set_state(learner.get_state())
    assert calls == ["a", "b"] * 2
    assert fresh.calls.overrides("a")["alg"].scale == 2.0
