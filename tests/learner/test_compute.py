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
from rlplug.learner.device import Precision, apply_compute, choose_device, is_small


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


def test_cuda_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RequestError, match="CUDA is not available") as raised:
        choose_device(ComputeSection(device="cuda:1"))
    assert "compute.device=cpu" in str(raised.value)


def test_a_cuda_device_beyond_the_last_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(RequestError, match="there are 1 CUDA devices, counted from 0"):
        choose_device(ComputeSection(device="cuda:1"))


def test_mps_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(RequestError, match="Metal is not available"):
        choose_device(ComputeSection(device="mps"))


def test_fp16_on_the_cpu_is_refused(make: Any) -> None:
    with pytest.raises(RequestError, match="'fp16' needs CUDA or MPS"):
        make(**net_settings(precision="fp16"))


def test_mixed_precision_of_float64_is_refused(make: Any) -> None:
    with pytest.raises(RequestError, match="exclude each other"):
        make(**net_settings(precision="bf16", dtype="float64"))


def test_bf16_is_the_format_of_forward_pass_and_loss_and_not_of_weights(make: Any) -> None:
    seen: list[Any] = []

    def loss(self: Any, module: Any, batch: Any, fwd_out: Any) -> Any:
        seen.extend((fwd_out["out"].dtype, module.layer(batch["x"]).dtype))
        return fwd_out["out"].float().pow(2).mean()

    learner = make(**{**net_settings(precision="bf16"), "compute_loss_for_module": loss})
    learner.update(ROWS, timestep=1)
    assert seen == [torch.bfloat16, torch.bfloat16]
    assert learner.modules["default"].layer.weight.dtype == torch.float32


def test_fp32_leaves_the_forward_pass_alone(make: Any) -> None:
    seen: list[Any] = []

    def loss(self: Any, fwd_out: Any) -> Any:
        seen.append(fwd_out["out"].dtype)
        return fwd_out["out"].pow(2).mean()

    make(**{**net_settings(), "compute_loss_for_module": loss}).update(ROWS, timestep=1)
    assert seen == [torch.float32]


def test_float64_is_the_format_of_weights_and_of_fractional_columns(make: Any) -> None:
    seen: list[Any] = []

    def loss(self: Any, batch: Any, fwd_out: Any) -> Any:
        seen.extend((batch["x"].dtype, batch["actions"].dtype))
        return fwd_out["out"].pow(2).mean()

    learner = make(**{**net_settings(dtype="float64"), "compute_loss_for_module": loss})
    rows = ROWS["default"].with_columns({"actions": torch.zeros(8, dtype=torch.int64)})
    learner.update({"default": rows}, timestep=1)
    assert seen == [torch.float64, torch.int64]
    assert learner.modules["default"].layer.weight.dtype == torch.float64


def with_scaler(learner: Any, **settings: Any) -> torch.amp.GradScaler:
    """The CPU has a scaler too: what fp16 on CUDA goes through can be followed here."""
    scaler = torch.amp.GradScaler("cpu", **{"init_scale": 1024.0, "growth_interval": 2, **settings})
    learner._parts.precision.scaler = scaler
    return scaler


def test_a_scaler_changes_neither_gradients_nor_their_norms(make: Any) -> None:
    plain, scaled = make(**net_settings()), make(**net_settings())
    scaler = with_scaler(scaled)
    for step in range(4):
        mine = plain.update(ROWS, timestep=step)["default"]
        other = scaled.update(ROWS, timestep=step)["default"]
        assert float(other["grad_norm"]) == pytest.approx(float(mine["grad_norm"]), rel=1e-5)
        assert float(other["overflow"]) == 0
    for mine, other in zip(
        plain.modules["default"].parameters(), scaled.modules["default"].parameters(), strict=True
    ):
        torch.testing.assert_close(mine, other)
    # Four calm steps, growth after every second.
    assert scaler.get_scale() == 4096.0


