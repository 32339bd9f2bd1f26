"""Updates on arrays: the same numbers as in torch, and torch wherever arrays will not do."""

from __future__ import annotations

import collections
import itertools
import random
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.optim import LBFGS, SGD, Adam

from rlplug import Batch, Loss, Module
from rlplug.errors import PluginError

ROWS = 24


class Policy(Module):
    """What a stranger writes: two plain networks and a learned deviation."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 4))
        self.critic = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 1))
        self.register_buffer("passes", torch.zeros(()))

    def forward_train(self, batch: Any) -> Any:
        x = batch["x"]
        return {"logits": self.actor(x), "values": self.critic(x).squeeze(1)}


def loss(self: Any, fwd_out: Any, batch: Any) -> Any:
    """A policy gradient with a value loss and an entropy."""
    logs = fwd_out["logits"].log_softmax(-1)
    chosen = logs.gather(1, batch["actions"].long().unsqueeze(1)).squeeze(1)
    policy = -(chosen * batch["gains"]).mean()
    value = nn.functional.smooth_l1_loss(fwd_out["values"], batch["gains"])
    entropy = -(logs.exp() * logs).sum(-1).mean()
    return Loss(
        policy + 0.5 * value - 0.01 * entropy,
        metrics={"entropy": entropy, "three": 3},
        rows={"priority": (fwd_out["values"] - batch["gains"]).abs()},
    )


def adam(self: Any, module: Any) -> Any:
    return Adam(module.parameters(), 0.01, fused=True)


SETTINGS: dict[str, Any] = {
    "build": lambda self: Policy(),
    "configure_optimizers_for_module": adam,
    "compute_loss_for_module": loss,
}


def rows(seed: int = 0) -> Batch:
    random = numpy.random.default_rng(seed)
    return Batch(
        {
            "x": random.standard_normal((ROWS, 3)).astype(numpy.float32),
            "actions": random.integers(0, 4, ROWS),
            "gains": random.standard_normal(ROWS).astype(numpy.float32),
            "indices": numpy.arange(ROWS),
        }
    )


@pytest.fixture
def both(make: Any) -> Any:
    """`both(hook=…)`: a learner that may use arrays, and one that may not."""

    def learners(**settings: Any) -> Any:
        compute = settings.pop("compute", {})
        return tuple(
            make(**{**SETTINGS, **settings}, compute={**compute, "arrays": arrays})
            for arrays in ("auto", "off")
        )

    return learners


def engine(learner: Any) -> str:
    name: str = learner.engines["default"][0]
    return name


def weights(learner: Any) -> dict[str, Any]:
    return {name: value.clone() for name, value in learner.modules["default"].state_dict().items()}


def assert_equal_updates(mine: Any, other: Any, updates: int = 4, **how: Any) -> None:
    """The same weights and the same results, update by update."""
    how = {"num_iters": 2, "minibatch_size": 10, **how}
    for step in range(updates):
        found = mine.update({"default": rows(step)}, timestep=step, **how)["default"]
        expected = other.update({"default": rows(step)}, timestep=step, **how)["default"]
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert float(found[name]) == pytest.approx(float(value), abs=2e-5), name
    for name, value in weights(other).items():
        torch.testing.assert_close(weights(mine)[name], value, atol=2e-5, rtol=0)


def test_a_strangers_network_and_loss_run_on_arrays(both: Any) -> None:
    mine, other = both(learning={"max_grad_norm": 0.5})
    assert_equal_updates(mine, other)
    assert engine(mine) == "arrays"
    assert engine(other) == "torch"
    torch.testing.assert_close(
        mine.rows["default"]["priority"], other.rows["default"]["priority"], atol=2e-5, rtol=0
    )
    assert torch.equal(mine.rows["default"]["indices"], other.rows["default"]["indices"])


def test_in_float64_they_agree_to_nine_digits(both: Any) -> None:
    mine, other = both(compute={"dtype": "float64"})
    assert_equal_updates(mine, other)
    assert engine(mine) == "arrays"
    for name, value in weights(other).items():
        torch.testing.assert_close(weights(mine)[name], value, atol=1e-9, rtol=0)


def test_gradients_of_accumulated_minibatches_add_up(both: Any) -> None:
    mine, other = both(learning={"accumulate": 3, "max_grad_norm": 0.5})
    assert_equal_updates(mine, other, minibatch_size=4)
    assert engine(mine) == "arrays"


def two(self: Any, module: Any) -> Any:
    return {
        "actor": SGD(module.actor.parameters(), lr=0.1),
        "critic": SGD(module.critic.parameters(), lr=0.2),
    }


def apart(self: Any, fwd_out: Any, batch: Any) -> Any:
    logs = fwd_out["logits"].log_softmax(-1)
    return Loss(
        {
            "actor": -(logs[:, 0] * batch["gains"]).mean(),
            "critic": (fwd_out["values"] - batch["gains"]).pow(2).mean(),
        }
    )


@pytest.mark.parametrize("which", [loss, apart])
def test_two_optimizers_move_their_own(both: Any, which: Any) -> None:
    mine, other = both(configure_optimizers_for_module=two, compute_loss_for_module=which)
    assert_equal_updates(mine, other)
    assert engine(mine) == "arrays"


def test_an_optimizer_that_a_loss_leaves_out_rests(both: Any) -> None:
    def first(self: Any, fwd_out: Any, batch: Any) -> Any:
        return Loss({"actor": (fwd_out["logits"] * batch["x"][:, :1]).mean()})

    mine, other = both(configure_optimizers_for_module=two, compute_loss_for_module=first)
    assert_equal_updates(mine, other)
    assert all(param.grad is None for param in mine.modules["default"].critic.parameters())


def test_parameters_that_a_loss_does_not_reach_stay(both: Any) -> None:
    def critic_only(self: Any, fwd_out: Any, batch: Any) -> Any:
        return (fwd_out["values"] - batch["gains"]).pow(2).mean()

    mine, other = both(compute_loss_for_module=critic_only)
    assert_equal_updates(mine, other)
    assert engine(mine) == "arrays"
    assert all(param.grad is None for param in mine.modules["default"].actor.parameters())


def test_lbfgs_evaluates_on_arrays(both: Any) -> None:
    def lbfgs(self: Any, module: Any) -> Any:
        return LBFGS(module.parameters(), lr=0.1, max_iter=4)

    mine, other = both(configure_optimizers_for_module=lbfgs)
    assert_equal_updates(mine, other, updates=2, num_iters=1, minibatch_size=0)
    assert engine(mine) == "arrays"


def test_hooks_see_gradients_that_they_may_keep_and_change(both: Any) -> None:
    kept: dict[str, list[Any]] = {}

    def look(self: Any, gradients: Any, learner: Any) -> None:
        gradients["actor.0.bias"] = gradients["actor.0.bias"] * 2
        name = "actor.0.weight"
        kept.setdefault(learner.engines["default"][0], []).append(gradients[name])

    mine, other = both(addons={"look": {"postprocess_gradients": look}})
    assert_equal_updates(mine, other)
    assert engine(mine) == "arrays"
    # The first minibatch of the other one was torch's.
    for found, expected in zip(kept["arrays"][1:], kept["torch"][1:], strict=False):
        assert type(found) is torch.Tensor
        assert found.shape == expected.shape
    assert not torch.equal(kept["arrays"][0], kept["arrays"][1])


def test_prepare_batch_runs_on_arrays_and_its_columns_are_tensors_afterwards(both: Any) -> None:
    seen: list[Any] = []

    def prepare(self: Any, module: Any, batch: Any) -> Any:
        return {"gains": batch["gains"] - module.critic(batch["x"]).squeeze(1)}

    def additional(self: Any, batch: Any, metrics: Any) -> Any:
        seen.extend((batch["gains"], metrics["entropy"], metrics["loss"]))
        return {"mean": batch["gains"].mean()}

    mine, other = both(prepare_batch=prepare, additional_update=additional)
    assert_equal_updates(mine, other)
    assert engine(mine) == "arrays"
    assert all(type(one) is torch.Tensor for one in seen)


def test_steps_with_nan_are_skipped_and_counted(both: Any) -> None:
    mine, _ = both()
    mine.update({"default": rows()}, timestep=1)
    before = weights(mine)
    bad = rows().with_columns({"gains": numpy.full(ROWS, numpy.nan, numpy.float32)})
    assert mine.update({"default": bad}, timestep=2)["default"]["nonfinite"] == 1
    for name, value in weights(mine).items():
        assert torch.equal(value, before[name])
    mine.update({"default": rows()}, timestep=3)
    assert engine(mine) == "arrays"


def test_a_stop_ends_the_epochs(both: Any) -> None:
    def stops(self: Any, fwd_out: Any, batch: Any) -> Any:
        value = fwd_out["values"].pow(2).mean()
        return Loss(value, stop=(batch["gains"].max() > 1.5))

    mine, other = both(compute_loss_for_module=stops)
    assert_equal_updates(mine, other, num_iters=5)


# -- where arrays will not do --------------------------------------------------------------------


def unknown(self: Any, fwd_out: Any, batch: Any) -> Any:
    return torch.special.i0(fwd_out["values"]).mean()


def own_graph(self: Any, module: Any, fwd_out: Any) -> Any:
    return (module.actor[0].weight.pow(2).sum() + fwd_out["values"]).mean()


def test_what_torch_computes_of_parameters_alone_goes_with_arrays(both: Any) -> None:
    mine, other = both(compute_loss_for_module=own_graph)
    assert_equal_updates(mine, other)
    assert engine(mine) == "arrays"


def detour(self: Any, fwd_out: Any, batch: Any) -> Any:
    values = fwd_out["values"]
    plain = isinstance(values, torch.Tensor)
    return (values * (1.0 if plain else 1.01)).pow(2).mean()


@pytest.mark.parametrize(
    ("which", "reason"),
    [(unknown, "i0"), (detour, "arrays and torch differ")],
)
def test_torch_does_what_arrays_cannot_and_the_reason_is_kept(
    both: Any, which: Any, reason: str
) -> None:
    mine, other = both(compute_loss_for_module=which)
    assert_equal_updates(mine, other)
    name, why = mine.engines["default"]
    assert name == "torch"
    assert reason in why
    for key, value in weights(other).items():
        assert torch.equal(weights(mine)[key], value)


def test_an_add_on_that_needs_tensors_brings_all_to_torch(both: Any) -> None:
    def needs(self: Any, module: Any, batch: Any) -> Any:
        return module.critic(torch.as_tensor(batch["x"])).mean()

    mine, other = both(addons={"needs": {"compute_loss_for_module": needs}})
    assert_equal_updates(mine, other)
    assert engine(mine) == "torch"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"learning": {"balance_grad_norms": True}}, "per term"),
        ({"compute": {"precision": "bf16"}}, "bf16"),
        ({"compute": {"detect_anomaly": True}}, "detect_anomaly"),
        ({"build": lambda self: Policy(2_000_000)}, "large"),
    ],
)
def test_some_settings_mean_torch(both: Any, changes: Any, reason: str) -> None:
    mine, _ = both(**changes)
    mine.update({"default": rows()}, timestep=1)
    assert reason in mine.engines["default"][1]
    assert engine(mine) == "torch"


def test_the_trial_leaves_no_trace(make: Any) -> None:
    def draws(self: Any, module: Any, fwd_out: Any, batch: Any, learner: Any) -> Any:
        self.calls_so_far = getattr(self, "calls_so_far", 0) + 1
        module.passes += 1
        noise = torch.randn(ROWS, generator=learner.generator())
        noise = noise + torch.rand(ROWS) + float(numpy.random.random())
        return torch.special.i0(fwd_out["values"] * noise).mean() * self.calls_so_far

    def found(arrays: str) -> Any:
        torch.manual_seed(0)
        numpy.random.seed(0)
        learner = make(
            **{**SETTINGS, "compute_loss_for_module": draws},
            save_state=lambda self: {"calls": self.calls_so_far},
            load_state=lambda self, state: None,
            compute={"arrays": arrays},
        )
        for step in range(3):
            learner.update({"default": rows(step)}, timestep=step)
        return weights(learner), learner.calls.algorithm.plugin.calls_so_far

    (mine, count), (other, expected) = found("auto"), found("off")
    assert count == expected == 3
    for name, value in other.items():
        assert torch.equal(mine[name], value), name
    assert mine["passes"].item() == 3


class Slotted:
    """A count in a slot."""

    __slots__ = ("__count",)

    def __init__(self) -> None:
        self.__count = 0

    def add(self) -> int:
        self.__count += 1
        return self.__count


class Count:
    """A count in an object that can be called."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> int:
        self.count += 1
        return self.count


