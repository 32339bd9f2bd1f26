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
from rlplug.nn.arrays import LARGEST_MINIBATCH
from tests.learner.small import SAVES, make, pair, update

ROWS = 24


class Policy(Module):
    """What a stranger writes: two plain networks."""

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


def critic_loss(self: Any, fwd_out: Any, batch: Any) -> Any:
    return (fwd_out["values"] - batch["gains"]).pow(2).mean()


def apart(self: Any, fwd_out: Any, batch: Any) -> Any:
    logs = fwd_out["logits"].log_softmax(-1)
    critic = critic_loss(self, fwd_out, batch)
    return Loss({"actor": -(logs[:, 0] * batch["gains"]).mean(), "critic": critic})


def actor_only(self: Any, fwd_out: Any, batch: Any) -> Any:
    return Loss({"actor": (fwd_out["logits"] * batch["x"][:, :1]).mean()})


def of_parameters(self: Any, module: Any, fwd_out: Any) -> Any:
    return (module.actor[0].weight.pow(2).sum() + fwd_out["values"]).mean()


def stops(self: Any, fwd_out: Any, batch: Any) -> Any:
    return Loss(fwd_out["values"].pow(2).mean(), stop=(batch["gains"].max() > 1.5))


def two(self: Any, module: Any) -> Any:
    return {
        "actor": SGD(module.actor.parameters(), lr=0.1),
        "critic": SGD(module.critic.parameters(), lr=0.2),
    }


def prepare(self: Any, module: Any, batch: Any) -> Any:
    return {"gains": batch["gains"] - module.critic(batch["x"]).squeeze(1)}


def scale_bias(self: Any, gradients: Any) -> None:
    gradients["actor.0.bias"] = gradients["actor.0.bias"] * 2


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


def policy(arrays: str, **settings: Any) -> Any:
    compute = {**settings.pop("compute", {}), "arrays": arrays}
    known = {
        "build": lambda self: Policy(),
        "optimizers": lambda self, module: Adam(module.parameters(), 0.01, fused=True),
        "loss": loss,
    }
    return make(**{**known, **settings}, compute=compute)


def both(**settings: Any) -> Any:
    """A learner that may use arrays, and one that may not."""
    return policy("auto", **settings), policy("off", **settings)


def engine(learner: Any) -> str:
    name: str = learner.engines["default"][0]
    return name


def state(learner: Any) -> Any:
    return learner.modules["default"].state_dict()


def assert_equal_updates(mine: Any, other: Any, updates: int = 4, **how: Any) -> None:
    """The same results, rows and weights, update by update."""
    how = {"num_iters": 2, "minibatch_size": 10, **how}
    for step in range(updates):
        found = mine.update({"default": rows(step)}, timestep=step, **how)["default"]
        expected = other.update({"default": rows(step)}, timestep=step, **how)["default"]
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert float(found[name]) == pytest.approx(float(value), abs=2e-5), name
        for name, values in other.rows.get("default", {}).items():
            given = numpy.asarray(mine.rows["default"][name])
            assert given == pytest.approx(numpy.asarray(values), abs=2e-5)
    torch.testing.assert_close(dict(state(mine)), dict(state(other)), atol=2e-5, rtol=0)


# -- what runs on arrays -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "how"),
    [
        ({"learning": {"max_grad_norm": 0.5}}, {}),
        ({"compute": {"dtype": "float64"}}, {}),
        ({"learning": {"accumulate": 3, "max_grad_norm": 0.5}}, {"minibatch_size": 4}),
        ({"optimizers": two}, {}),
        ({"optimizers": two, "loss": apart}, {}),
        ({"optimizers": two, "loss": actor_only}, {}),
        ({"loss": critic_loss}, {}),
        ({"loss": of_parameters}, {}),
        ({"loss": stops}, {"num_iters": 5}),
        ({"prepare": prepare}, {}),
        ({"addons": {"look": {"gradients": scale_bias}}}, {}),
        (
            {"optimizers": lambda self, module: LBFGS(module.parameters(), lr=0.1, max_iter=4)},
            {"updates": 2, "num_iters": 1, "minibatch_size": 0},
        ),
    ],
)
def test_a_strangers_network_and_loss_run_on_arrays(settings: Any, how: Any) -> None:
    mine, other = both(**settings)
    assert_equal_updates(mine, other, **how)
    # A loss that never comes is waited for.
    waits = settings.get("loss") is actor_only
    assert (engine(mine), engine(other)) == ("undecided" if waits else "arrays", "torch")
    if "dtype" in settings.get("compute", {}):
        torch.testing.assert_close(dict(state(mine)), dict(state(other)), atol=1e-9, rtol=0)
    # What no loss reaches has no gradient.
    for name, param in other.modules["default"].named_parameters():
        there = mine.modules["default"].get_parameter(name).grad
        assert (there is None) == (param.grad is None)


