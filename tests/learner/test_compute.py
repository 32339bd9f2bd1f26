"""Where and how numbers are computed: formats, devices, threads, and the compiled update."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
import threadpoolctl
import torch
from gymnasium.spaces import Box, Discrete
from torch import nn
from torch.optim import Adam

from rlplug import Batch, Loss, Module, build_learner, run
from rlplug.config import Schedule
from rlplug.config.sections import ComputeSection
from rlplug.errors import RequestError, RunFailedError
from rlplug.learner.device import Precision, apply_compute, choose_device, settings_kept
from tests.learner.small import make, update
from tests.test_tensor_sampling import reads_counted

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

# -- compute ---------------------------------------------------------------------------------------


class Net(Module):
    """One layer, whose format of computation is seen in what it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward_train(self, batch: Any) -> Any:
        return {"out": self.layer(batch["x"])}


def net(loss: Any = None, **known: Any) -> Any:
    """The learner of a Net with an Adam."""
    squares = lambda self, fwd_out: fwd_out["out"].float().pow(2).mean()  # noqa: E731
    hooks = {"build": lambda self: Net(), "optimizers": None}
    return make(**hooks, loss=loss or squares, **known)


ROWS = {"default": Batch({"x": torch.linspace(-1, 1, 32).reshape(8, 4)})}
LARGE = nn.ParameterList([nn.Parameter(torch.empty(1_000_000))])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [torch.float32] * 3),
        ({"precision": "bf16"}, [torch.bfloat16, torch.float32, torch.float32]),
        ({"dtype": "float64"}, [torch.float64] * 3),
    ],
    ids=str,
)
def test_formats_of_forward_pass_and_loss_and_of_weights_and_columns(
    options: Any, expected: Any
) -> None:
    seen: list[Any] = []

    def loss(self: Any, module: Any, batch: Any, fwd_out: Any) -> Any:
        assert fwd_out["out"].dtype == module.layer(batch["x"]).dtype
        seen.extend((fwd_out["out"].dtype, batch["x"].dtype, module.layer.weight.dtype))
        assert batch["actions"].dtype == torch.int64
        return fwd_out["out"].float().pow(2).mean()

    learner = net(loss, compute=options)
    rows = ROWS["default"].with_columns({"actions": torch.zeros(8, dtype=torch.int64)})
    learner.update({"default": rows}, timestep=1)
    assert seen == expected


