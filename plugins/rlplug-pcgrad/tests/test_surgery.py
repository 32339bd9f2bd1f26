"""Surgery by hand, and on the gradients of an algorithm."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rlplug_pcgrad import projected_sum
from rlplug_pcgrad.surgery import flat

from rlplug import AddOn, run


def test_terms_in_conflict_lose_what_they_do_to_each_other() -> None:
    terms = torch.tensor([[1.0, 0.0], [-1.0, 1.0]])
    total, conflicts = projected_sum(terms, [[0, 1], [1, 0]])
    # Their product is -1: the first becomes (1, 0) + (-1, 1) / 2 = (0.5, 0.5),
    # the second (-1, 1) + (1, 0) = (0, 1).
    assert total.tolist() == [0.5, 1.5]
    assert conflicts.item() == 1.0


def test_terms_that_agree_are_summed() -> None:
    terms = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 2.0]])
    total, conflicts = projected_sum(terms, [[0, 1, 2]] * 3)
    assert total.tolist() == [2.0, 3.0]
    assert conflicts.item() == 0.0


def test_the_order_decides_with_three_terms() -> None:
    terms = torch.tensor([[1.0, 0.0], [-1.0, 1.0], [-1.0, -1.0]])
    one, _ = projected_sum(terms[:, :], [[1, 2], [], []])
    other, _ = projected_sum(terms[:, :], [[2, 1], [], []])
    # (1, 0) becomes (0.5, 0.5), which conflicts with (-1, -1) as well: (0, 0).
    assert one.tolist() == [-2.0, 0.0]
    # The other way round: (0.5, -0.5), and then (0, 0).
    assert other.tolist() == [-2.0, 0.0]


def test_a_term_without_a_gradient_is_zero_and_does_not_divide_by_zero() -> None:
    like = {"a": torch.ones(2), "b": torch.ones(1)}
    terms = torch.stack([flat({"b": torch.tensor([3.0])}, like), flat({}, like)])
    total, conflicts = projected_sum(terms, [[1], [0]])
    assert total.tolist() == [0.0, 0.0, 3.0]
    assert conflicts.item() == 0.0


class Opposed(AddOn):
    """A term that is the negative of the actor's loss: all of it is in conflict."""

    def compute_loss_for_module(self, module, fwd_out):  # type: ignore[no-untyped-def]
        return -1e-3 * sum((one**2).sum() for one in module.parameters())


def test_what_other_plugins_did_to_the_gradients_stays(home: Path) -> None:
    class Zero(AddOn):
        """Sets gradients to zero."""

        def postprocess_gradients(self, gradients):  # type: ignore[no-untyped-def]
            for gradient in gradients.values():
                gradient.zero_()

    options = {"tracking.enabled": False, "shared_encoder": True, "n_steps": 32, "batch_size": 64}
    conflicts = {}
    for order in ([Opposed(), "pcgrad"], ["pcgrad", Zero()]):
        result = run(
            "a2c",
            "CartPole-v1",
            steps=512,
            seed=1,
            addons=order,
            options={name: value for name, value in options.items() if name != "batch_size"},
        )
        conflicts[len(conflicts)] = result.metrics["train/pcgrad_conflicts"]
    assert conflicts[0] > 0
    assert result.metrics["train/grad_norm"] == pytest.approx(0)
