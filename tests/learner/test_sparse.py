"""Sparse gradients of embeddings: updates are those of dense ones, or are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, SparseAdam

from rlplug import Batch, Loss, Module
from rlplug.errors import PluginError, RunFailedError
from rlplug.learner.distributed import ProcessGroup


class Embedded(Module):
    """An embedding of five symbols and a layer on top of it."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3, sparse=sparse)
        self.layer = nn.Linear(3, 1)
        with torch.no_grad():
            for index, param in enumerate(self.parameters(), 1):
                param.copy_(torch.arange(param.numel()).reshape(param.shape) / 10 / index)

    def forward_train(self, batch: Batch) -> Any:
        return {"out": self.layer(self.embedding(batch["symbols"]))[:, 0]}


def squares(self: Any, fwd_out: Any, batch: Batch) -> Any:
    return ((fwd_out["out"] - batch["x"]) ** 2).mean()


def terms(self: Any, fwd_out: Any, batch: Batch, module: Any) -> Any:
    """The second one has a dense gradient of the very embedding."""
    one = ((fwd_out["out"] - batch["x"]) ** 2).mean()
    other = module.embedding.weight.square().sum()
    return Loss(one + other, terms={"one": one, "other": other})


def optimizers(self: Any, module: Any) -> Any:
    return SGD(module.parameters(), lr=0.5)


def two(self: Any, module: Any) -> Any:
    return {
        "embedding": SparseAdam(module.embedding.parameters(), lr=0.5),
        "layer": SGD(module.layer.parameters(), lr=0.5),
    }


def by_optimizer(self: Any, fwd_out: Any, batch: Batch) -> Any:
    loss = ((fwd_out["out"] - batch["x"]) ** 2).mean()
    return Loss({"embedding": loss, "layer": 2 * loss})


def twice(self: Any, gradients: Any) -> None:
    for name in gradients:
        gradients[name] = gradients[name] * 2


def settings(sparse: bool, **known: Any) -> dict[str, Any]:
    return {
        "build": lambda self: Embedded(sparse),
        "configure_optimizers_for_module": optimizers,
        "compute_loss_for_module": squares,
        **known,
    }


def rows(bad: float = 0.0) -> Batch:
    # The symbols 0 and 3 come twice.
    return Batch(
        {
            "symbols": torch.tensor([0, 0, 3, 3, 4, 1]),
            "x": torch.tensor([9.0, 8.0, -7.0, 6.0, 5.0, -4.0 + bad]),
        }
    )


def trained(learner: Any, **how: Any) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """The weights after three updates, and the norms of the last one's gradients."""
    for step in range(3):
        batches = {module_id: rows() for module_id in learner.modules}
        results = learner.update(batches, timestep=step, **how)
    module_id = next(iter(learner.modules))
    norms = {
        name: float(value)
        for name, value in results[module_id].items()
        if name.startswith("grad_norm")
    }
    return learner.modules[module_id].state_dict(), norms


CASES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "global norm": {"learning": {"max_grad_norm": 0.5}},
    "norm": {"learning": {"max_grad_norm": 0.5, "clip_by": "norm"}},
    "value": {"learning": {"max_grad_norm": 0.5, "clip_by": "value"}},
    "largest": {"learning": {"max_grad_norm": 0.5, "norm_type": float("inf")}},
    "zero": {"learning": {"nonfinite": "zero"}},
    "accumulated": {"learning": {"accumulate": 2}},
    "hooks": {"postprocess_gradients": twice},
    "terms": {"compute_loss_for_module": terms, "learning": {"balance_grad_norms": True}},
    "arrays": {"compute": {"arrays": "auto"}},
}


@pytest.mark.parametrize("name", CASES)
def test_updates_by_sparse_gradients_are_those_by_dense_ones(make: Any, name: str) -> None:
    how = {"minibatch_size": 3} if name == "accumulated" else {}
    learner = make(**settings(sparse=True, **CASES[name]))
    weights, norms = trained(learner, **how)
    same, same_norms = trained(make(**settings(sparse=False, **CASES[name])), **how)
    for key, value in same.items():
        torch.testing.assert_close(weights[key], value)
    assert norms == pytest.approx(same_norms)
    assert {engine for engine, _ in learner.engines.values()} == {"torch"}


def test_each_optimizer_steps_by_its_own_sparse_gradients(make: Any) -> None:
    hooks = {"configure_optimizers_for_module": two, "compute_loss_for_module": by_optimizer}
    learner = make(**settings(sparse=True, learning={"max_grad_norm": 0.5}, **hooks))
    before = learner.modules["default"].embedding.weight.detach().clone()
    _, norms = trained(learner)
    changed = (learner.modules["default"].embedding.weight != before).any(1)
    assert changed.tolist() == [True, True, False, True, True]
    assert norms["grad_norm_clipped/embedding"] == pytest.approx(0.5, rel=1e-4)


def test_sparse_gradients_by_hand_are_clipped_and_applied(make: Any) -> None:
    weights = []
    for sparse in (True, False):
        learner = make(**settings(sparse, learning={"max_grad_norm": 0.5}))
        batches = {"default": rows()}
        losses = learner.compute_loss(learner.forward_train(batches), batches)
        gradients = learner.postprocess_gradients(learner.compute_gradients(losses))
        learner.apply_gradients(gradients)
        weights.append(learner.modules["default"].embedding.weight)
    torch.testing.assert_close(*weights)


def test_a_sparse_gradient_that_is_not_finite_is_named_or_skipped(make: Any) -> None:
    bad = {"default": rows(bad=float("nan"))}
    with pytest.raises(RunFailedError, match=r"not finite: embedding\.weight, layer\.weight"):
        make(**settings(sparse=True, learning={"nonfinite": "stop"})).update(bad, timestep=1)
    learner = make(**settings(sparse=True, learning={"nonfinite": "skip"}))
    assert learner.update(bad, timestep=1)["default"]["nonfinite"] == 1
    assert learner.modules["default"].embedding.weight.isfinite().all()


def test_symbols_of_which_there_are_none_have_the_gradient_0(make: Any) -> None:
    def nothing(self: Any, module: Any) -> Any:
        return module.embedding(torch.zeros(0, dtype=torch.long)).sum()

    hooks = {"compute_loss_for_module": nothing}
    for norm_type in (2.0, float("inf")):
        learning = {"norm_type": norm_type, "max_grad_norm": 0.5}
        _, norms = trained(make(**settings(sparse=True, learning=learning, **hooks)))
        assert set(norms.values()) == {0.0}


def test_several_learners_refuse_sparse_gradients(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = ProcessGroup()
    learner = make(**settings(sparse=True), process_group=group)
    monkeypatch.setattr(group, "size", 2)
    monkeypatch.setattr(group, "all_reduce", lambda tensors, op="sum": list(tensors))
    with pytest.raises(PluginError, match=r"'embedding\.weight' of module 'default' is sparse"):
        learner.update({"default": rows()}, timestep=1)
