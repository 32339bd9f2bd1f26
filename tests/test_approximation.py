"""Approximations do each thing they promise, in the order they promise it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from safetensors.torch import load_model
from torch import Tensor, nn, tensor
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from rlplug.approximation import (
    Approximation,
    DummyCheckpointer,
    DummyWriter,
    FeatureNetwork,
    FixedTarget,
    PeriodicCheckpointer,
    PolyakTarget,
    VNetwork,
)
from rlplug.errors import RequestError, RunFailedError
from tests.warm import Warm


def line(weight: float = 1.0) -> nn.Linear:
    """The function weight · x."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, weight)
    return model


def weight_of(model: Any) -> float:
    return float(model.weight.item())


X = tensor([[2.0]])


def approximation(model: nn.Module, rate: float = 0.1, **options: Any) -> Approximation:
    options.setdefault("checkpointer", DummyCheckpointer())
    return Approximation(model, SGD(model.parameters(), rate), **options)


def test_reinforce_makes_one_step_along_the_gradient_and_forgets_it() -> None:
    f = approximation(line())
    assert f.reinforce(f(X).sum()) is f
    assert weight_of(f.model) == pytest.approx(0.8)
    assert [parameter.grad for parameter in f.model.parameters()] == [None]


def test_the_loss_is_scaled_before_its_gradient_is_taken() -> None:
    f = approximation(line(), loss_scaling=0.5)
    f.reinforce(f(X).sum())
    assert weight_of(f.model) == pytest.approx(0.9)


def test_gradients_are_clipped_to_the_norm_before_the_step() -> None:
    f = approximation(line(), clip_grad=0.5)
    f.reinforce(f(X).sum())
    assert weight_of(f.model) == pytest.approx(0.95)


def test_gradients_that_are_no_numbers_raise_and_move_nothing() -> None:
    f = approximation(line(), clip_grad=0.5, name="critic")
    with pytest.raises(RunFailedError, match="gradients of 'critic' have the norm nan"):
        f.reinforce(f(X).sum() * float("nan"))
    assert weight_of(f.model) == 1.0


def test_gradients_gather_until_the_step_or_are_forgotten() -> None:
    f = approximation(line())
    f(X).sum().backward()
    assert f.zero_grad() is f
    f(X).sum().backward()
    f(X).sum().backward()
    assert f.step() is f
    assert weight_of(f.model) == pytest.approx(0.6)


def test_gradients_of_what_only_the_optimizer_holds_are_cleared_too() -> None:
    model, beside = line(), nn.Parameter(torch.ones(1))
    optimizer = SGD([*model.parameters(), beside], 0.1)
    f = Approximation(model, optimizer, DummyCheckpointer())
    for _ in range(2):
        f.reinforce((f(X) * beside).sum())
        assert beside.grad is None
    # 1 - 0.1 * 2 = 0.8, then 0.8 - 0.1 * 2 * 0.8.
    assert float(beside.detach()) == pytest.approx(0.64)
    (f(X) * beside).sum().backward()
    f.zero_grad()
    assert beside.grad is None


def test_arguments_come_in_the_order_of_the_autonomous_learning_library(tmp_path: Path) -> None:
    model, notes = line(), Notes(tmp_path)
    optimizer = SGD(model.parameters(), 0.1)
    f = Approximation(
        model,
        optimizer,
        PeriodicCheckpointer(1),
        0.5,
        "cpu",
        2.0,
        "f",
        StepLR(optimizer, 1, 0.5),
        FixedTarget(2),
        notes,
    )
    f.reinforce(f(X).sum())
    # Of the gradient 4, clipping leaves 0.5.
    assert weight_of(model) == pytest.approx(0.95)
    assert notes.lines == [("f", 4.0), ("f/learning_rate", 0.1)]
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)
    assert f.target(X).item() == 2.0
    assert (tmp_path / "f.safetensors").exists()


def test_without_an_optimizer_nothing_moves() -> None:
    f = Approximation(line(), checkpointer=DummyCheckpointer())
    f.reinforce(f(X).sum())
    assert weight_of(f.model) == 1.0


def test_no_grad_and_eval_and_target_have_no_gradients() -> None:
    f = approximation(line())
    assert f(X).requires_grad
    assert not any(value.requires_grad for value in (f.no_grad(X), f.eval(X), f.target(X)))


