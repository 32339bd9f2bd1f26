"""The compiled update: equal to the eager one, and a clear fall-back where it cannot be."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.optim import Adam

from rlplug import Batch, Loss, Module
from rlplug.config import Schedule


class Net(Module):
    """Three networks for three optimizers, with weights of two real dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (torch.nn.Linear(3, 4) for _ in range(3))

    def forward_train(self, batch: Any) -> Any:
        x = batch["x"]
        return {"a": self.a(x), "b": self.b(x), "c": self.c(x)}


def three(self: Any, module: Any) -> Any:
    return {
        name: Adam(getattr(module, name).parameters(), 0.01, fused=True) for name in ("a", "b", "c")
    }


def named(self: Any, fwd_out: Any, config: Any) -> Any:
    losses = {name: (out - config.scale).pow(2).mean() for name, out in fwd_out.items()}
    return Loss(
        losses, metrics={"seen": fwd_out["a"].mean()}, rows={"priority": fwd_out["a"][:, 0]}
    )


def summed(self: Any, fwd_out: Any, config: Any) -> Any:
    terms = {f"{name}_loss": (out - config.scale).pow(2).mean() for name, out in fwd_out.items()}
    total = terms["a_loss"] + terms["b_loss"] + terms["c_loss"]
    return Loss(total, terms=terms, stop=total < 0)


CURIOUS = {
    "build_extra": lambda self: torch.nn.Linear(3, 5),
    "configure_optimizers_for_module": lambda self, extra: Adam(
        extra.parameters(), 0.01, fused=True
    ),
    "compute_loss_for_module": lambda self, extra, batch: extra(batch["x"]).pow(2).mean(),
}


@pytest.mark.parametrize(("loss", "optimizers"), [(named, three), (summed, None)])
def test_a_compiled_update_equals_the_eager_one(make: Any, loss: Any, optimizers: Any) -> None:
    settings: dict[str, Any] = {
        "build": lambda self: Net(),
        "configure_optimizers_for_module": optimizers,
        "compute_loss_for_module": loss,
        "addons": {"curious": CURIOUS},
        "options": {"scale": Schedule([[0, 1.0], [10, 0.0]])},
        "learning": {"max_grad_norm": 0.5},
    }
    eager, compiled = make(**settings), make(**settings, compute={"compile": True})
    generator = torch.Generator().manual_seed(0)
    rows = Batch({"x": torch.randn(8, 3, generator=generator), "indices": torch.arange(8)})
    with warnings.catch_warnings():
        # What the tracer itself has to say of its parts is not what is tested here.
        warnings.filterwarnings("ignore", module=r"torch\..*")
        for step in range(4):
            mine = eager.update({"default": rows}, timestep=step)["default"]
            other = compiled.update({"default": rows}, timestep=step)["default"]
            assert mine.keys() == other.keys()
            for name in mine:
                assert float(other[name]) == pytest.approx(float(mine[name]), abs=1e-5), name
    assert compiled.engines["default"][0] == "compiled"
    for name, value in eager.modules["default"].state_dict().items():
        torch.testing.assert_close(
            compiled.modules["default"].state_dict()[name], value, atol=1e-5, rtol=0
        )
    assert eager.rows["default"].keys() == compiled.rows["default"].keys()


def test_what_cannot_be_compiled_runs_as_before_after_one_warning(make: Any, batch: Any) -> None:
    def loss(self: Any, fwd_out: Any) -> Any:
        return fwd_out["out"].sum() * (2.0 if fwd_out["out"].sum().item() > 0 else 1.0)

    learner = make(compute_loss_for_module=loss, compute={"compile": True})
    two = batch(1.0, 1.0)
    with pytest.warns(UserWarning, match="module 'default' runs uncompiled"):
        metrics = learner.update({"default": two}, timestep=1, minibatch_size=1)["default"]
    # 2 times 2 before the step of 0.2, 2 times 1.8 after it.
    assert float(metrics["loss"]) == pytest.approx(3.8)
    learner.update({"default": batch(1.0)}, timestep=2)
    assert learner.engines["default"][0] == "torch"


def test_a_plugins_own_error_stays_its_own_under_compilation(make: Any, batch: Any) -> None:
    def loss(self: Any, fwd_out: Any) -> Any:
        raise KeyError("no such column")

    learner = make(compute_loss_for_module=loss, compute={"compile": True})
    with pytest.raises(KeyError, match="no such column") as raised:
        learner.update({"default": batch(1.0)}, timestep=1)
    assert "hook 'compute_loss_for_module'" in raised.value.__notes__[0]
