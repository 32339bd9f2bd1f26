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

    device: str = option(
        "auto", "Device to train on: auto, cpu, mps, cuda or cuda:N; auto logs its choice.", _device
    )
    dtype: str = option(
        "float32", "Data type of weights: float32 or float64.", one_of(("float32", "float64"))
    )
    precision: str = option(
        "fp32",
        "Precision of forward passes: fp32, or mixed precision with bf16 or fp16.",
        one_of(("fp32", "bf16", "fp16")),
    )
    scaler_init_scale: float = option(
        65536.0, "fp16: initial loss scale (GradScaler init_scale).", above(0)
    )
    scaler_growth_factor: float = option(
        2.0,
        "fp16: factor by which the scale grows after growth_interval steps without overflow.",
        above(1),
    )
    scaler_backoff_factor: float = option(
        0.5, "fp16: factor by which the scale shrinks on overflow.", between(1e-6, 1.0)
    )
    scaler_growth_interval: int = option(
        2000, "fp16: consecutive steps without overflow before the scale grows.", at_least(1)
    )
    scaler_min_scale: float = option(
        1e-4,
        "fp16: end the run when the scale falls below this: the loss itself is not finite.",
        at_least(0),
    )
    tf32: bool = option(True, "Allow TF32 in float32 matrix multiplications on CUDA.")
    arrays: str = option(
        "auto",
        "Run small networks' losses on NumPy arrays where they match torch: auto or off.",
        one_of(("auto", "off")),
    )
    compile: bool = option(
        False, "Compile forward and backward passes with torch.compile; pays off in long runs."
    )
    compile_mode: str = option(
        "auto",
        "compile: mode of torch.compile; auto: reduce-overhead (CUDA graphs) for small "
        "networks on CUDA, else default.",
        one_of(
            ("auto", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
        ),
    )
    compile_backend: str = option(
        "inductor", "compile: backend of torch.compile, such as inductor, cudagraphs or eager."
    )
    compile_fullgraph: bool = option(
        True, "compile: refuse breaks in the graph, and run uncompiled instead; false allows them."
    )
    compile_dynamic: str = option(
        "auto",
        "compile: graphs for varying shapes: on, off (one for each), or auto (after the first"
        " change).",
        one_of(("auto", "on", "off")),
    )
    deterministic: str = option(
        "off",
        "Use deterministic algorithms only; where there is none, warn, or raise (strict).",
        one_of(("off", "warn", "strict")),
    )
    detect_anomaly: bool = option(
        False, "Enable autograd anomaly detection, which names the source of NaNs; slow."
    )
    num_threads: int = option(
        0, "Number of torch threads on the CPU; 0: automatic (1 for small networks).", at_least(0)
    )

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
