"""Where and in what formats numbers are computed."""

from __future__ import annotations

from typing import Any

import pytest
import threadpoolctl
import torch
from torch import nn

from rlplug import Batch, Module, run
from rlplug.config.sections import ComputeSection
from rlplug.errors import RequestError, RunFailedError
from rlplug.learner.device import Precision, apply_compute, choose_device, is_small, settings_kept


class Net(Module):
    """One layer, whose format of computation is seen in what it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward_train(self, batch: Any) -> Any:
        return {"out": self.layer(batch["x"])}


def net_settings(**compute: Any) -> dict[str, Any]:
    return {
        "build": lambda self: Net(),
        "configure_optimizers_for_module": None,
        "compute_loss_for_module": lambda self, fwd_out: fwd_out["out"].float().pow(2).mean(),
        "compute": compute,
    }


ROWS = {"default": Batch({"x": torch.linspace(-1, 1, 32).reshape(8, 4)})}


def test_auto_takes_the_cpu_without_cuda_and_says_why() -> None:
    chosen = choose_device(ComputeSection(), [torch.nn.Linear(2, 2)])
    if torch.cuda.is_available():
        assert chosen.reason == "small networks are faster here than over CUDA"
    else:
        assert chosen.reason == "CUDA is not available"
    assert chosen.device.type == "cpu"


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "cpu:1:2", ""])
def test_an_unknown_device_is_refused_where_it_is_set(name: str) -> None:
    with pytest.raises(ValueError, match="must be 'auto', 'cpu'"):
        ComputeSection(device=name)


@pytest.mark.parametrize(
    ("options", "count", "message"),
    [
        ({"device": "cuda:1"}, 0, "there are 0 CUDA devices"),
        ({"device": "cuda:1"}, 1, "there are 1 CUDA devices, counted from 0"),
        ({"device": "mps"}, 0, "Metal is not available"),
        ({"precision": "fp16"}, 0, "'fp16' needs CUDA or MPS"),
        ({"precision": "bf16", "dtype": "float64"}, 0, "exclude each other"),
    ],
    ids=str,
)
def test_what_is_not_there_or_does_not_go_together_is_refused(
    make: Any, monkeypatch: pytest.MonkeyPatch, options: Any, count: int, message: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(RequestError, match=message) as raised:
        make(**net_settings(**options))
    assert "try: --set compute." in str(raised.value)


@pytest.mark.parametrize(
    ("options", "computed", "kept"),
    [
        ({}, torch.float32, torch.float32),
        ({"precision": "bf16"}, torch.bfloat16, torch.float32),
        ({"dtype": "float64"}, torch.float64, torch.float64),
    ],
    ids=str,
)
def test_formats_of_forward_pass_and_loss_and_of_weights_and_columns(
    make: Any, options: Any, computed: torch.dtype, kept: torch.dtype
) -> None:
    seen: list[Any] = []

    def loss(self: Any, module: Any, batch: Any, fwd_out: Any) -> Any:
        seen.extend((fwd_out["out"].dtype, module.layer(batch["x"]).dtype))
        seen.extend((batch["x"].dtype, batch["actions"].dtype))
        return fwd_out["out"].float().pow(2).mean()

    learner = make(**{**net_settings(arrays="off", **options), "compute_loss_for_module": loss})
    rows = ROWS["default"].with_columns({"actions": torch.zeros(8, dtype=torch.int64)})
    learner.update({"default": rows}, timestep=1)
    assert seen == [computed, computed, kept, torch.int64]
    assert learner.modules["default"].layer.weight.dtype == kept


def with_scaler(learner: Any, **settings: Any) -> torch.amp.GradScaler:
    """The CPU has a scaler too: what fp16 on CUDA goes through can be followed here."""
    scaler = torch.amp.GradScaler("cpu", **{"init_scale": 1024.0, "growth_interval": 2, **settings})
    learner.precision.scaler = scaler
    return scaler


def test_a_scaler_changes_neither_gradients_nor_norms_and_is_part_of_the_state(
    make: Any, tmp_path: Any
) -> None:
    plain, scaled, fresh = (make(**net_settings()) for _ in range(3))
    scaler = with_scaler(scaled)
    for step in range(4):
        mine = plain.update(ROWS, timestep=step)["default"]
        other = scaled.update(ROWS, timestep=step)["default"]
        assert float(other["grad_norm"]) == pytest.approx(float(mine["grad_norm"]), rel=1e-5)
        assert float(other["overflow"]) == 0
    # Four calm steps, growth after every second.
    assert scaler.get_scale() == 4096.0
    scaled.save_state(tmp_path)
    again = with_scaler(fresh)
    fresh.load_state(tmp_path)
    assert again.state_dict() == scaler.state_dict()
    weights = [learner.modules["default"].layer.weight for learner in (plain, scaled, fresh)]
    torch.testing.assert_close(weights[0], weights[1])
    assert torch.equal(weights[1], weights[2])


def test_overflow_halves_the_scale_skips_the_step_and_ends_the_run_in_the_end(make: Any) -> None:
    learner = make(**net_settings(scaler_min_scale=300.0))
    scaler = with_scaler(learner)
    before = learner.modules["default"].layer.weight.clone()
    bad = Batch({"x": torch.full((2, 4), float("inf"))})
    metrics = learner.update({"default": bad}, timestep=1)["default"]
    assert float(metrics["overflow"]) == 1
    assert "nonfinite" not in metrics
    assert scaler.get_scale() == 512.0
    assert torch.equal(learner.modules["default"].layer.weight, before)
    with pytest.raises(RunFailedError, match=r"fell to 256, below compute\.scaler_min_scale"):
        learner.update({"default": bad}, timestep=2)


def test_the_scaler_gets_all_its_settings() -> None:
    given = {"init_scale": 8.0, "growth_factor": 4.0, "backoff_factor": 0.25, "growth_interval": 3}
    named = {f"scaler_{name}": value for name, value in given.items()}
    section = ComputeSection(precision="fp16", **named)  # type: ignore[arg-type] # of several types
    scaler = Precision(section, torch.device("mps")).scaler
    assert scaler is not None
    given["scale"] = given.pop("init_scale")
    assert scaler.state_dict() == {**given, "_growth_tracker": 0}


def test_threads_tf32_and_determinism_are_switched_as_asked() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    matmul = torch.backends.cuda.matmul
    with settings_kept():
        torch.set_num_threads(2)
        apply_compute(ComputeSection(), cpu, small=False)
        assert torch.get_num_threads() == 2
        apply_compute(ComputeSection(), cpu, small=True)
        assert torch.get_num_threads() == 1
        apply_compute(ComputeSection(num_threads=2), cpu, small=True)
        assert torch.get_num_threads() == 2
        for wanted in (True, False):
            apply_compute(ComputeSection(tf32=wanted), cuda, small=True)
            assert (matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == (wanted, wanted)
        for mode in ("warn", "strict"):
            apply_compute(ComputeSection(deterministic=mode), cpu, small=True)
            assert torch.are_deterministic_algorithms_enabled()
            warns = torch.is_deterministic_algorithms_warn_only_enabled()
            assert warns is (mode == "warn")
    assert not torch.are_deterministic_algorithms_enabled()


def threads_of_libraries() -> dict[str, int]:
    """By file: threadpoolctl lists them in an order that changes."""
    return {one["filepath"]: one["num_threads"] for one in threadpoolctl.threadpool_info()}


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


def test_anomalies_are_traced_to_the_operation_that_made_them(make: Any) -> None:
    def loss(self: Any, fwd_out: Any) -> Any:
        return (fwd_out["out"] * 0).sqrt().sum()

    settings = {**net_settings(detect_anomaly=True), "compute_loss_for_module": loss}
    learner = make(**settings)
    with (
        pytest.warns(UserWarning, match="Error detected in MulBackward0"),
        pytest.raises(RuntimeError, match="returned nan values"),
    ):
        learner.update(ROWS, timestep=1)
    assert not torch.is_anomaly_enabled()


def test_networks_of_a_million_parameters_or_with_convolutions_are_not_small() -> None:
    def layer(count: int) -> nn.Module:
        return nn.ParameterList([nn.Parameter(torch.empty(count))])

    assert is_small([])
    assert is_small([layer(400_000), layer(599_999)])
    assert not is_small([layer(400_000), layer(600_000)])
    assert not is_small([nn.Conv2d(1, 1, 1)])