@pytest.mark.parametrize(
    ("kept", "draw"),
    [
        (Slotted, lambda kept: kept.add()),
        (Count, lambda kept: kept()),
        (collections.deque, lambda kept: kept.append(1) or len(kept)),
        (list, lambda kept: kept.append(1) or len(kept)),
        (lambda: numpy.random.RandomState(1), lambda kept: kept.rand()),
        (lambda: numpy.random.default_rng(1), lambda kept: kept.random()),
        (lambda: random.Random(1), lambda kept: kept.random()),
        (lambda: itertools.count(1), next),
        (lambda: {"deep": [numpy.zeros(1)]}, lambda kept: kept["deep"][0].__iadd__(1).item()),
    ],
)
@pytest.mark.parametrize("where", ["plugin", "module"])
def test_the_trial_leaves_no_trace_in_what_plugins_and_modules_hold(
    both: Any, kept: Any, draw: Any, where: str
) -> None:
    def weighted(self: Any, module: Any, fwd_out: Any, batch: Any) -> Any:
        holder = self if where == "plugin" else module
        return (fwd_out["values"] - batch["gains"]).pow(2).mean() * (1 + 0.1 * draw(holder.kept))

    mine, other = both(
        compute_loss_for_module=weighted,
        save_state=lambda self: {},
        load_state=lambda self, state: None,
    )
    for learner in (mine, other):
        module, plugin = learner.modules["default"], learner.calls.algorithm.plugin
        (plugin if where == "plugin" else module).kept = kept()
    assert_equal_updates(mine, other)