def test_eval_restores_the_mode_that_it_found_in_every_part() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(1), nn.Dropout(0.5))
    model[1].eval()
    f = approximation(model)
    assert f.eval(X).item() == pytest.approx(2.0, rel=1e-4)
    assert [part.training for part in model.modules()] == [True, True, False, True]
    with pytest.raises(ValueError, match="got 4D input"):
        f.eval(torch.zeros(2, 2, 2, 2))
    assert [part.training for part in model.modules()] == [True, True, False, True]


def test_a_fixed_target_is_copied_after_every_so_many_steps() -> None:
    f = approximation(line(), target=FixedTarget(2))
    values = []
    for _ in range(4):
        f.reinforce(f(X).sum())
        values.append(f.target(X).item())
    assert values == pytest.approx([2.0, 1.2, 1.2, 0.4])


def test_a_polyak_target_follows_after_every_step() -> None:
    f = approximation(line(), target=PolyakTarget(0.5))
    f.reinforce(f(X).sum())
    assert f.target(X).item() == pytest.approx(1.8)


def test_without_a_target_the_target_is_the_function_itself() -> None:
    f = approximation(line())
    f.reinforce(f(X).sum())
    assert f.target(X).item() == pytest.approx(1.6)


class Notes:
    """A writer that keeps what it is told, and notices when."""

    def __init__(self, log_dir: Path) -> None:
        self.log_dir = log_dir
        self.lines: list[tuple[str, float]] = []

    def add_loss(self, name: str, value: Tensor) -> None:
        assert not value.requires_grad
        self.lines.append((name, float(value)))

    def add_schedule(self, name: str, value: float) -> None:
        self.lines.append((name, value))


def test_losses_and_learning_rates_are_reported_and_the_rate_moves_after_each_step(
    tmp_path: Path,
) -> None:
    model, notes = line(), Notes(tmp_path)
    optimizer = SGD(model.parameters(), 0.1)
    f = Approximation(
        model,
        optimizer,
        scheduler=StepLR(optimizer, 1, 0.5),
        loss_scaling=2,
        name="f",
        writer=notes,
    )
    f.reinforce(f(X).sum())
    f.reinforce(f(X).sum())
    assert [name for name, _ in notes.lines] == ["f", "f/learning_rate"] * 2
    # 1 - 0.1 · 2 · 2 = 0.6, so the second loss is 2 · 2 · 0.6.
    assert [value for _, value in notes.lines] == pytest.approx([4.0, 0.1, 2.4, 0.05])


def test_a_rate_that_waits_for_a_plateau_watches_the_loss() -> None:
    model = line()
    optimizer = SGD(model.parameters(), 0.0)
    f = Approximation(
        model,
        optimizer,
        scheduler=ReduceLROnPlateau(optimizer, factor=0.1, patience=1),
        checkpointer=DummyCheckpointer(),
    )
    optimizer.param_groups[0]["lr"] = 1e-3
    for _ in range(4):
        f.reinforce(tensor(5.0, requires_grad=True))
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-4)


def test_the_default_checkpointer_is_the_documented_one_every_200_updates(tmp_path: Path) -> None:
    model = line()
    folder = tmp_path / "of" / "two"
    f = Approximation(model, SGD(model.parameters(), 0.001), name="f", writer=Notes(folder))
    for _ in range(199):
        f.reinforce(f(X).sum())
    assert list(tmp_path.iterdir()) == []
    f.reinforce(f(X).sum())
    saved = weight_of(model)
    f.reinforce(f(X).sum())
    assert [file.name for file in folder.iterdir()] == ["f.safetensors"]
    loaded = line(0.0)
    load_model(loaded, folder / "f.safetensors")
    assert weight_of(loaded) == saved == pytest.approx(0.6, abs=1e-3)


def test_a_dummy_checkpointer_saves_nothing(tmp_path: Path) -> None:
    f = approximation(line(), writer=Notes(tmp_path))
    for _ in range(201):
        f.reinforce(f(X).sum())
    assert list(tmp_path.iterdir()) == []


def test_a_checkpointer_that_would_never_save_is_refused() -> None:
    with pytest.raises(RequestError, match="not every 0"):
        PeriodicCheckpointer(0)


def test_a_restored_approximation_goes_on_as_if_nothing_had_happened() -> None:
    def fresh() -> Approximation:
        model = line()
        optimizer = Adam(model.parameters(), 0.1)
        return Approximation(
            model,
            optimizer,
            scheduler=StepLR(optimizer, 3, 0.5),
            target=FixedTarget(3),
            checkpointer=DummyCheckpointer(),
        )

    def go_on(f: Approximation, steps: int) -> None:
        for _ in range(steps):
            f.reinforce(f(X).square().sum())

    whole, first, second = fresh(), fresh(), fresh()
    go_on(whole, 7)
    go_on(first, 4)
    second.load_state_dict(first.state_dict())
    go_on(second, 3)
    assert second(X).item() == whole(X).item()
    assert second.target(X).item() == whole.target(X).item() != whole(X).item()


