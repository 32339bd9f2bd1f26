"""The compiled update: equal to the eager one, and a clear fall-back where it cannot be."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Adam

from rlplug import Batch, Loss, Module
from rlplug.config import Schedule
from rlplug.config.sections import ComputeSection
from tests.learner.small import make, update
from tests.learner.test_compute import net

# What torch imports with its first trace.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


class Net(Module):
    """Three networks for three optimizers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(3, 4) for _ in range(3))

    def forward_train(self, batch: Any) -> Any:
        x = batch["x"]
        return {"a": self.a(x), "b": self.b(x), "c": self.c(x)}


def three(self: Any, module: Any) -> Any:
    return {
        name: Adam(getattr(module, name).parameters(), 0.01, fused=True) for name in ("a", "b", "c")
    }


def named(self: Any, fwd_out: Any, config: Any) -> Any:
    losses = {name: (out - config.scale).pow(2).mean() for name, out in fwd_out.items()}
    rows = {"priority": fwd_out["a"][:, 0]}
    return Loss(losses, metrics={"seen": fwd_out["a"].mean()}, rows=rows)


def summed(self: Any, fwd_out: Any, config: Any) -> Any:
    terms = {f"{name}_loss": (out - config.scale).pow(2).mean() for name, out in fwd_out.items()}
    total = terms["a_loss"] + terms["b_loss"] + terms["c_loss"]
    return Loss(total, terms=terms, stop=total < 0)


CURIOUS = {
    "build_extra": lambda self: nn.Linear(3, 5),
    "optimizers": lambda self, extra: Adam(extra.parameters(), 0.01, fused=True),
    "loss": lambda self, extra, batch: extra(batch["x"]).pow(2).mean(),
}


def assert_alike(learner: Any, other: Any, module_id: str = "default") -> None:
    """The weights of both are the same."""
    mine, theirs = (dict(each.modules[module_id].state_dict()) for each in (learner, other))
    torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "backend",
    # The inductor compiles C++, which takes half a minute where nothing of it is kept.
    ["aot_eager", pytest.param("inductor", marks=pytest.mark.long)],
)
@pytest.mark.parametrize(("loss", "optimizers"), [(named, three), (summed, None)])
def test_a_compiled_update_equals_the_eager_one(loss: Any, optimizers: Any, backend: str) -> None:
    settings: dict[str, Any] = {
        "build": lambda self: Net(),
        "optimizers": optimizers,
        "loss": loss,
        "addons": {"curious": CURIOUS},
        "options": {"scale": Schedule([[0, 1.0], [10, 0.0]])},
        "learning": {"max_grad_norm": 0.5},
    }
    compute = {"compile": True, "compile_backend": backend}
    eager, compiled = make(**settings), make(**settings, compute=compute)
    generator = torch.Generator().manual_seed(0)
    rows = Batch({"x": torch.randn(8, 3, generator=generator), "indices": torch.arange(8)})
    with warnings.catch_warnings():
        # What the tracer itself has to say of its parts is not what is tested here.
        warnings.filterwarnings("ignore", module=r"torch\..*")
        for step in range(4):
            mine, other = (
                each.update({"default": rows}, timestep=step)["default"]
                for each in (eager, compiled)
            )
            assert mine.keys() == other.keys()
            for name in mine:
                assert float(other[name]) == pytest.approx(float(mine[name]), abs=1e-5), name
    assert compiled.engines["default"][0] == "compiled"
    assert_alike(compiled, eager)
    assert eager.rows["default"].keys() == compiled.rows["default"].keys()


def test_what_cannot_be_compiled_runs_as_before_after_one_warning() -> None:
    def loss(self: Any, fwd_out: Any) -> Any:
        return fwd_out["out"].sum() * (2.0 if fwd_out["out"].sum().item() > 0 else 1.0)

    learner = make(loss=loss, compute={"compile": True})
    with pytest.warns(UserWarning, match="module 'default' runs uncompiled"):
        metrics = update(learner, 1.0, 1.0, minibatch_size=1)
    # 2 times 2 before the step of 0.2, 2 times 1.8 after it.
    assert float(metrics["loss"]) == pytest.approx(3.8)
    update(learner, 1.0)
    assert learner.engines["default"][0] == "torch"