@pytest.mark.parametrize(
    ("options", "cuda", "mps", "message"),
    [
        ({"device": "cuda:1"}, 0, False, "there are 0 CUDA devices"),
        ({"device": "cuda:1"}, 1, False, "there are 1 CUDA devices, counted from 0"),
        ({"device": "mps"}, 0, False, "Metal is not available"),
        ({"device": "mps", "dtype": "float64"}, 0, True, r"it has no compute\.dtype 'float64'"),
        ({"precision": "fp16"}, 0, False, "'fp16' needs CUDA or MPS"),
        ({"precision": "bf16", "dtype": "float64"}, 0, False, "exclude each other"),
    ],
    ids=str,
)
def test_what_is_not_there_or_does_not_go_together_is_refused(
    monkeypatch: pytest.MonkeyPatch, options: Any, cuda: int, mps: bool, message: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    with pytest.raises(RequestError, match=message) as raised:
        net(compute=options)
    assert "try: --set compute." in str(raised.value)


def test_large_networks_go_to_cuda_where_it_is_and_small_ones_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def chosen(*modules: nn.Module, **section: Any) -> str:
        return str(choose_device(ComputeSection(**section), modules))

    small, image = nn.Linear(2, 2), nn.Conv2d(1, 1, 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for large in (LARGE, image):
        assert chosen(large) == "cuda:3"
    assert chosen(small) == "cpu"
    assert chosen(small, device="cuda:1") == "cuda:1"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert chosen(LARGE) == "cpu"


def test_threads_tf32_and_determinism_are_switched_as_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    with settings_kept():
        torch.set_num_threads(2)
        for threads, small, expected in ((0, False, 2), (0, True, 1), (2, True, 2)):
            given = {"num_threads": threads} if threads else {}
            apply_compute(ComputeSection(**given), cpu, small=small)
            assert torch.get_num_threads() == expected
        for wanted in (True, False):
            apply_compute(ComputeSection(tf32=wanted), cuda, small=True)
            assert (matmul.allow_tf32, cudnn.allow_tf32) == (wanted, wanted)
        for mode in ("warn", "strict"):
            apply_compute(ComputeSection(deterministic=mode), cpu, small=True)
            assert torch.are_deterministic_algorithms_enabled()
            warns = torch.is_deterministic_algorithms_warn_only_enabled()
            assert (warns, cudnn.benchmark) == (mode == "warn", False)
    assert not torch.are_deterministic_algorithms_enabled()
    assert cudnn.benchmark
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)


def threads_of_libraries() -> dict[str, int]:
    """By file: threadpoolctl lists them in an order that changes."""
    return {each["filepath"]: each["num_threads"] for each in threadpoolctl.threadpool_info()}


def test_a_run_leaves_the_process_as_it_was() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with threadpoolctl.threadpool_limits(2, user_api="blas"):
            counts = threads_of_libraries()
            options = {
                "tracking.enabled": False,
                "compute.num_threads": 1,
                "compute.deterministic": "warn",
            }
            run("linucb", steps=20, options=options)
            assert threads_of_libraries() == counts
        assert torch.get_num_threads() == 2
        assert not torch.are_deterministic_algorithms_enabled()
    finally:
        torch.set_num_threads(before)


# -- as on a GPU ---------------------------------------------------------------------------------


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU has a scaler for fp16, and in other formats reads no number that it finds."""
    really = Precision.__init__

    def made(self: Any, section: Any, device: torch.device) -> None:
        half = section.precision == "fp16"
        really(self, attrs.evolve(section, precision="bf16") if half else section, device)
        self.reads = half
        if half:
            scale, every = section.scaler_init_scale, section.scaler_growth_interval
            self.scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=every)

    monkeypatch.setattr(Precision, "__init__", made)


def in_fp16(**scaler: Any) -> Any:
    given = {"scaler_init_scale": 1024.0, "scaler_growth_interval": 2, **scaler}
    return net(compute={"precision": "fp16", **given})


def scale_of(learner: Any) -> float:
    return float(learner.get_state()["scaler"]["scale"])


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_scaler_changes_neither_gradients_nor_norms_and_is_part_of_the_state(
    tmp_path: Any,
) -> None:
    plain, scaled, fresh = net(compute={"precision": "bf16"}), in_fp16(), in_fp16()
    for step in range(4):
        mine, other = (each.update(ROWS, timestep=step)["default"] for each in (plain, scaled))
        assert float(other["grad_norm"]) == pytest.approx(float(mine["grad_norm"]), rel=1e-3)
        assert float(other["overflow"]) == 0
    # Four calm steps, growth after every second.
    assert scale_of(scaled) == 4096.0
    scaled.save_state(tmp_path)
    fresh.load_state(tmp_path)
    assert fresh.get_state()["scaler"] == scaled.get_state()["scaler"]
    assert fresh.weight_digests() == scaled.weight_digests()


@pytest.mark.usefixtures("as_on_a_gpu")
def test_overflow_halves_the_scale_skips_the_step_and_ends_the_run_in_the_end() -> None:
    learner = in_fp16(scaler_min_scale=300.0)
    before = learner.weight_digests()
    bad = {"default": Batch({"x": torch.full((2, 4), float("inf"))})}
    metrics = learner.update(bad, timestep=1)["default"]
    assert (float(metrics["overflow"]), "nonfinite" in metrics) == (1.0, False)
    assert (scale_of(learner), learner.weight_digests()) == (512.0, before)
    with pytest.raises(RunFailedError, match=r"fell to 256, below compute\.scaler_min_scale"):
        learner.update(bad, timestep=2)


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_an_update_reads_as_much_with_many_minibatches_as_with_one(algorithm: str) -> None:
    # The norm of the largest is torch's also on the CPU.
    options = {"compute.arrays": "off", "learner.norm_type": float("inf")}
    spaces = Box(-1, 1, (4,)), Discrete(2)
    learner = build_learner(algorithm, *spaces, options=options, seed=1)
    seen = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    columns = {
        "observations": seen,
        "actions": torch.arange(64) % 2,
        "rewards": seen[:, 0].clone(),
        "terminated": torch.zeros(64, dtype=torch.bool),
        "truncated": torch.zeros(64, dtype=torch.bool),
        "next_observations": seen.roll(1, 0),
    }
    if algorithm == "ppo":
        columns |= {"fragments": torch.tensor([[0, 64]]), "final_observations": seen[:1]}
        del columns["next_observations"]
    reads = []
    # The first update also makes the state of the optimizer, and settles engines.
    for step, size in enumerate((0, 0, 4)):
        with reads_counted() as names:
            rows = {"default": Batch(columns)}
            learner.update(rows, timestep=step, num_iters=2, minibatch_size=size)
        reads.append(list(names))
    assert reads[2] == reads[1]
    if algorithm == "dqn":
        # What an update reads would be read in every step.
        assert reads[1] == []


# -- compiled --------------------------------------------------------------------------------------


# What torch imports with its first trace.


class Three(Module):
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
        "build": lambda self: Three(),
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
