"""The options of `[compute]`: device, precision, compilation, threads."""

from __future__ import annotations

import re

import attrs

from rlplug.config.option import (
    above,
    at_least,
    between,
    changed,
    no_effect,
    one_of,
    option,
    refuse,
)

__all__ = ["ComputeSection"]


_DEVICE = re.compile(r"(auto|cpu|mps|cuda(:\d+)?)\Z")


def _device(value: str) -> str | None:
    if _DEVICE.match(value):
        return None
    return f"must be 'auto', 'cpu', 'mps', 'cuda' or 'cuda:N', got {value!r}"


@attrs.frozen(kw_only=True)
class ComputeSection:
    """Device, precision, compilation, threads and determinism."""

    device: str = option("auto", "auto, cpu, mps, cuda or cuda:N; auto logs its choice.", _device)
    dtype: str = option("float32", "Data type of weights.", one_of(("float32", "float64")))
    precision: str = option(
        "fp32",
        "Forward passes in fp32, or mixed with bf16 or fp16.",
        one_of(("fp32", "bf16", "fp16")),
    )
    scaler_init_scale: float = option(65536.0, "fp16: initial loss scale.", above(0))
    scaler_growth_factor: float = option(2.0, "fp16: factor by which the scale grows.", above(1))
    scaler_backoff_factor: float = option(
        0.5, "fp16: factor by which the scale shrinks on overflow.", between(1e-6, 1.0)
    )
    scaler_growth_interval: int = option(
        2000, "fp16: steps without overflow before it grows.", at_least(1)
    )
    scaler_min_scale: float = option(
        1e-4, "fp16: end the run if the scale falls below.", at_least(0)
    )
    tf32: bool = option(True, "Allow TF32 in float32 matrix multiplications on CUDA.")
    arrays: str = option(
        "auto",
        "Small networks' losses on NumPy arrays where they match torch.",
        one_of(("auto", "off")),
    )
    compile: bool = option(False, "Use torch.compile; pays off in long runs.")
    compile_part: str = option(
        "step",
        "compile: forward, loss and gradients (step), or forward alone.",
        one_of(("step", "model")),
    )
    compile_mode: str = option(
        "auto",
        "compile: mode of torch.compile; auto: CUDA graphs for small networks on CUDA.",
        one_of(
            ("auto", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
        ),
    )
    compile_backend: str = option("inductor", "compile: inductor, cudagraphs, eager ….")
    compile_fullgraph: bool = option(True, "compile: refuse breaks in the graph.")
    compile_dynamic: str = option(
        "auto",
        "compile: one graph for varying shapes; auto: after the first change.",
        one_of(("auto", "on", "off")),
    )
    deterministic: str = option(
        "off",
        "Deterministic algorithms only; where none: warn, or raise.",
        one_of(("off", "warn", "strict")),
    )
    detect_anomaly: bool = option(False, "Name the source of NaNs in backward passes; slow.")
    num_threads: int = option(0, "torch's threads on the CPU; 0: automatic.", at_least(0))

    def __attrs_post_init__(self) -> None:
        """Refuse options that have no effect, all at once."""
        idle = [name for name in changed(self) if name.startswith("compile_")]
        problems = [] if self.compile else no_effect(idle, "with compile = false")
        if self.compile_backend != "inductor" and self.compile_mode not in ("auto", "default"):
            problems.append(
                f"compile_mode = {self.compile_mode!r} is a mode of the inductor, "
                f"not of compile_backend = {self.compile_backend!r}"
            )
        refuse(problems)
