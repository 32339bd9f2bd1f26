"""What an approximation cannot work with is refused before anything moves, and says what to do."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_model
from torch import Tensor, nn, tensor
from torch.optim import LBFGS, SGD
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from rlplug.approximation import (
    DummyCheckpointer,
    DummyWriter,
    FeatureNetwork,
    FixedTarget,
    Identity,
    PeriodicCheckpointer,
    PolyakTarget,
    QDist,
    QNetwork,
    TrivialTarget,
    VNetwork,
)
from rlplug.errors import RequestError, RunFailedError

QUIET: Any = {"checkpointer": DummyCheckpointer()}
X = tensor([[2.0]])
NAN, INF = float("nan"), float("inf")


def line(weight: float = 1.0) -> nn.Linear:
    """The function weight · x."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, weight)
    return model


def value(model: nn.Module, **options: Any) -> VNetwork:
    return VNetwork(model, SGD(model.parameters(), 0.1), **{**QUIET, **options})


@pytest.mark.parametrize("kind", [lambda: FixedTarget(1), lambda: PolyakTarget(1), TrivialTarget])
def test_a_target_follows_one_approximation_alone(kind: Any) -> None:
    target, first = kind(), line(1.0)
    q = value(first, target=target)
    with pytest.raises(RequestError, match=r"the target of approximation 'v' .* follows") as told:
        value(line(5.0), target=target)
    assert told.value.hints == ("give each approximation one of its own",)
    assert q.target(X).item() == 2.0


def test_a_target_that_could_not_copy_its_model_follows_none() -> None:
    target, model = FixedTarget(1), line()
    model.kept = model.weight * 2
    with pytest.raises(RuntimeError, match="deepcopy"):
        value(model, target=target)
    assert value(line(), target=target).target(X).item() == 2.0


def test_a_checkpointer_saves_one_approximation_alone(tmp_path: Path) -> None:
    checkpointer, writer = PeriodicCheckpointer(1), DummyWriter(tmp_path)
    q = value(line(), name="a", checkpointer=checkpointer, writer=writer)
    with pytest.raises(RequestError, match=r"checkpointer of approximation 'b' .* saves") as told:
        value(line(), name="b", checkpointer=checkpointer, writer=writer)
    assert told.value.hints == ("give each approximation one of its own",)
    q.reinforce(q(X).sum())
    assert [file.name for file in tmp_path.iterdir()] == ["a.safetensors"]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda q: pickle.loads(pickle.dumps(q))])
def test_a_copy_of_an_approximation_has_a_target_and_a_file_of_its_own_weights(
    copied: Any, tmp_path: Path
) -> None:
    options: Any = {"checkpointer": PeriodicCheckpointer(1), "writer": DummyWriter(tmp_path)}
    q = value(line(), target=FixedTarget(1), **options)
    other = copied(q)
    other.reinforce(other(X).sum())
    assert (q(X).item(), q.target(X).item()) == (2.0, 2.0)
    assert other.target(X).item() == other(X).item() == pytest.approx(1.6)
    saved = line(0.0)
    load_model(saved, tmp_path / "v.safetensors")
    assert saved.weight.item() == pytest.approx(0.8)


def test_a_file_is_loaded_into_the_model_that_was_given(tmp_path: Path) -> None:
    for kind, width in ((VNetwork, 1), (QNetwork, 1), (QDist, 51), (FeatureNetwork, 1)):
        model, fresh = nn.Linear(1, width), nn.Linear(1, width)
        writer = DummyWriter(tmp_path / kind.__name__)
        q: Any = kind(model, checkpointer=PeriodicCheckpointer(1), writer=writer, name="q")
        q.step()
        load_model(fresh, writer.log_dir / "q.safetensors")
        assert torch.equal(fresh.weight, model.weight)


COUNTS = [NAN, INF, 2.5, True, None, "a", 0]


@pytest.mark.parametrize("number", COUNTS)
def test_intervals_that_are_no_whole_numbers_are_refused(number: Any) -> None:
    for make in (FixedTarget, lambda number: PolyakTarget(0.5, number), PeriodicCheckpointer):
        with pytest.raises(RequestError, match=f"every 1 or more.*, not every {number!r}"):
            make(number)


@pytest.mark.parametrize("rate", [NAN, INF, True, None, "a", 0, 2])
def test_rates_that_are_none_are_refused(rate: Any) -> None:
    with pytest.raises(RequestError, match=f"above 0 and at most 1, got {rate!r}"):
        PolyakTarget(rate)


