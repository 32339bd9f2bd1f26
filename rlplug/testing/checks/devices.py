"""Checks of devices, dtypes and compilation."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from rlplug.config.sections import ComputeSection
from rlplug.testing.comparison import leaves_of, relative_difference, require_close
from rlplug.testing.harness import Harness, make_harness
from rlplug.testing.report import CheckFailed, DoesNotApply, location
from rlplug.testing.subject import Subject

__all__ = [
    "check_compiled_equals_uncompiled",
    "check_learns_on_a_gpu",
    "check_learns_with_float64",
    "check_tensors_are_parameters_or_buffers",
]


def check_tensors_are_parameters_or_buffers(subject: Subject) -> None:
    """No module keeps a plain tensor: it would be neither saved nor moved to another device."""
    harness = make_harness(subject)
    harness.train(3)
    for member in harness.learner.members.values():
        for root in member.parts():
            _check_plain_tensors(root)


def check_learns_with_float64(subject: Subject) -> None:
    """With `compute.dtype = "float64"` it builds, acts and learns, all weights in float64."""
    harness = make_harness(
        subject, compute=ComputeSection(device="cpu", dtype="float64", arrays="off")
    )
    harness.train(3)
    for name, param in harness.parameters().items():
        if param.is_floating_point() and param.dtype != torch.float64:
            raise CheckFailed(
                "weights in float64",
                f"{name!r} is {param.dtype}",
                location(subject.kind, "build", "build_extra"),
            )


def check_learns_on_a_gpu(subject: Subject) -> None:
    """On a CUDA device it learns the same weights as on the CPU, up to rounding."""
    if not torch.cuda.is_available():
        raise DoesNotApply("there is no CUDA device here")
    cpu, drawn = make_harness(subject), make_harness(subject)
    gpu = make_harness(subject, compute=ComputeSection(device="cuda", tf32=False))
    for number in range(3):
        batches = cpu.collect()
        drawn.reseed(number)
        for one in (cpu, drawn, gpu):
            one.update(batches)
    # A GPU draws other random numbers: what it learns may differ as much as with another seed.
    weights, others = gpu.weights(), dict(leaves_of(drawn.weights()))
    found = dict(leaves_of(weights))
    for path, value in leaves_of(cpu.weights()):
        allowed = 1e-2 + 3 * relative_difference(value, others[path])
        error = relative_difference(value, found[path])
        if not error <= allowed:
            raise CheckFailed(
                "the same weights on the CPU and on a GPU",
                f"{path} differs by {error:.1%} of its size",
                location(subject.kind, "compute_loss_for_module", "additional_update"),
            )
    gpu.train(1)
    for path, value in leaves_of(gpu.weights()):
        if isinstance(value, Tensor) and not bool(value.isfinite().all()):
            raise CheckFailed(
                "finite weights on a GPU",
                f"{path} has NaN or infinite numbers",
                location(subject.kind, "compute_loss_for_module", "additional_update"),
            )


def check_compiled_equals_uncompiled(subject: Subject) -> None:
    """With `compute.compile` it learns the same, or the core says that it runs uncompiled."""
    plain = make_harness(subject)
    if not plain.learner.optimizers.of("default"):
        raise DoesNotApply("nothing is learned by gradients")
    compiled = make_harness(subject, compute=ComputeSection(device="cpu", compile=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _train_both(plain, compiled, updates=4)
    _check_close(subject, plain, compiled, "compiled and uncompiled")


def _train_both(one: Harness, other: Harness, *, updates: int) -> None:
    for _ in range(updates):
        batches = one.collect()
        one.update(batches)
        other.update(batches)


def _check_close(subject: Subject, one: Harness, other: Harness, how: str) -> None:
    where = location(subject.kind, "compute_loss_for_module", "additional_update")
    require_close(one.weights(), other.weights(), 1e-3, f"the same weights {how}", where)


def _check_plain_tensors(root: nn.Module) -> None:
    known = {_address(one) for one in (*root.parameters(), *root.buffers())}
    for owner, name, tensor in _plain_tensors(root):
        if _address(tensor) not in known:
            raise CheckFailed(
                "tensors of modules that are parameters or buffers",
                f"{type(owner).__name__}.{name} is a plain tensor: it stays behind when the "
                "module is moved, and is not saved",
                location(type(owner), "__init__") + f': self.register_buffer("{name}", …)',
            )


def _plain_tensors(root: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor]]:
    """The tensors in attributes, lists, tuples and dicts of all submodules."""
    for part in root.modules():
        for name, value in vars(part).items():
            if name in ("_parameters", "_buffers", "_modules"):
                continue
            held = value.values() if isinstance(value, dict) else value
            several = held if isinstance(value, list | tuple | dict) else (value,)
            for one in several:
                if isinstance(one, Tensor):
                    yield part, name, one


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