LOG: list[int] = []
CALLS = 0
LAST: Any = None


def test_objects_that_a_plugin_holds_stay_the_very_objects(make: Any) -> None:
    log: list[int] = []

    def remembers(self: Any, module: Any, learner: Any) -> Any:
        self.learner, self.log = learner, log
        return Adam(module.parameters(), 0.01, fused=True)

    def logs(self: Any, fwd_out: Any, batch: Any) -> Any:
        self.log.append(1)
        return loss(self, fwd_out, batch)

    learner = make(
        **{
            **SETTINGS,
            "configure_optimizers_for_module": remembers,
            "compute_loss_for_module": logs,
        },
        save_state=lambda self: {},
        load_state=lambda self, state: None,
        compute={"arrays": "auto"},
    )
    for step in range(3):
        learner.update({"default": rows(step)}, timestep=step)
    plugin = learner.calls.algorithm.plugin
    assert engine(learner) == "arrays"
    assert plugin.learner is learner
    assert plugin.log is log
    assert len(log) == 3


def test_hooks_that_keep_what_they_compute_keep_tensors(both: Any) -> None:
    def keeps(self: Any, fwd_out: Any, batch: Any) -> Any:
        self.last = fwd_out["values"].detach().mean()
        return (fwd_out["values"] - batch["gains"]).pow(2).mean()

    mine, other = both(
        compute_loss_for_module=keeps,
        save_state=lambda self: {"last": self.last},
        load_state=lambda self, state: None,
    )
    assert_equal_updates(mine, other)
    assert mine.engines["default"] == ("torch", "its hooks keep what they compute")
    assert type(mine.calls.algorithm.plugin.last) is torch.Tensor
    mine.get_state()