def test_gradients_of_a_feature_network_equal_those_of_one_joint_backward() -> None:
    torch.manual_seed(0)
    body, one, other = nn.Linear(3, 4), nn.Linear(4, 1), nn.Linear(4, 2)
    first, second = torch.randn(5, 3), torch.randn(6, 3)
    joint = one(body(first)).sum() + other(body(first)).square().sum() + one(body(second)).sum()
    expected = torch.autograd.grad(joint, list(body.parameters()))
    before = [parameter.detach().clone() for parameter in body.parameters()]

    features = FeatureNetwork(body, SGD(body.parameters(), 1.0), checkpointer=DummyCheckpointer())
    seen, seen_later = features(first), features(second)
    assert seen.is_leaf
    one(seen).sum().backward()
    other(seen).square().sum().backward()
    one(seen_later).sum().backward()
    assert body.weight.grad is None
    assert features.reinforce() is features
    for parameter, old, gradient in zip(body.parameters(), before, expected, strict=True):
        torch.testing.assert_close(parameter, old - gradient)


def test_a_feature_network_pushes_each_gradient_once() -> None:
    features = FeatureNetwork(line(), checkpointer=DummyCheckpointer())
    features._optimizer = SGD(features.model.parameters(), 0.1)
    features(X).sum().backward()
    features.reinforce()
    assert weight_of(features.model) == pytest.approx(0.8)
    with pytest.raises(RequestError, match="no head sent gradients"):
        features.reinforce()


def test_a_feature_network_has_no_loss_of_its_own() -> None:
    features = FeatureNetwork(line(), checkpointer=DummyCheckpointer())
    with pytest.raises(RequestError, match="was given a loss of its own"):
        features.reinforce(features(X).sum())


def test_features_without_parameters_leave_the_heads_to_learn() -> None:
    features = FeatureNetwork(nn.Identity(), None, "pixels", checkpointer=DummyCheckpointer())
    assert features.name == "pixels"
    head = line()
    v = VNetwork(head, SGD(head.parameters(), 0.1), checkpointer=DummyCheckpointer())
    v.reinforce(v(features(X)).sum())
    assert features.reinforce() is features
    assert weight_of(head) == pytest.approx(0.8)
    body = line().requires_grad_(False)
    frozen = FeatureNetwork(body, checkpointer=DummyCheckpointer())
    v.reinforce(v(frozen(X)).sum())
    assert frozen.reinforce() is frozen
    assert weight_of(body) == 1.0


def test_features_that_are_only_looked_at_are_not_kept() -> None:
    features = FeatureNetwork(line(), checkpointer=DummyCheckpointer())
    features.no_grad(X)
    features.eval(X)
    with torch.no_grad():
        features(X)
    with pytest.raises(RequestError, match="no head sent gradients"):
        features.reinforce()


def test_heads_and_features_learn_together() -> None:
    torch.manual_seed(0)
    body, top = nn.Linear(2, 8), nn.Linear(8, 1)
    quiet: Any = {"checkpointer": DummyCheckpointer()}
    features = FeatureNetwork(
        nn.Sequential(body, nn.Tanh()), Adam(body.parameters(), 0.02), **quiet
    )
    v = VNetwork(top, Adam(top.parameters(), 0.02), **quiet)
    observations = torch.randn(64, 2)
    wanted = observations[:, 0] * observations[:, 1]

    def loss() -> Tensor:
        return nn.functional.mse_loss(v(features(observations)), wanted)

    before = loss().item()
    features.zero_grad()
    for _ in range(300):
        v.reinforce(loss())
        features.reinforce()
    assert loss().item() < before / 5


@pytest.mark.parametrize("steps", ["2_500", pytest.param("12_000", marks=pytest.mark.long)])
def test_the_example_trains_an_agent_with_approximations_alone(warm: Warm, steps: str) -> None:
    example = Path(__file__).parents[1] / "examples" / "approximation.py"
    whole, given = "STEPS, BATCH, GAMMA = 12_000,", f"STEPS, BATCH, GAMMA = {steps},"
    code = example.read_text(encoding="utf-8")
    assert whole in code
    ran = warm.start(code=code.replace(whole, given))
    assert ran.wait() == 0, ran.err
    found = re.search(r"mean return of 10 greedy episodes: (\d+)", ran.out)
    assert found is not None
    # Any action at all holds the pole for about 20 steps.
    assert int(found[1]) >= 100


