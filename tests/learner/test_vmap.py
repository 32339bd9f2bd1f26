"""Alike modules updated together, and those that are not alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch
from torch.optim import SGD, Adam

from rlplug import Batch, Loss, Module
from rlplug.config import Schedule

IDS = ("a", "b", "c", "d")


class Net(Module):
    """A network wide enough for its weights to have two real dimensions."""

    def __init__(self, gain: float = 1.0) -> None:
        super().__init__()
        self.gain = gain
        self.net = torch.nn.Sequential(
            torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2)
        )
        self.register_buffer("offset", torch.randn(2))

    def forward_train(self, batch: Any) -> Any:
        return {"out": (self.net(batch["x"]) + self.offset) * self.gain}


def loss(self: Any, fwd_out: Any) -> Any:
    value = fwd_out["out"].pow(2).mean()
    return Loss(value, metrics={"seen": value * 2, "constant": 3}, rows={"p": fwd_out["out"][:, 0]})


def settings(join_from: int, **known: Any) -> dict[str, Any]:
    return {
        "ids": IDS,
        "build": lambda self: Net(),
        "configure_optimizers_for_module": lambda self, module: Adam(
            module.parameters(), 0.01, fused=True
        ),
        "compute_loss_for_module": loss,
        "learning": {"max_grad_norm": 0.1, "join_from": join_from},
        **known,
    }


def batches(bad: str = "") -> dict[str, Batch]:
    generator = torch.Generator().manual_seed(1)
    rows = {name: torch.randn(6, 3, generator=generator) for name in IDS}
    if bad:
        rows[bad] = torch.full((6, 3), float("nan"))
    return {name: Batch({"x": x, "indices": torch.arange(6)}) for name, x in rows.items()}


def groups(learner: Any) -> list[list[str]]:
    """The modules of every vmap group."""
    return [
        [update.member.module_id for update in engine.updates]
        for engine in learner._engines.vmap_groups.engines
    ]


def updated(
    make: Any, steps: int, change: Callable[[Any, int], object] | None = None, **known: Any
) -> tuple[Any, Any]:
    """Two learners after the same updates: modules one by one, and together.

    After each update `change(learner, step)` is called.
    """
    learners = make(**settings(0, **known)), make(**settings(4, **known))
    for step in range(steps):
        for learner in learners:
            learner.update(batches(), timestep=step)
            if change is not None:
                change(learner, step)
    return learners


def assert_same(one: Any, other: Any) -> None:
    for name in IDS:
        mine, its = one.modules[name].state_dict(), other.modules[name].state_dict()
        for key, value in mine.items():
            torch.testing.assert_close(its[key], value, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda self, module: Adam(module.parameters(), 0.01, fused=True),
        lambda self, module: SGD(module.parameters(), 0.1, momentum=0.9),
    ],
)
def test_modules_updated_together_equal_modules_updated_one_by_one(
    make: Any, optimizer: Any
) -> None:
    known = {"configure_optimizers_for_module": optimizer}
    apart, together = make(**settings(0, **known)), make(**settings(4, **known))
    for step in range(5):
        mine = apart.update(batches(), timestep=step, num_iters=2, minibatch_size=3)
        its = together.update(batches(), timestep=step, num_iters=2, minibatch_size=3)
        for name in IDS:
            assert mine[name].keys() == its[name].keys()
            for key, value in mine[name].items():
                assert float(its[name][key]) == pytest.approx(float(value), abs=1e-5), key
    assert len(groups(together)) == 1
    assert not groups(apart)
    assert_same(apart, together)
    assert torch.equal(apart.rows["b"]["indices"], together.rows["b"]["indices"])
    torch.testing.assert_close(apart.rows["b"]["p"], together.rows["b"]["p"])


@pytest.mark.filterwarnings("error:There is a performance drop")
@pytest.mark.parametrize(
    "kind",
    [
        torch.nn.functional.mse_loss,
        torch.nn.functional.smooth_l1_loss,
        torch.nn.functional.huber_loss,
        lambda out, _: torch.nn.functional.cross_entropy(out, torch.tensor([0, 1, 1, 0, 1, 0])),
    ],
)
def test_losses_of_torch_are_computed_for_all_modules_at_once(make: Any, kind: Any) -> None:
    def own(self: Any, batch: Batch, fwd_out: Any) -> Any:
        return kind(fwd_out["out"], batch["x"][:, :2])

    apart, together = updated(make, 3, compute_loss_for_module=own)
    assert len(groups(together)) == 1
    assert together._engines.vmap_groups.engines[0].works
    assert_same(apart, together)


def test_a_loss_that_comes_to_draw_random_numbers_draws_them_for_each_module(make: Any) -> None:
    def noisy(self: Any, batch: Batch, fwd_out: Any) -> Any:
        value = fwd_out["out"].pow(2).mean()
        return value * torch.rand(()) if batch.rows < 6 else value

    learners = [make(**settings(one, compute_loss_for_module=noisy)) for one in (0, 4)]
    for step in range(5):
        for learner in learners:
            torch.manual_seed(step)
            parts = {name: one.select(slice(6 - (step == 3))) for name, one in batches().items()}
            learner.update(parts, timestep=step)
    assert_same(*learners)


def test_a_bad_batch_of_one_module_leaves_the_others_as_they_would_be(make: Any) -> None:
    apart, together = make(**settings(0)), make(**settings(4))
    for step, bad in enumerate(("", "b", "")):
        mine = apart.update(batches(bad), timestep=step)
        its = together.update(batches(bad), timestep=step)
        for name in IDS:
            assert mine[name].get("nonfinite") == its[name].get("nonfinite")
    assert_same(apart, together)


def test_state_loaded_into_modules_updated_together_is_used(make: Any) -> None:
    first, second = make(**settings(4)), make(**settings(4))
    for step in range(3):
        first.update(batches(), timestep=step)
    second.update(batches(), timestep=0)
    second.set_state(first.get_state())
    for learner in (first, second):
        learner.update(batches(), timestep=4)
    assert_same(first, second)


class Folded(Net):
    """Layers of rows in fragments, of a constant, of other dimensions, and without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.of_constant = torch.nn.Linear(1, 3)
        self.plain = torch.nn.Linear(2, 2, bias=False)
        self.bound = torch.nn.Tanh()

    def forward_train(self, batch: Any) -> Any:
        x = batch["x"] + self.of_constant(self.bound(torch.ones(1, 1)))
        x = x + self.bound(x.double()).float()
        found = super().forward_train({"x": x.reshape(2, 3, 3)})["out"].reshape(6, 2)
        # Its rows lie in the second dimension of what vmap sees.
        return {"out": self.plain(self.bound(found.T.flip(0).T))}