def test_an_unknown_unit_of_a_target_is_refused() -> None:
    unit: Any = "steps"
    with pytest.raises(RequestError, match="'update' or 'step', not 'steps'"):
        FixedTarget(2, unit)


def test_a_target_that_counts_steps_is_refused_for_nobody_tells_it_of_them() -> None:
    with pytest.raises(RequestError, match=r"the target of approximation 'v' .* updates") as told:
        value(line(), target=FixedTarget(2, "step"))
    assert told.value.hints == ("try: FixedTarget(update_frequency)",)


def scheduled(make: Any, kind: Any = VNetwork) -> Any:
    model = line()
    optimizer = SGD(model.parameters(), 0.1)
    return kind(model, optimizer, scheduler=make(optimizer), **QUIET)


@pytest.mark.parametrize(
    ("make", "said", "hint"),
    [
        (
            lambda optimizer: {"scheduler": StepLR(optimizer, 1), "interval": "epoch"},
            "the scheduler of approximation 'v' would move after each epoch",
            "leave 'interval' out",
        ),
        (
            lambda optimizer: {
                "scheduler": ReduceLROnPlateau(optimizer),
                "monitor": "eval/return_mean",
            },
            "the scheduler of approximation 'v' monitors 'eval/return_mean', which it does not",
            "use 'monitor': 'loss'",
        ),
        (
            lambda optimizer: {
                "scheduler": ReduceLROnPlateau(optimizer),
                "monitor": "los",
                "strict": False,
            },
            "the scheduler of approximation 'v' monitors 'los', which it does not",
            "use 'monitor': 'loss'",
        ),
        (
            lambda optimizer: StepLR,
            "the scheduler of approximation 'v' .* found the class StepLR",
            r"make one: StepLR\(optimizer, …\)",
        ),
        (
            lambda optimizer: {"scheduler": StepLR},
            "the scheduler of approximation 'v' .* found the class StepLR",
            r"make one: StepLR\(optimizer, …\)",
        ),
    ],
)
def test_a_scheduler_that_would_never_move_is_refused(make: Any, said: str, hint: str) -> None:
    with pytest.raises(RequestError, match=f"(?s){said}.*{hint}"):
        scheduled(make)


def test_a_feature_network_has_no_loss_that_a_scheduler_could_watch() -> None:
    with pytest.raises(RequestError, match="approximation 'feature' monitors 'loss'") as told:
        scheduled(ReduceLROnPlateau, FeatureNetwork)
    assert told.value.hints == ("give it a scheduler that follows no metric, such as StepLR",)


def test_a_step_without_the_loss_that_its_scheduler_watches_moves_nothing() -> None:
    v = scheduled(ReduceLROnPlateau)
    v(X).sum().backward()
    with pytest.raises(RequestError, match="the scheduler of approximation 'v' watches the loss"):
        v.step()
    assert v(X).item() == 2.0
    v.step(tensor(1.0))
    assert v(X).item() == pytest.approx(1.6)


def test_an_optimizer_of_other_parameters_is_refused() -> None:
    with pytest.raises(RequestError, match=r"optimizer of approximation 'v' .* found SGD") as e:
        VNetwork(line(), SGD(line().parameters(), 0.1), **QUIET)
    assert e.value.hints == ("make it from model.parameters()",)
    with pytest.raises(RequestError, match="optimizer of approximation 'identity'"):
        Identity(optimizer=SGD(line().parameters(), 0.1))


def test_an_optimizer_that_asks_for_a_closure_is_refused() -> None:
    model = line()
    with pytest.raises(RequestError, match=r"without a closure, found LBFGS") as told:
        VNetwork(model, LBFGS(model.parameters()), **QUIET)
    assert told.value.hints == ("try: Adam",)