UNFIT = [
    ({"model": 3}, "the model .* an nn.Module, found 3"),
    ({"model": nn.Linear}, "the model .* an nn.Module, found the class Linear"),
    ({"optimizer": "adam"}, "the optimizer .* a torch.optim.Optimizer, found 'adam'"),
    ({"checkpointer": 3}, "the checkpointer .* a Checkpointer, found 3"),
    ({"checkpointer": DummyCheckpointer}, "a Checkpointer, found the class DummyCheckpointer"),
    ({"checkpointer": weight_of}, "the checkpointer .* a Checkpointer, found"),
    ({"target": nn.Linear}, "the target .* a TargetNetwork, found the class Linear"),
    ({"target": line()}, "the target .* a TargetNetwork, found Linear"),
    ({"writer": "runs"}, "the writer .* log_dir, add_loss, add_schedule, found 'runs'"),
    ({"writer": DummyWriter}, "the writer .* found the class DummyWriter"),
    ({"device": "gpu"}, "the device .* such as 'cpu' or 'cuda', found 'gpu'"),
    ({"clip_grad": -1.0}, "the clip_grad .* a number from 0 on, found -1.0"),
    ({"clip_grad": float("nan")}, "a number from 0 on, found nan"),
    ({"clip_grad": "a"}, "a number from 0 on, found 'a'"),
    ({"clip_grad": True}, "a number from 0 on, found True"),
    ({"loss_scaling": float("inf")}, "the loss_scaling .* a finite number, found inf"),
    ({"loss_scaling": "a"}, "a finite number, found 'a'"),
    ({"name": 3}, "the name of Approximation must be a str, found 3"),
]


@pytest.mark.parametrize(("given", "said"), UNFIT)
def test_arguments_of_another_kind_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said) as told:
        Approximation(**{"model": line(), **given})
    # A number that will not do is in its place all the same.
    number = isinstance(given.get("clip_grad", given.get("loss_scaling")), float)
    order = "the order is: model, optimizer, checkpointer, clip_grad; or give them by name"
    assert told.value.hints == (() if number else (order,))


def test_all_arguments_of_another_kind_are_named_at_once() -> None:
    model = line()
    with pytest.raises(RequestError) as told:
        Approximation(SGD(model.parameters(), 0.1), model, clip_grad=-1.0)  # type: ignore[arg-type]
    assert str(told.value).splitlines() == [
        "approximation 'approximation' cannot be made: 3 problems.",
        "  the model of approximation 'approximation' must be an nn.Module, found SGD.",
        "  the optimizer of approximation 'approximation' must be a torch.optim.Optimizer, "
        "found Linear.",
        "  the clip_grad of approximation 'approximation' must be a number from 0 on, found -1.0.",
        "  the order is: model, optimizer, checkpointer, clip_grad; or give them by name",
    ]


@pytest.mark.parametrize("clip_grad", [0, 1, 0.5, float("inf"), numpy.float32(2)])
def test_any_limit_from_0_on_clips(clip_grad: float) -> None:
    f = approximation(line(), clip_grad=clip_grad)
    f.reinforce(f(X).sum())
    length = min(clip_grad, 2.0) if clip_grad else 2.0
    assert weight_of(f.model) == pytest.approx(1.0 - 0.1 * length)


@pytest.mark.parametrize("config", [False, True], ids=["scheduler", "config"])
def test_a_scheduler_that_would_have_no_effect_is_refused(config: bool) -> None:
    other = StepLR(SGD(line().parameters(), 0.1), 1)
    given = {"scheduler": other} if config else other
    with pytest.raises(RequestError, match="'approximation' was made from another optimizer"):
        approximation(line(), scheduler=given)
    with pytest.raises(RequestError, match="has a scheduler and no optimizer"):
        Approximation(line(), scheduler=given)


def test_sparse_gradients_of_embeddings_are_clipped_as_dense_ones_are() -> None:
    weights = []
    for sparse in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(4, 2, sparse=sparse), nn.Linear(2, 1))
        f = approximation(model, clip_grad=0.5)
        f.reinforce(f(tensor([1, 1, 3])).square().sum())
        weights.append(next(model.parameters()))
    torch.testing.assert_close(*weights)
