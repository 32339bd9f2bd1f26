"""The compiled update: equal to the eager one, and a clear fall-back where it cannot be."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch.optim import Adam

from rlplug import Batch, Loss, Module
from rlplug.config import Schedule
from rlplug.config.sections import ComputeSection
from rlplug.errors import RequestError
from rlplug.learner.compiled import compiled
from tests.learner.test_compute import net_settings

# What torch imports with its first trace.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


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


@pytest.mark.parametrize(
    "backend",
    # The inductor compiles C++, which takes half a minute where nothing of it is kept.
    ["aot_eager", pytest.param("inductor", marks=pytest.mark.long)],
)
@pytest.mark.parametrize(("loss", "optimizers"), [(named, three), (summed, None)])
def test_a_compiled_update_equals_the_eager_one(
    make: Any, loss: Any, optimizers: Any, backend: str
) -> None:
    settings: dict[str, Any] = {
        "build": lambda self: Net(),
        "configure_optimizers_for_module": optimizers,
        "compute_loss_for_module": loss,
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


def squares(self: Any, fwd_out: Any) -> Any:
    return fwd_out["out"].pow(2).mean()


def trained(make: Any, sizes: Sequence[int], loss: Any = squares, **compute: Any) -> Any:
    settings = {**net_settings(), "compute_loss_for_module": loss}
    learner = make(**{**settings, "compute": {"compile": True, **compute}} if compute else settings)
    generator = torch.Generator().manual_seed(0)
    for step, size in enumerate(sizes):
        rows = Batch({"x": torch.randn(size, 4, generator=generator)})
        learner.update({"default": rows}, timestep=step)
    return learner


def assert_alike(one: Any, other: Any) -> None:
    pairs = zip(
        one.modules["default"].parameters(), other.modules["default"].parameters(), strict=True
    )
    for mine, theirs in pairs:
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("dynamic", "compiled"), [("off", 3), ("on", 1), ("auto", 2)])
def test_dynamic_says_how_many_shapes_share_a_graph(
    make: Any, graphs: list[Any], dynamic: str, compiled: int
) -> None:
    compute = {"compile_backend": "counting", "compile_dynamic": dynamic}
    learner = trained(make, (8, 6, 5), **compute)
    assert learner.engines["default"][0] == "compiled"
    assert len(graphs) == compiled
    assert_alike(learner, trained(make, (8, 6, 5)))


@pytest.mark.skipif(
    "isolate_recompiles" not in inspect.signature(torch.compile).parameters,
    reason="in this torch, graphs of all modules count together",
)
def test_the_graphs_of_a_module_do_not_count_for_others(make: Any, graphs: list[Any]) -> None:
    import torch._dynamo.config as settings

    learner = make(
        **{
            **net_settings(),
            "compute_loss_for_module": squares,
            "ids": ("one", "two", "three"),
            "compute": {"compile": True, "compile_backend": "counting"},
        }
    )
    rows = Batch({"x": torch.randn(8, 4)})
    with settings.patch(recompile_limit=1):
        learner.update(dict.fromkeys(learner.modules, rows), timestep=0)
    assert [name for name, _ in learner.engines.values()] == ["compiled"] * 3
    assert len(graphs) == 3


def test_the_model_alone_may_be_compiled(make: Any, graphs: list[Any]) -> None:
    learner = trained(make, (8, 8), compile_backend="counting", compile_part="model")
    assert learner.engines["default"] == ("compiled model", "compute.compile is on")
    (graph,) = graphs
    # No loss and no gradient in it.
    assert not {"pow", "grad"} & {getattr(one.target, "__name__", "") for one in graph.graph.nodes}
    assert_alike(learner, trained(make, (8, 8)))


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_breaks_in_the_graph_are_allowed_or_not(make: Any, graphs: list[Any]) -> None:
    def loss(self: Any, fwd_out: Any) -> Any:
        total = fwd_out["out"].pow(2).mean()
        torch._dynamo.graph_break()
        return total * 2

    with pytest.warns(UserWarning, match="runs uncompiled"):
        refused = trained(make, (8, 8), loss, compile_backend="counting")
    assert refused.engines["default"][0] == "torch"
    broken = trained(make, (8, 8), loss, compile_backend="counting", compile_fullgraph=False)
    assert broken.engines["default"][0] == "compiled"
    assert_alike(broken, refused)
    assert_alike(broken, trained(make, (8, 8), loss))


@pytest.mark.parametrize(
    ("section", "device", "mode", "uses_graphs"),
    [
        ({}, "cpu", None, False),
        ({}, "cuda", "reduce-overhead", True),
        ({"compile_backend": "cudagraphs"}, "cuda", None, True),
        ({"compile_mode": "default"}, "cuda", None, False),
        ({"compile_mode": "max-autotune"}, "cpu", "max-autotune", True),
        (
            {"compile_mode": "max-autotune-no-cudagraphs"},
            "cuda",
            "max-autotune-no-cudagraphs",
            False,
        ),
    ],
)
def test_the_mode_reaches_torch_and_graphs_are_for_small_networks_on_cuda(
    make: Any,
    monkeypatch: pytest.MonkeyPatch,
    section: dict[str, Any],
    device: str,
    mode: str | None,
    uses_graphs: bool,
) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(torch, "compile", lambda function, **options: given.update(options))
    member = make(**net_settings()).members["default"]
    options = ComputeSection(compile=True, **section)
    _, found = compiled(lambda: None, options, member, torch.device(device))
    assert (given["mode"], found) == (mode, uses_graphs)
    # A large network keeps a GPU busy without.
    monkeypatch.setattr("rlplug.learner.compiled.is_small", lambda modules: False)
    if not section:
        _, found = compiled(lambda: None, options, member, torch.device(device))
        assert (given["mode"], found) == (None, False)


@pytest.fixture
def written_again(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The backend `written_again`: like a CUDA graph, it puts its results where the last ones lie.

    And as its memory may be given to another graph, what is left of it is spoiled by each run.
    """
    import torch._dynamo as dynamo
    from torch._dynamo.backends.registry import _BACKENDS, _COMPILER_FNS, register_backend

    import rlplug.learner.compiled as module

    memory: list[torch.Tensor] = []

    def backend(graph: Any, inputs: Any) -> Any:
        kept: list[torch.Tensor] = []

        def run(*given: Any) -> Any:
            found = graph.forward(*given)
            with torch.no_grad():
                for one in memory:
                    one.fill_(1e6)
                if not kept:
                    kept.extend(one.detach().clone() for one in found)
                    memory.extend(kept)
                for place, one in zip(kept, found, strict=True):
                    place.copy_(one)
            return tuple(kept)

        return run

    monkeypatch.setattr(module, "_WITH_GRAPHS", ("default",))
    dynamo.reset()
    register_backend(backend, name="written_again")
    yield
    for table in (_COMPILER_FNS, _BACKENDS):
        table.pop("written_again", None)
    dynamo.reset()


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("ids", [("one",), ("one", "two")])
@pytest.mark.usefixtures("written_again")
def test_what_graphs_write_again_is_copied_where_it_is_still_needed(
    make: Any, accumulate: int, ids: tuple[str, ...]
) -> None:
    def loss(self: Any, fwd_out: Any) -> Any:
        return Loss(fwd_out["out"].pow(2).mean(), metrics={"seen": fwd_out["out"].mean()})

    settings = {
        **net_settings(),
        "compute_loss_for_module": loss,
        "ids": ids,
        "learning": {"accumulate": accumulate, "max_grad_norm": 0.5},
    }
    compute = {"compile": True, "compile_backend": "written_again"}
    compiled = make(**{**settings, "compute": compute})
    eager = make(**settings)
    generator = torch.Generator().manual_seed(0)
    for step in range(3):
        rows = [Batch({"x": torch.randn(8, 4, generator=generator)}) for _ in ids]
        batches = dict(zip(ids, rows, strict=True))
        mine, theirs = (
            one.update(batches, timestep=step, num_iters=2, minibatch_size=4)
            for one in (compiled, eager)
        )
        for name in ids:
            for metric in ("loss", "seen", "grad_norm"):
                expected = pytest.approx(float(theirs[name][metric]), rel=1e-4)
                assert float(mine[name][metric]) == expected
    assert [name for name, _ in compiled.engines.values()] == ["compiled"] * len(ids)
    for name in ids:
        for own, other in zip(
            compiled.modules[name].parameters(), eager.modules[name].parameters(), strict=True
        ):
            torch.testing.assert_close(own, other, atol=1e-5, rtol=0)


def test_a_compiled_model_gives_copies_of_what_graphs_write_again(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import rlplug.learner.compiled as module

    monkeypatch.setattr(module, "_WITH_GRAPHS", ("default",))
    learner = trained(make, (8, 8), compile_backend="aot_eager", compile_part="model")
    assert learner.engines["default"][0].startswith("compiled")
    assert_alike(learner, trained(make, (8, 8)))


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


def test_an_unknown_backend_is_refused_with_a_suggestion(make: Any) -> None:
    with pytest.raises(RequestError, match=r"no backend 'inducter'.*'inductor'"):
        make(**net_settings(compile=True, compile_backend="inducter"))
