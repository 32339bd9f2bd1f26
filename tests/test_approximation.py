"""Approximations do each thing they promise, in the order they promise it."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import attrs
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
    QContinuous,
    QDist,
    QNetwork,
    VNetwork,
)
from rlplug.errors import RequestError, RunFailedError
from tests.learner.small import line
from tests.warm import Warm

# -- approximation ---------------------------------------------------------------------------------


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
        ("scheduler", lambda own: {"scheduler": ReduceLROnPlateau(own), "monitor": "a"}),
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


# -- approximation values --------------------------------------------------------------------------


QUIET: Any = {"checkpointer": DummyCheckpointer()}


def test_a_q_network_is_zero_where_terminated_when_it_is_told() -> None:
    q = QNetwork(nn.Identity(), target=FixedTarget(1), **QUIET)
    values, terminated = tensor([[1.0, 2.0], [3.0, 4.0]]), tensor([False, True])
    for ask in (q, q.no_grad, q.eval, q.target):
        assert ask(values, terminated=terminated).tolist() == [[1.0, 2.0], [0.0, 0.0]]
        assert ask(values, [1, 1], terminated).tolist() == [2.0, 0.0]
        assert ask(values, [1, 1], [True, False]).tolist() == [0.0, 4.0]


@pytest.mark.parametrize("columns", [2, 4])
def test_values_of_several_columns_are_refused(columns: int) -> None:
    for shape in ((4, 3), (2, 4, 3)):
        seen = torch.zeros(shape)
        found = re.escape(f"for each observation, found the shape {(*shape[:-1], columns)}")
        with pytest.raises(RequestError, match=found):
            VNetwork(nn.Linear(3, columns), **QUIET)(seen)
        with pytest.raises(RequestError, match=found):
            QContinuous(nn.Linear(4, columns), **QUIET)(seen, seen[..., :1])


class Adds(nn.Module):
    """The sum of each row, whatever the type of its input."""

    def forward(self, rows: Tensor) -> Tensor:
        return rows.float().sum(-1, keepdim=True)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool, torch.float32])
@pytest.mark.parametrize("actions", [[[-0.7]], tensor([[-0.7]]), numpy.array([[-0.7]])])
def test_continuous_actions_keep_their_fractions(dtype: torch.dtype, actions: Any) -> None:
    q = QContinuous(Adds(), **QUIET)
    assert q(torch.ones(1, 1, dtype=dtype), actions).item() == pytest.approx(0.3)
    with pytest.raises(RuntimeError):
        q(torch.ones(2, 1, dtype=dtype), actions)


class State(dict[str, Any]):
    """Like the library's: a mapping with properties; its mask is 0 where an episode is over."""

    @property
    def observation(self) -> Any:
        return self["observation"]

    @property
    def mask(self) -> Any:
        return self["mask"]


@attrs.frozen
class FrozenState:
    observation: Any
    mask: Any


class NamedState(NamedTuple):
    observation: Any
    mask: Any


@pytest.mark.parametrize("kind", [State, SimpleNamespace, FrozenState, NamedState])
@pytest.mark.parametrize("mask", [tensor([1, 0]), tensor([1.0, 0.0]), tensor([True, False])])
def test_states_are_zero_where_their_mask_is(kind: Any, mask: Tensor) -> None:
    state = kind(observation=tensor([[1.0, 2.0], [3.0, 4.0]]), mask=mask)
    adds = nn.Linear(2, 1, bias=False)
    nn.init.constant_(adds.weight, 1.0)
    q = QNetwork(nn.Identity(), target=FixedTarget(1), **QUIET)
    for ask in (q, q.no_grad, q.eval, q.target):
        assert ask(state).tolist() == [[1.0, 2.0], [0.0, 0.0]]
        assert ask(state, [1, 1]).tolist() == [2.0, 0.0]
    assert q(state, [1, 1], [True, False]).tolist() == [0.0, 0.0]
    assert VNetwork(adds, **QUIET)(state).tolist() == [3.0, 0.0]
    both = nn.Linear(3, 1, bias=False)
    nn.init.constant_(both.weight, 1.0)
    assert QContinuous(both, **QUIET)(state, [[5.0], [5.0]]).tolist() == [8.0, 0.0]
    dist = QDist(nn.Identity(), None, n_actions=1, n_atoms=2, v_min=0, v_max=1, **QUIET)
    assert dist(state, [0, 0])[1].tolist() == [1.0, 0.0]


@pytest.mark.parametrize("kind", [State, SimpleNamespace, FrozenState, NamedState])
def test_features_of_a_state_are_a_state_that_keeps_its_mask(kind: Any) -> None:
    body, head = line(3.0), line()
    state = kind(observation=X, mask=tensor([1]))
    features = FeatureNetwork(body, SGD(body.parameters(), 0.1), target=FixedTarget(1), **QUIET)
    for seen in (features(state), features.eval(state), features.target(state)):
        assert type(seen) is kind
        assert (seen.observation.tolist(), seen.mask.tolist()) == ([[6.0]], [1])
    assert state.observation is X
    VNetwork(head, **QUIET)(features(state)).sum().backward()
    features.reinforce()
    assert body.weight.item() == pytest.approx(2.8)


def test_a_continuous_q_takes_both_side_by_side_and_is_zero_where_terminated() -> None:
    model = nn.Linear(3, 1, bias=False)
    nn.init.constant_(model.weight, 1.0)
    q = QContinuous(model, **QUIET)
    observations, actions = tensor([[1.0, 2.0], [3.0, 4.0]]), tensor([[10.0], [20.0]])
    assert q(observations, actions).tolist() == [13.0, 27.0]
    assert q(observations, actions, tensor([False, True])).tolist() == [13.0, 0.0]


def test_a_state_value_is_zero_where_terminated() -> None:
    v = VNetwork(line(3.0), **QUIET)
    assert v(tensor([[1.0], [2.0]])).tolist() == [3.0, 6.0]
    for terminated in (tensor([True, False]), tensor([[True], [False]]), [True, False]):
        assert v(tensor([[1.0], [2.0]]), terminated).tolist() == [0.0, 6.0]


def test_a_distributional_q_gives_probabilities_and_certain_zero_where_terminated() -> None:
    q = QDist(nn.Identity(), None, n_actions=2, n_atoms=3, v_min=-1, v_max=1, **QUIET)
    logits = tensor([[0.25, 0.25, 0.5, 1.0, 1.0, 2.0]]).log()
    assert q.atoms.tolist() == [-1.0, 0.0, 1.0]
    chances = q(logits)
    torch.testing.assert_close(chances, tensor([[[0.25, 0.25, 0.5], [0.25, 0.25, 0.5]]]))
    torch.testing.assert_close(q(logits, tensor([1])), chances[:, 1])
    assert q(logits, tensor([0]), tensor([True])).tolist() == [[0.0, 1.0, 0.0]]
    three = QDist(nn.Identity(), None, n_actions=3, n_atoms=3, v_min=-1, v_max=1, **QUIET)
    ended = three(torch.zeros(2, 9), terminated=tensor([True, True]))
    assert ended.tolist() == [[[0.0, 1.0, 0.0]] * 3] * 2
