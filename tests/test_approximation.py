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
    FeatureNetwork,
    FixedTarget,
    Identity,
    PeriodicCheckpointer,
    PolyakTarget,
    VNetwork,
)
from rlplug.errors import RequestError, RunFailedError
from tests.learner.small import line
from tests.warm import Warm


def weight_of(model: Any) -> float:
    return float(model.weight.item())


X = tensor([[2.0]])


def approximation(model: nn.Module, rate: float = 0.1, **options: Any) -> Approximation:
    options.setdefault("checkpointer", DummyCheckpointer())
    return Approximation(model, SGD(model.parameters(), rate), **options)


@pytest.mark.parametrize(
    ("options", "weight"),
    [
        ({}, 0.8),
        ({"loss_scaling": 0.5}, 0.9),
        ({"clip_grad": 0.5}, 0.95),
        ({"clip_grad": float("inf")}, 0.8),
        ({"loss_scaling": 2, "clip_grad": numpy.float32(1)}, 0.9),
    ],
)
def test_reinforce_makes_one_step_along_the_scaled_and_clipped_gradient_and_forgets_it(
    options: dict[str, Any], weight: float
) -> None:
    f = approximation(line(), **options)
    assert f.reinforce(f(X).sum()) is f
    assert weight_of(f.model) == pytest.approx(weight)
    assert [parameter.grad for parameter in f.model.parameters()] == [None]


def test_gradients_that_are_no_numbers_raise_and_are_forgotten() -> None:
    f = approximation(line(), clip_grad=0.5, name="critic")
    with pytest.raises(RunFailedError, match="gradients of 'critic' have the norm nan"):
        f.reinforce(f(X).sum() * float("nan"))
    assert weight_of(f.model) == 1.0
    f.reinforce(f(X).sum())
    assert weight_of(f.model) == pytest.approx(0.95)


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
    f.reinforce(f(X).sum())
    assert notes.lines[2:] == [("f", pytest.approx(3.8)), ("f/learning_rate", 0.05)]


def test_eval_restores_the_mode_that_it_found_in_every_part() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(1), nn.Dropout(0.5))
    model[1].eval()
    f = approximation(model)
    assert f.eval(X).item() == pytest.approx(2.0, rel=1e-4)
    assert [part.training for part in model.modules()] == [True, True, False, True]
    with pytest.raises(ValueError, match="got 4D input"):
        f.eval(torch.zeros(2, 2, 2, 2))
    assert [part.training for part in model.modules()] == [True, True, False, True]


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


def test_a_restored_approximation_goes_on_as_if_nothing_had_happened() -> None:
    def fresh() -> Approximation:
        model = line()
        optimizer = Adam(model.parameters(), 0.1)
        parts: Any = {"target": FixedTarget(3), "scheduler": StepLR(optimizer, 3, 0.5)}
        return Approximation(model, optimizer, DummyCheckpointer(), **parts)

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


def test_a_feature_network_pushes_each_gradient_once_and_none_of_what_was_looked_at() -> None:
    body = line()
    features = FeatureNetwork(
        body, SGD(body.parameters(), 0.1), loss_scaling=0.5, checkpointer=DummyCheckpointer()
    )
    features(X).sum().backward()
    with pytest.raises(RequestError, match="given a loss of its own"):
        features.reinforce(features(X).sum())
    features.no_grad(X)
    features.reinforce()
    assert weight_of(body) == pytest.approx(0.9)
    features(X).sum().backward()
    features.zero_grad().eval(X)
    with pytest.raises(RequestError, match="no head sent gradients to 'feature'"):
        features.reinforce()


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


OTHER = line()
RATE = SGD(OTHER.parameters(), 0.1)


SAVES = PeriodicCheckpointer(1)
SAVES.init(OTHER, "other.safetensors")


@pytest.mark.parametrize(
    ("part", "given"),
    [
        ("optimizer", lambda own: RATE),
        ("target", lambda own: FixedTarget(1).init(OTHER)),
        ("checkpointer", lambda own: SAVES),
        ("scheduler", lambda own: StepLR(RATE, 1)),
        ("scheduler", lambda own: {"scheduler": StepLR(RATE, 1)}),
        ("scheduler", lambda own: {"scheduler": StepLR(own, 1), "interval": "epoch"}),
        (
            "scheduler",
            lambda own: {"scheduler": ReduceLROnPlateau(own), "monitor": "a"},
        ),
    ],
)
def test_parts_that_would_have_no_effect_are_refused(part: str, given: Any) -> None:
    model = line()
    optimizer = SGD(model.parameters(), 0.1)
    with pytest.raises(RequestError, match=f"the {part} of approximation 'f'"):
        Approximation(model, **{"optimizer": optimizer, part: given(optimizer)}, name="f")
    with pytest.raises(RequestError, match="the scheduler of approximation 'f'"):
        Approximation(model, scheduler=StepLR(optimizer, 1), name="f")


def test_a_dummy_checkpointer_takes_anything_and_saves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    checkpointer = DummyCheckpointer()
    for inputs in ((), (line(),), (line(), "a.safetensors", 3)):
        checkpointer.init(*inputs)
        checkpointer()
    f = approximation(line(), checkpointer=checkpointer)
    identity = Identity("cpu", "same", target=FixedTarget(1))
    for _ in range(201):
        f.reinforce(f(X).sum())
        assert identity.reinforce(X.sum()).step() is identity
    assert list(tmp_path.iterdir()) == []
    assert identity(X) is X
    assert identity.target(X) is X


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda state: {}, KeyError),
        (lambda state: None, TypeError),
        (lambda state: {**state, "model": {}}, RuntimeError),
        (lambda state: {"model": state["model"]}, KeyError),
        (lambda state: {**state, "target": {"clock": tensor(0)}}, RuntimeError),
        (lambda state: {**state, "optimizer": {}}, KeyError),
        (lambda state: {**state, "scheduler": {}}, KeyError),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(change: Any, error: Any) -> None:
    def full() -> VNetwork:
        model = line()
        optimizer = SGD(model.parameters(), 0.1, momentum=0.5)
        parts: Any = {"target": PolyakTarget(0.5), "scheduler": StepLR(optimizer, 1)}
        return VNetwork(model, optimizer, checkpointer=DummyCheckpointer(), **parts)

    trained, v, untouched = full(), full(), full()
    for network in (trained, trained, v, untouched):
        network.reinforce(network(X).sum())
    with pytest.raises(error):
        v.load_state_dict(change(trained.state_dict()))
    for _ in range(2):
        v.reinforce(v(X).sum())
        untouched.reinforce(untouched(X).sum())
    assert v(X).item() == untouched(X).item()
    assert v.target(X).item() == untouched.target(X).item()
    frozen = VNetwork(line(3.0), target=FixedTarget(1), checkpointer=DummyCheckpointer())
    frozen.load_state_dict(trained.state_dict())
    assert frozen(X).item() == trained(X).item()