def test_a_plugins_own_error_stays_its_own_under_compilation() -> None:
    def loss(self: Any) -> Any:
        raise KeyError("no such column")

    learner = make(loss=loss, compute={"compile": True})
    with pytest.raises(KeyError, match="no such column") as raised:
        update(learner, 1.0)
    assert "hook 'compute_loss_for_module'" in raised.value.__notes__[0]


# -- the options of compute.compile ------------------------------------------------------------


@pytest.fixture
def graphs() -> Iterator[list[Any]]:
    """The graphs that the backend `counting` was given to compile."""
    import torch._dynamo as dynamo
    from torch._dynamo.backends.registry import _BACKENDS, _COMPILER_FNS, register_backend

    found: list[Any] = []

    def counting(graph: Any, inputs: Any) -> Any:
        found.append(graph)
        return graph.forward

    dynamo.reset()
    register_backend(counting, name="counting")
    yield found
    for table in (_COMPILER_FNS, _BACKENDS):
        table.pop("counting", None)
    dynamo.reset()


@pytest.fixture
def written_again(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In place of the backend `cudagraphs`, one that puts its results where the last ones lie.

    As the memory of a graph may be given to another one, what is left of it is spoiled by each run.
    """
    import torch._dynamo as dynamo
    from torch._dynamo.backends.registry import _COMPILER_FNS

    memory: list[torch.Tensor] = []

    def backend(graph: Any, inputs: Any) -> Any:
        kept: list[torch.Tensor] = []

        def run(*given: Any) -> Any:
            found = graph.forward(*given)
            with torch.no_grad():
                for place in memory:
                    place.fill_(1e6)
                if not kept:
                    kept.extend(result.detach().clone() for result in found)
                    memory.extend(kept)
                for place, result in zip(kept, found, strict=True):
                    place.copy_(result)
            return tuple(kept)

        return run

    backend._tags = ()  # type: ignore[attr-defined] # torch asks for them
    dynamo.list_backends()
    dynamo.reset()
    monkeypatch.setitem(_COMPILER_FNS, "cudagraphs", backend)
    yield
    dynamo.reset()


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("ids", [("default",), ("default", "two")])
@pytest.mark.usefixtures("written_again")
def test_what_graphs_write_again_is_copied_where_it_is_still_needed(
    accumulate: int, ids: tuple[str, ...]
) -> None:
    def loss(self: Any, fwd_out: Any) -> Any:
        return Loss(fwd_out["out"].pow(2).mean(), metrics={"seen": fwd_out["out"].mean()})

    compute = {"compile": True, "compile_backend": "cudagraphs"}
    learning = {"accumulate": accumulate, "max_grad_norm": 0.5}
    compiled, eager = (
        net(loss, ids=ids, learning=learning, compute=each) for each in (compute, {})
    )
    generator = torch.Generator().manual_seed(0)
    for step in range(3):
        batches = {name: Batch({"x": torch.randn(8, 4, generator=generator)}) for name in ids}
        mine, theirs = (
            each.update(batches, timestep=step, num_iters=2, minibatch_size=4)
            for each in (compiled, eager)
        )
        for name in ids:
            for metric in ("loss", "seen", "grad_norm"):
                expected = pytest.approx(float(theirs[name][metric]), rel=1e-4)
                assert float(mine[name][metric]) == expected
    assert [name for name, _ in compiled.engines.values()] == ["compiled"] * len(ids)
    for name in ids:
        assert_alike(compiled, eager, name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compile_mode": "default"}, "compile_mode would have no effect with compile = false"),
        ({"compile_dynamic": "on"}, "compile_dynamic would have no effect with compile = false"),
        (
            {"compile": True, "compile_backend": "eager", "compile_mode": "max-autotune"},
            "is a mode of the inductor, not of compile_backend = 'eager'",
        ),
    ],
)
def test_options_without_effect_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ComputeSection(**options)