def test_losses_that_come_later_are_computed_in_torch_until_they_were_compared() -> None:
    def delayed(self: Any, fwd_out: Any) -> Any:
        self.calls += 1
        if self.calls < 3:
            return None
        second = {} if self.calls % 2 else {"two": fwd_out["second"].pow(2).mean()}
        return Loss({"one": fwd_out["out"].pow(2).mean(), **second})

    learner = make(
        optimizers=pair,
        loss=delayed,
        save_state=lambda self: {"calls": self.calls},
        load_state=lambda self, state: None,
        compute={"arrays": "auto"},
        calls=0,
    )
    engines = []
    for step in range(8):
        update(learner, 1.0, 2.0, step=step)
        engines.append(engine(learner))
    # The first loss comes in the third minibatch, and the second one in each even one after it.
    assert engines == ["undecided"] * 3 + ["arrays"] * 5
    assert learner.get_state()["plugin_states"]["alg"]["calls"] == 8


@pytest.mark.parametrize("works", [True, False])
def test_a_resumed_learner_keeps_its_engine(works: bool) -> None:
    settings = {"loss": loss if works else unknown}
    whole, resumed = (policy("auto", **settings) for _ in "12")
    for step in range(2):
        whole.update({"default": rows(step)}, timestep=step)
    resumed.set_state(whole.get_state())
    assert resumed.engines == whole.engines
    assert engine(resumed) == ("arrays" if works else "torch")
    for step in range(2, 5):
        for learner in (whole, resumed):
            learner.update({"default": rows(step)}, timestep=step, num_iters=2, minibatch_size=5)
    assert resumed.weight_digests() == whole.weight_digests()


# -- where arrays will not do --------------------------------------------------------------------


def unknown(self: Any, fwd_out: Any) -> Any:
    return torch.special.i0(fwd_out["values"]).mean()


def detour(self: Any, fwd_out: Any) -> Any:
    values = fwd_out["values"]
    return (values * (1.0 if isinstance(values, torch.Tensor) else 1.01)).pow(2).mean()


def stops_on_arrays(self: Any, fwd_out: Any) -> Any:
    values = fwd_out["values"]
    return Loss(values.pow(2).mean(), stop=not isinstance(values, torch.Tensor))


def prepares_otherwise(self: Any, batch: Any) -> Any:
    return {"y": batch["x"] * (1.0 if isinstance(batch["x"], torch.Tensor) else 1.1)}


def needs_tensors(self: Any, module: Any, batch: Any) -> Any:
    return module.critic(torch.as_tensor(batch["x"])).mean()


def keeps(self: Any, fwd_out: Any, batch: Any) -> Any:
    self.last = fwd_out["values"].detach().mean()
    return critic_loss(self, fwd_out, batch)


def later(self: Any, fwd_out: Any, learner: Any) -> Any:
    """Arrays do in the first update, but not in those that follow."""
    values = fwd_out["values"]
    total = (torch.special.i0(values) if learner.timestep > 0 else values.pow(2)).mean()
    return Loss(total, rows={"priority": values.abs()})


def smaller(self: Any, fwd_out: Any, batch: Any, learner: Any) -> Any:
    """Arrays do not in the last minibatch of an epoch, which has fewer rows than others."""
    values = fwd_out["values"]
    fails = learner.timestep > 0 and batch.rows < 10
    total = (torch.special.i0(values) if fails else values.pow(2)).mean()
    return Loss(total, metrics={"rows": batch.rows}, rows={"priority": values.abs()})


def prepared_later(self: Any, batch: Any, learner: Any) -> Any:
    gains = batch["gains"]
    return {"gains": gains + 1 if learner.timestep == 0 else torch.special.i0(gains)}


TORCH: dict[str, tuple[dict[str, Any], str]] = {
    "a function": ({"loss": unknown}, "i0"),
    "other numbers": ({"loss": detour}, "arrays and torch differ"),
    "a stop": ({"loss": stops_on_arrays}, "differ in"),
    "a prepared batch": ({"prepare": prepares_otherwise}, "differ in 'y'"),
    "an add-on": ({"addons": {"needs": {"loss": needs_tensors}}}, ""),
    "kept tensors": (
        {
            "loss": keeps,
            "save_state": lambda self: {"last": self.last},
            "load_state": lambda self, state: None,
        },
        "its hooks keep what they compute",
    ),
    "terms": ({"learning": {"balance_grad_norms": True}}, "per term"),
    "precision": ({"compute": {"precision": "bf16"}}, "bf16"),
    "anomalies": ({"compute": {"detect_anomaly": True}}, "detect_anomaly"),
    "later": ({"loss": later}, "i0"),
    "smaller": ({"loss": smaller}, "i0"),
    "smaller, in parts": ({"loss": smaller, "learning": {"accumulate": 2}}, "i0"),
    "prepared later": ({"prepare": prepared_later}, "i0"),
}


@pytest.mark.parametrize("case", TORCH)
def test_torch_does_what_arrays_cannot_and_the_reason_is_kept(case: str) -> None:
    settings, reason = TORCH[case]
    mine, other = both(**settings)
    assert_equal_updates(mine, other)
    name, why = mine.engines["default"]
    assert (name, reason in why) == ("torch", True), why
    mine.get_state()