def test_overflow_halves_the_scale_skips_the_step_and_is_counted_apart(make: Any) -> None:
    learner = make(**net_settings())
    scaler = with_scaler(learner)
    before = learner.modules["default"].layer.weight.clone()
    bad = Batch({"x": torch.full((2, 4), float("inf"))})
    metrics = learner.update({"default": bad}, timestep=1)["default"]
    assert float(metrics["overflow"]) == 1
    assert "nonfinite" not in metrics
    assert scaler.get_scale() == 512.0
    assert torch.equal(learner.modules["default"].layer.weight, before)


def test_a_scale_below_the_lowest_ends_the_run(make: Any) -> None:
    learner = make(**net_settings(scaler_min_scale=300.0))
    with_scaler(learner)
    bad = Batch({"x": torch.full((2, 4), float("inf"))})
    # 1024, halved at each overflow: 512, then 256.
    learner.update({"default": bad}, timestep=1)
    with pytest.raises(RunFailedError, match=r"fell to 256, below compute\.scaler_min_scale"):
        learner.update({"default": bad}, timestep=2)


def test_the_scaler_gets_all_its_settings() -> None:
    section = ComputeSection(
        precision="fp16",
        scaler_init_scale=8.0,
        scaler_growth_factor=4.0,
        scaler_backoff_factor=0.25,
        scaler_growth_interval=3,
    )
    scaler = Precision(section, torch.device("mps")).scaler
    assert scaler is not None
    assert scaler.state_dict() == {
        "scale": 8.0,
        "growth_factor": 4.0,
        "backoff_factor": 0.25,
        "growth_interval": 3,
        "_growth_tracker": 0,
    }


@pytest.mark.parametrize("wanted", [True, False])
def test_tf32_is_switched_as_asked(wanted: bool) -> None:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    try:
        matmul.allow_tf32 = cudnn.allow_tf32 = not wanted
        apply_compute(ComputeSection(tf32=wanted), torch.device("cuda"), small=True)
        assert (matmul.allow_tf32, cudnn.allow_tf32) == (wanted, wanted)
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def test_a_scale_that_falls_too_low_ends_the_run() -> None:
    precision = Precision(ComputeSection(), torch.device("cpu"))
    precision.scaler = torch.amp.GradScaler("cpu", init_scale=1e-5)
    precision.scaler.scale(torch.ones(()))
    with pytest.raises(RunFailedError, match="fell to 1e-05"):
        precision.update_finished()


def test_the_scaler_is_part_of_the_state(make: Any, tmp_path: Any) -> None:
    learner, fresh = make(**net_settings()), make(**net_settings())
    with_scaler(learner)
    for step in range(3):
        learner.update(ROWS, timestep=step)
    learner.save_state(tmp_path)
    scaler = with_scaler(fresh)
    fresh.load_state(tmp_path)
    assert scaler.state_dict() == learner._parts.precision.scaler.state_dict()
    for one in (learner, fresh):
        one.update(ROWS, timestep=4)
    assert torch.equal(
        learner.modules["default"].layer.weight, fresh.modules["default"].layer.weight
    )


def test_small_networks_get_one_thread_and_a_number_given_is_obeyed() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        apply_compute(ComputeSection(), torch.device("cpu"), small=False)
        assert torch.get_num_threads() == 2
        apply_compute(ComputeSection(), torch.device("cpu"), small=True)
        assert torch.get_num_threads() == 1
        apply_compute(ComputeSection(num_threads=2), torch.device("cpu"), small=True)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


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


@pytest.mark.parametrize("mode", ["warn", "strict"])
def test_determinism_is_switched_on_as_asked(mode: str) -> None:
    try:
        apply_compute(ComputeSection(deterministic=mode), torch.device("cpu"), small=True)
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled() is (mode == "warn")
    finally:
        torch.use_deterministic_algorithms(False)


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
