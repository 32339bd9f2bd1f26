"""Checks of devices, number formats and compilation."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from rlplug.config.sections import ComputeSection
from rlplug.testing.bench import Bench, bench_of
from rlplug.testing.comparing import largest_difference
from rlplug.testing.report import CheckFailed, DoesNotApply, place
from rlplug.testing.subject import Subject

__all__ = [
    "check_compiled_equals_uncompiled",
    "check_learns_on_a_gpu",
    "check_learns_with_float64",
    "check_tensors_are_parameters_or_buffers",
]


def check_tensors_are_parameters_or_buffers(subject: Subject) -> None:
    """What is kept in plain attributes is neither saved nor moved to another device."""
    bench = bench_of(subject)
    bench.live(3)
    for root in _parts(bench):
        known = {_memory(one) for one in (*root.parameters(), *root.buffers())}
        for owner, name, tensor in _loose(root):
            if _memory(tensor) not in known:
                raise CheckFailed(
                    "tensors of modules that are parameters or buffers",
                    f"{type(owner).__name__}.{name} is a plain tensor: it stays behind when "
                    "the module is moved, and is not saved",
                    place(type(owner), "__init__") + f': self.register_buffer("{name}", …)',
                )


def check_learns_with_float64(subject: Subject) -> None:
    """With `compute.dtype = "float64"` it builds, acts and learns, all weights in float64."""
    bench = bench_of(subject, compute=ComputeSection(device="cpu", dtype="float64"))
    bench.live(3)
    for name, param in bench.parameters().items():
        if param.is_floating_point() and param.dtype != torch.float64:
            raise CheckFailed("weights in float64", f"{name!r} is {param.dtype}", _made(subject))


def check_learns_on_a_gpu(subject: Subject) -> None:
    """On a CUDA device it learns what it learns on the CPU, up to rounding."""
    if not torch.cuda.is_available():
        raise DoesNotApply("there is no CUDA device here")
    here = bench_of(subject)
    there = bench_of(subject, compute=ComputeSection(device="cuda", tf32=False))
    for _ in range(3):
        batch = here.play()
        here.update(batch)
        there.update(batch)
    there.live(1)
    _check_close(subject, here, there, "on the CPU and on a GPU")


def check_compiled_equals_uncompiled(subject: Subject) -> None:
    """With `compute.compile` it learns the same, or the core says that it runs uncompiled."""
    here = bench_of(subject)
    if not here.learner.optimizers.of("default"):
        raise DoesNotApply("nothing is learned by gradients")
    there = bench_of(subject, compute=ComputeSection(device="cpu", compile=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(4):
            batch = here.play()
            here.update(batch)
            there.update(batch)
    _check_close(subject, here, there, "compiled and uncompiled")


def _check_close(subject: Subject, here: Bench, there: Bench, what: str) -> None:
    path, apart = largest_difference(here.weights(), there.weights())
    if apart > 1e-3:
        raise CheckFailed(
            f"the same weights {what}",
            f"{path} differs by {apart:.1%} of its size",
            place(subject.kind, "compute_loss_for_module", "additional_update"),
        )


def _parts(bench: Bench) -> Iterator[nn.Module]:
    for member in bench.learner.members.values():
        yield from member.parts()


def _loose(root: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor]]:
    for part in root.modules():
        for name, value in vars(part).items():
            if name in ("_parameters", "_buffers", "_modules"):
                continue
            held = value.values() if isinstance(value, dict) else value
            several = held if isinstance(value, list | tuple | dict) else (value,)
            for one in several:
                if isinstance(one, Tensor):
                    yield part, name, one


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _made(subject: Subject) -> str:
    return place(subject.kind, "build", "build_extra")