def test_large_networks_and_batches_mean_torch() -> None:
    class Wide(Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))
            self.rest = nn.Parameter(torch.ones(999_999))

        def forward_train(self, batch: Any) -> Any:
            return {"out": batch["x"] * self.weight}

    def engine_of(count: int, minibatch_size: int = 0, **hooks: Any) -> Any:
        learner = make(
            build=lambda self: Wide(), optimizers=None, compute={"arrays": "auto"}, **hooks
        )
        given = {"default": Batch({"x": torch.ones(count)})}
        learner.update(given, timestep=1, minibatch_size=minibatch_size)
        return learner.engines["default"]

    fits = LARGEST_MINIBATCH // 1_000_000
    assert engine_of(fits)[0] == "arrays"
    assert engine_of(fits + 1) == ("torch", "the network is large")
    hooks = {"prepare": lambda self, batch: {"y": batch["x"]}}
    assert engine_of(fits + 1, 100, **hooks) == ("torch", "the batch is large")


@pytest.mark.parametrize("how", ["register_hook", "register_post_accumulate_grad_hook", "module"])
def test_hooks_of_torch_are_called(how: str) -> None:
    calls: list[Any] = [[], []]
    learners = both()
    for learner, seen in zip(learners, calls, strict=True):
        learner.update({"default": rows()}, timestep=0, num_iters=2, minibatch_size=10)
        module = learner.modules["default"]
        if how == "module":
            module.actor[2].register_full_backward_hook(lambda *_, seen=seen: seen.append(1))
            continue
        for param in module.parameters():
            getattr(param, how)(lambda *_, seen=seen: seen.append(1))
    assert_equal_updates(*learners)
    assert engine(learners[0]) == "torch"
    # Four updates of six minibatches, each of one layer or eight parameters.
    assert [len(seen) for seen in calls] == [4 * 6 * (1 if how == "module" else 8)] * 2


# -- a trial leaves no trace ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kept", "draw"),
    [
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
    kept: Any, draw: Any, where: str
) -> None:
    def weighted(self: Any, module: Any, fwd_out: Any, batch: Any) -> Any:
        holder = self if where == "plugin" else module
        return critic_loss(self, fwd_out, batch) * (1 + 0.1 * draw(holder.kept))

    def learner(arrays: str) -> Any:
        def build(self: Any) -> Any:
            module = Policy()
            (self if where == "plugin" else module).kept = kept()
            return module

        return policy(arrays, build=build, loss=weighted, **SAVES)

    assert_equal_updates(learner("auto"), learner("off"))


@pytest.mark.parametrize("fails_at", [1, 3])
def test_the_trial_draws_and_counts_once_and_a_later_fallback_counts_once(fails_at: int) -> None:
    def draws(self: Any, module: Any, fwd_out: Any, learner: Any) -> Any:
        self.calls += 1
        module.passes += 1
        values = fwd_out["values"]
        if fails_at == 1:
            noise = torch.randn(ROWS, generator=learner.generator())
            values = values * (noise + torch.rand(ROWS) + float(numpy.random.random()))
        return (torch.special.i0(values) if self.calls >= fails_at else values).mean()

    def trained(arrays: str) -> Any:
        torch.manual_seed(0)
        numpy.random.seed(0)
        learner = policy(
            arrays,
            optimizers=two,
            loss=draws,
            save_state=lambda self: {"calls": self.calls},
            load_state=lambda self, state: None,
            calls=0,
        )
        for step in range(5):
            learner.update({"default": rows(step)}, timestep=step)
        assert engine(learner) == "torch"
        return dict(state(learner)), learner.get_state()["plugin_states"]["alg"]["calls"]

    (mine, count), (other, expected) = trained("auto"), trained("off")
    assert (count, mine["passes"].item()) == (expected, 5.0) == (5, 5.0)
    torch.testing.assert_close(mine, other, atol=1e-5, rtol=0)


# -- errors are those of torch -------------------------------------------------------------------


@pytest.mark.parametrize("arrays", ["auto", "off"])
def test_errors_are_the_same_on_arrays_as_in_torch(arrays: str) -> None:
    wrong = policy(arrays, loss=lambda self, batch: batch["nothing"].mean())
    with pytest.raises(KeyError, match="nothing") as raised:
        wrong.update({"default": rows()}, timestep=1)
    assert "hook 'compute_loss_for_module'" in raised.value.__notes__[0]
    wrong = policy(arrays, loss=lambda self, batch: batch["gains"].mean())
    with pytest.raises(PluginError, match="connected to no parameter"):
        wrong.update({"default": rows()}, timestep=1)
    learner = policy(arrays)
    for step in range(2):
        learner.update({"default": rows()}, timestep=step)
    below = rows().with_columns({"actions": numpy.full(ROWS, -1)})
    with pytest.raises(RuntimeError, match="index -1 is out of bounds"):
        learner.update({"default": below}, timestep=9)