class Sloped(Net):
    """Takes derivatives of tanh within its forward pass: at a constant, and at its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.bound = torch.nn.Tanh()

    def forward_train(self, batch: Any) -> Any:
        slope = torch.func.grad(lambda x: self.bound(x).sum())
        x = batch["x"] * slope(torch.full((1, 3), 0.5)) + slope(batch["x"])
        return super().forward_train({"x": x})


class Shared(Net):
    """One activation at two places, two in a row, and one with a forward pass of its own."""

    def __init__(self) -> None:
        super().__init__()
        bound = torch.nn.ReLU()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(3, 5), bound, torch.nn.Linear(5, 4), bound, torch.nn.Linear(4, 2)
        )
        self.deep = torch.nn.Sequential(
            torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Tanh(), torch.nn.Linear(4, 2)
        )
        self.halved = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh())
        self.halved[1].forward = halved

    def forward_train(self, batch: Any) -> Any:
        found = super().forward_train(batch)["out"]
        return {"out": self.halved(found + self.deep(found))}


def halved(rows: Any) -> Any:
    return torch.tanh(rows) / 2


class Penalized(Net):
    """Takes a derivative in its rows that is a part of the loss."""

    def forward_train(self, batch: Any) -> Any:
        x = batch["x"].clone().requires_grad_()
        out = super().forward_train({"x": x})["out"]
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return {"out": out + slope[:, :2]}


def test_a_derivative_within_a_forward_pass_is_part_of_the_gradient(make: Any) -> None:
    known = {"build": lambda self: Penalized()}
    apart, together = updated(make, 3, **known)
    assert_same(apart, together)


def test_hooks_on_layers_that_come_later_are_called(make: Any) -> None:
    def change(learner: Any, step: int) -> None:
        for module in learner.modules.values() if step == 1 else ():
            module.net[0].register_forward_hook(lambda layer, given, out: out * 2)

    assert_same(*updated(make, 4, change))


def test_layers_that_are_replaced_are_used(make: Any) -> None:
    def change(learner: Any, step: int) -> None:
        for module in learner.modules.values() if step == 1 else ():
            module.net[1] = torch.nn.ReLU()
        if step == 2:
            learner.modules["c"].net[1] = torch.nn.Tanh()

    apart, together = updated(make, 4, change)
    assert groups(together) == []
    assert_same(apart, together)


def test_buffers_that_are_replaced_between_updates_are_used(make: Any) -> None:
    def change(learner: Any, step: int) -> None:
        learner.modules["b"].offset = torch.full((2,), float(step))

    apart, together = updated(make, 3, change)
    assert groups(together) == [list(IDS)]
    assert_same(apart, together)


def test_a_lower_precision_is_that_of_modules_updated_together_too(make: Any) -> None:
    class Bare(Net):
        def forward_train(self, batch: Any) -> Any:
            return {"out": self.net(batch["x"])}

    def looks(self: Any, fwd_out: Any) -> Any:
        out = fwd_out["out"]
        return Loss(out.float().pow(2).mean(), metrics={"bytes": out.element_size()})

    known = {
        "build": lambda self: Bare(),
        "compute_loss_for_module": looks,
        "compute": {"precision": "bf16"},
    }
    learner = make(**settings(4, **known))
    for step in range(2):
        found = learner.update(batches(), timestep=step)
        assert [found[name]["bytes"] for name in IDS] == [2] * 4


@pytest.mark.parametrize("build", [Folded, Sloped, Shared])
def test_layers_of_other_inputs_equal_those_of_one_module(make: Any, build: Any) -> None:
    known = {"build": lambda self: build()}
    apart, together = updated(make, 3, **known)
    assert together._engines.vmap_groups.engines[0].works
    assert_same(apart, together)


@pytest.mark.parametrize("arrays", ["off", "auto"])
@pytest.mark.parametrize("cleared", [False, True])
def test_gradients_of_modules_together_are_not_added_to(
    make: Any, monkeypatch: pytest.MonkeyPatch, arrays: str, cleared: bool
) -> None:
    monkeypatch.setattr("rlplug.learner.vmap.LEAST_ON_ARRAYS", 4)
    known = {"compute": {"arrays": arrays}}
    apart, together = make(**settings(0, **known)), make(**settings(4, **known))
    for step in range(5):
        rows = batches()
        if step % 2:
            # Of other rows than the others: they are updated one by one.
            rows["b"] = Batch({name: column[:4] for name, column in rows["b"].items()})
        for learner in (apart, together):
            learner.update(rows, timestep=step)
            for module in learner.modules.values() if cleared else ():
                module.zero_grad()
    assert groups(together) == [list(IDS)]
    assert_same(apart, together)


def test_modules_with_other_settings_are_not_joined(make: Any) -> None:
    gains = iter((1.0, 1.0, 1.0, 2.0))
    learner = make(**settings(3, build=lambda self: Net(next(gains))))
    learner.update(batches(), timestep=1)
    assert groups(learner) == [["a", "b", "c"]]


def test_a_setting_that_changes_on_the_way_is_noticed(make: Any) -> None:
    apart, together = make(**settings(0)), make(**settings(4))
    for step in range(4):
        for learner in (apart, together):
            if step == 2:
                learner.modules["c"].gain = 3.0
            learner.update(batches(), timestep=step)
    assert_same(apart, together)


def test_code_that_cannot_be_vectorised_runs_one_by_one(make: Any) -> None:
    def reads(self: Any, fwd_out: Any) -> Any:
        return fwd_out["out"].pow(2).mean() * (2 if fwd_out["out"].sum().item() > 0 else 1)

    known = {"compute_loss_for_module": reads}
    apart, together = updated(make, 3, **known)
    assert_same(apart, together)


def test_a_stop_ends_only_the_epochs_of_its_own_module(make: Any) -> None:
    def stops(self: Any, fwd_out: Any, batch: Any) -> Any:
        value = fwd_out["out"].pow(2).mean()
        return Loss(value, stop=batch["x"][0, 0] > 0)

    known = {"compute_loss_for_module": stops}
    apart, together = make(**settings(0, **known)), make(**settings(4, **known))
    for learner in (apart, together):
        learner.update(batches(), timestep=1, num_iters=3)
    assert_same(apart, together)


class Counting(Net):
    """Writes to a buffer in its forward pass."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.norm = torch.nn.BatchNorm1d(3)
        self.register_buffer("count", torch.zeros(()))

    def forward_train(self, batch: Any) -> Any:
        if self.how == "norm":
            return super().forward_train({"x": self.norm(batch["x"])})
        if self.how == "in place":
            self.count += 1
        else:
            self.count = self.count + 1
        return super().forward_train(batch)