def full(**options: Any) -> VNetwork:
    model = line()
    optimizer = SGD(model.parameters(), 0.1, momentum=0.5)
    target, scheduler = PolyakTarget(0.5), StepLR(optimizer, 1)
    given = {"target": target, "scheduler": scheduler, **options}
    return VNetwork(model, optimizer, **given, **QUIET)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda state: {}, "'v' has no model, target, optimizer, scheduler"),
        (lambda state: None, "'v' has no model, target, optimizer, scheduler"),
        (lambda state: {**state, "model": None}, "model .* 'v' does not fit"),
        (lambda state: {"model": state["model"]}, "'v' has no target, optimizer, scheduler"),
        (lambda state: {**state, "target": {}}, "target .* 'v' does not fit: .*Missing key"),
        (lambda state: {**state, "target": {"clock": tensor(0)}}, "target .* 'v' does not fit"),
        (lambda state: {**state, "optimizer": {}}, "optimizer .* 'v' does not fit"),
        (lambda state: {**state, "scheduler": {}}, "scheduler .* 'v' does not fit"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(change: Any, said: str) -> None:
    trained, v, untouched = full(), full(), full()
    for one in (trained, trained, v, untouched):
        one.reinforce(one(X).sum())
    with pytest.raises(RequestError, match=said):
        v.load_state_dict(change(trained.state_dict()))
    for _ in range(2):
        v.reinforce(v(X).sum())
        untouched.reinforce(untouched(X).sum())
    assert v(X).item() == untouched(X).item()
    assert v.target(X).item() == untouched.target(X).item()


def test_a_state_without_an_optimizer_is_read_from_one_with_it() -> None:
    v = VNetwork(line(3.0), target=FixedTarget(1), **QUIET)
    v.load_state_dict(full().state_dict())
    assert v(X).item() == 2.0


def test_gradients_that_are_no_numbers_are_forgotten() -> None:
    v = value(line(), clip_grad=1.0)
    with pytest.raises(RunFailedError, match="the norm nan"):
        v.reinforce(v(X).sum() * NAN)
    v.reinforce(v(X).sum())
    assert v(X).item() == pytest.approx(1.8)


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda v: None, "a loss of approximation 'v' is a tensor, found None"),
        (lambda v: 1.0, "a loss of approximation 'v' is a tensor, found 1.0"),
        (lambda v: [v(X).sum()], "a loss of approximation 'v' is a tensor, found list"),
        (lambda v: v(tensor([[1.0], [2.0]])), r"is one real number, found .* \(2,\)"),
        (lambda v: v(X).sum() * 1j, "is one real number, found torch.complex64"),
        (lambda v: tensor(1.0), "a loss of approximation 'v' has no gradient"),
    ],
)
def test_what_is_no_loss_moves_nothing(loss: Any, said: str) -> None:
    v = value(line())
    with pytest.raises(RequestError, match=said) as told:
        v.reinforce(loss(v))
    assert len(told.value.hints) == 1
    assert v(X).item() == 2.0


def test_a_step_is_told_a_loss_or_nothing() -> None:
    v, loss = value(line()), 1.0
    v(X).sum().backward()
    with pytest.raises(RequestError, match=r"is a tensor, found 1\.0"):
        v.step(loss)  # type: ignore[arg-type]
    assert v(X).item() == 2.0


class Named(nn.Module):
    """Gives a dict."""

    def forward(self, x: Tensor) -> Any:
        return {"x": x}


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (nn.LSTM(1, 1), "model of approximation 'feature' gives tensors, found a tuple"),
        (Named(), "model of approximation 'feature' gives tensors, found a dict"),
        (nn.Identity(), "gives real numbers, found torch.int64"),
    ],
)
def test_features_that_have_no_gradients_are_refused(model: nn.Module, said: str) -> None:
    given = tensor([[1]]) if isinstance(model, nn.Identity) else X
    features = FeatureNetwork(model, **QUIET)
    for inputs in (given, SimpleNamespace(observation=given, mask=tensor([1]))):
        with pytest.raises(RequestError, match=said) as told:
            features(inputs)
        assert len(told.value.hints) == 1


def test_a_model_for_the_identity_is_refused() -> None:
    with pytest.raises(RequestError, match="an Identity was given a model"):
        Identity(model=line())


def test_a_writer_needs_a_folder() -> None:
    nowhere: Any = None
    with pytest.raises(RequestError, match="log_dir of a DummyWriter is a path, found None"):
        DummyWriter(nowhere)
    writer = SimpleNamespace(log_dir=None, add_loss=print, add_schedule=print)
    with pytest.raises(RequestError, match="the writer of approximation 'v' must be a Writer"):
        value(line(), writer=writer)


def test_a_model_of_unknown_sizes_is_refused_where_a_target_copies_it() -> None:
    for lazy in (nn.LazyLinear(1), nn.LazyBatchNorm1d(affine=False)):
        with pytest.raises(RequestError, match=r"model of approximation 'v' .* found Lazy") as e:
            VNetwork(lazy, target=FixedTarget(1), **QUIET)
        assert e.value.hints == ("run one forward pass first: model(…)",)
    model = nn.LazyLinear(1)
    assert VNetwork(model, **QUIET)(X).shape == (1,)
    assert VNetwork(model, target=FixedTarget(1), **QUIET).target(X).shape == (1,)