@pytest.mark.parametrize("how", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_on_parameters_are_called(both: Any, how: str) -> None:
    calls: list[int] = []

    def note(*_: Any) -> None:
        calls.append(1)

    mine, other = both()
    for learner in (mine, other):
        for param in learner.modules["default"].parameters():
            getattr(param, how)(note)
    assert_equal_updates(mine, other)
    assert engine(mine) == "torch"
    # Two learners, four updates of six minibatches, eight parameters.
    assert len(calls) == 2 * 4 * 6 * 8


def test_what_is_met_later_falls_back_without_losing_the_minibatch(both: Any) -> None:
    def later(self: Any, fwd_out: Any, batch: Any, learner: Any) -> Any:
        values = fwd_out["values"]
        return (torch.special.i0(values) if learner.timestep > 1 else values.pow(2)).mean()

    mine, other = both(compute_loss_for_module=later)
    assert_equal_updates(mine, other)
    name, why = mine.engines["default"]
    assert name == "torch"
    assert "i0" in why


@pytest.mark.parametrize("accumulate", [1, 2])
def test_what_fails_in_the_midst_of_an_update_counts_each_minibatch_once(
    both: Any, accumulate: int
) -> None:
    def smaller(self: Any, fwd_out: Any, batch: Any, learner: Any) -> Any:
        # The last minibatch of an epoch has fewer rows than others.
        values = fwd_out["values"]
        fails = learner.timestep > 1 and batch.rows < 16
        total = (torch.special.i0(values) if fails else values.pow(2)).mean()
        return Loss(total, metrics={"rows": batch.rows}, rows={"priority": values.abs()})

    mine, other = both(compute_loss_for_module=smaller, learning={"accumulate": accumulate})
    for step in range(4):
        assert_equal_updates(mine, other, 1, minibatch_size=16)
        many = {"num_iters": 2, "minibatch_size": 16}
        for one in (mine, other):
            one.update({"default": rows(step)}, timestep=step, **many)
        for name, values in other.rows["default"].items():
            found = numpy.asarray(mine.rows["default"][name])
            assert found == pytest.approx(numpy.asarray(values), abs=2e-5)
    assert engine(mine) == "torch"
    assert "i0" in mine.engines["default"][1]


def test_a_plugins_own_error_stays_its_own(both: Any) -> None:
    def wrong(self: Any, batch: Any) -> Any:
        return batch["nothing"].mean()

    mine, _ = both(compute_loss_for_module=wrong)
    with pytest.raises(KeyError, match="nothing") as raised:
        mine.update({"default": rows()}, timestep=1)
    assert "hook 'compute_loss_for_module'" in raised.value.__notes__[0]


def test_an_action_below_0_is_refused_on_arrays_as_in_torch(both: Any) -> None:
    mine, other = both()
    assert_equal_updates(mine, other)
    wrong = rows().with_columns({"actions": numpy.full(ROWS, -1)})
    for learner in (mine, other):
        with pytest.raises(RuntimeError, match="index -1 is out of bounds"):
            learner.update({"default": wrong}, timestep=9)


def test_a_loss_without_parameters_is_refused_on_arrays_as_in_torch(both: Any) -> None:
    mine, _ = both(compute_loss_for_module=lambda self, batch: batch["gains"].mean())
    with pytest.raises(PluginError, match="connected to no parameter"):
        mine.update({"default": rows()}, timestep=1)


def test_a_parameter_that_is_frozen_on_the_way_stays(both: Any) -> None:
    mine, other = both()
    for learner in (mine, other):
        learner.update({"default": rows()}, timestep=1)
        learner.modules["default"].critic[0].weight.requires_grad_(False)
    frozen = mine.modules["default"].critic[0].weight.clone()
    assert_equal_updates(mine, other)
    assert torch.equal(mine.modules["default"].critic[0].weight, frozen)


def test_hooks_on_modules_that_need_autograd_mean_torch(both: Any) -> None:
    mine, other = both()
    seen: list[int] = []
    mine.update({"default": rows()}, timestep=0, num_iters=2, minibatch_size=10)
    other.update({"default": rows()}, timestep=0, num_iters=2, minibatch_size=10)
    mine.modules["default"].actor[2].register_full_backward_hook(lambda *_: seen.append(1))
    assert_equal_updates(mine, other)
    assert seen
    assert engine(mine) == "torch"


@pytest.mark.parametrize("which", [loss, unknown])
def test_a_resumed_learner_keeps_its_engine(make: Any, which: Any) -> None:
    settings = {**SETTINGS, "compute_loss_for_module": which, "compute": {"arrays": "auto"}}
    whole, resumed = make(**settings), make(**settings)
    for step in range(2):
        whole.update({"default": rows(step)}, timestep=step)
    resumed.set_state(whole.get_state())
    assert resumed.engines == whole.engines
    for step in range(2, 5):
        for learner in (whole, resumed):
            learner.update({"default": rows(step)}, timestep=step, num_iters=2, minibatch_size=5)
    for name, value in weights(whole).items():
        assert torch.equal(weights(resumed)[name], value), name