@pytest.mark.parametrize("how", ["norm", "in place", "replaced"])
def test_buffers_written_in_a_forward_pass_are_not_lost(make: Any, how: str) -> None:
    known = {"build": lambda self: Counting(how)}
    apart, together = updated(make, 3, **known)
    assert_same(apart, together)
    expected = 0.0 if how == "norm" else 3.0
    assert together.modules["a"].count.item() == expected
    assert together.modules["a"].norm.num_batches_tracked.item() == 3.0 - expected


def test_tied_parameters_keep_the_sum_of_their_gradients(make: Any) -> None:
    class Tied(Net):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(3, 3, bias=False)
            self.second = torch.nn.Linear(3, 3, bias=False)
            self.second.weight = self.first.weight

        def forward_train(self, batch: Any) -> Any:
            return super().forward_train({"x": self.second(self.first(batch["x"]).tanh())})

    known = {"build": lambda self: Tied()}
    apart, together = updated(make, 3, **known)
    assert_same(apart, together)


def test_options_overridden_later_count_for_modules_updated_together(make: Any) -> None:
    def scaled(self: Any, fwd_out: Any, config: Any) -> Any:
        return fwd_out["out"].pow(2).mean() * config.scale

    learners = [make(**settings(n, compute_loss_for_module=scaled)) for n in (0, 4)]
    for learner in learners:
        learner.update(batches(), timestep=1)
        config = learner.calls.config_of("alg", "b")
        learner.calls.set_overrides("b", {"alg": attrs.evolve(config, scale=10.0)})
    apart, together = (learner.update(batches(), timestep=2) for learner in learners)
    for name in IDS:
        assert float(together[name]["loss"]) == pytest.approx(float(apart[name]["loss"]), rel=1e-5)
    assert groups(learners[1]) == []


def test_modules_with_equal_schedules_stay_together_and_follow_them(make: Any) -> None:
    def scaled(self: Any, fwd_out: Any, config: Any) -> Any:
        return fwd_out["out"].detach().sum() * 0 + fwd_out["out"].sum() * 0 + config.scale

    options = {"scale": Schedule([[0, 1.0], [10, 11.0]])}
    learner = make(**settings(4, compute_loss_for_module=scaled, options=options))
    losses = [float(learner.update(batches(), timestep=step)["b"]["loss"]) for step in (0, 5, 10)]
    assert losses == [1.0, 6.0, 11.0]
    assert groups(learner) == [list(IDS)]


def test_a_hook_that_counts_its_calls_counts_each_module_and_update_once(make: Any) -> None:
    calls = []

    def counting(self: Any, fwd_out: Any, batch: Any) -> Any:
        calls.append(1)
        self.count = getattr(self, "count", 0) + 1
        return fwd_out["out"].pow(2).mean()

    hooks = {"save_state": lambda self: {"n": self.count}, "load_state": lambda self, state: None}
    learner = make(**settings(4, compute_loss_for_module=counting, **hooks))
    for step in range(5):
        learner.update(batches(), timestep=step)
    # Four modules, five updates.
    assert len(calls) == 20
    assert learner.calls.algorithm.plugin.count == 20


def test_modules_on_arrays_are_updated_together_where_there_are_many(make: Any) -> None:
    ids = tuple(f"m{n}" for n in range(6))
    known = {"ids": ids, "compute": {"arrays": "auto"}}
    apart, together, few = (
        make(**{**settings(0), **known}),
        make(**{**settings(4), **known}),
        make(**{**settings(4), **known, "ids": ids[:4]}),
    )
    rows = {name: torch.full((6, 3), n / 6) for n, name in enumerate(ids)}
    for step in range(3):
        for learner in (apart, together, few):
            present = {name: Batch({"x": rows[name]}) for name in learner.modules}
            learner.update(present, timestep=step)
    assert {engine for engine, _ in together.engines.values()} == {"arrays"}
    assert groups(together) == [list(ids)]
    assert groups(few) == groups(apart) == []
    for name in ids:
        mine, its = (one.modules[name].state_dict() for one in (apart, together))
        for key, value in mine.items():
            torch.testing.assert_close(its[key], value, atol=1e-6, rtol=0)
