"""Checks of options that keep policies near those that collected the experience."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import torch
from torch import Tensor

from rlplug.testing.harness import Harness, make_harness
from rlplug.testing.report import CheckFailed, DoesNotApply, location
from rlplug.testing.subject import Subject

__all__ = ["check_kl_coefficient_aims_at_its_target", "check_limits_keep_policies_near"]

_LIMITS: Mapping[str, tuple[float, float]] = {
    "clip_range": (0.001, 0.5),
    "target_kl": (1e-6, 10.0),
    "kl_coef": (30.0, 0.01),
    "clip_range_vf": (0.001, 100.0),
}
"""Options → a strict value, and one by which policies may change much."""
_FORMULAS: Mapping[str, str] = {
    "clip_range": "the mean of −min(ratio · A, clip(ratio) · A)",
    "target_kl": "Loss(stop=…) where the KL divergence is above it",
    "kl_coef": "kl_coef · KL is added to the loss",
    "clip_range_vf": "the mean of max((V − R)², (clip(V) − R)²)",
}
_OF_VALUES = frozenset({"clip_range_vf"})
"""Those that limit how much values change."""
_VALUES = ("values", "q_values")


def check_limits_keep_policies_near(subject: Subject) -> None:
    """Strict `clip_range`, `target_kl`, … change policies, or values, less than loose ones."""
    applies = False
    for option, (strict, loose) in _LIMITS.items():
        if not _has(subject, option, strict) or not subject.accepts({option: loose}):
            continue
        near, far = (_change(subject, option, one) for one in (strict, loose))
        if near is None or far is None:
            continue
        applies = True
        if not near < 0.9 * far:
            raise CheckFailed(
                f"{'values that change' if option in _OF_VALUES else 'a policy that changes'} less "
                f"with {option} = {strict:g} than with {loose:g}",
                f"outputs change by {near:.3g} and {far:.3g}",
                f"{location(subject.kind, 'compute_loss_for_module')}: {_FORMULAS[option]}",
            )
    if not applies:
        raise DoesNotApply(f"it has none of {', '.join(_LIMITS)}, or gives no outputs")


def check_kl_coefficient_aims_at_its_target(subject: Subject) -> None:
    """An adaptive `kl_coef` rises where the KL is above `kl_target`, and falls below it."""
    option = {"kl_coef": 0.2}
    if not _has(subject, *next(iter(option.items()))) or not _has(subject, "kl_target", 1e-9):
        raise DoesNotApply("it has no options kl_coef and kl_target")
    found = []
    for target in (1e-9, 1e3):
        harness = make_harness(subject, config=subject.changed({**option, "kl_target": target}))
        results = harness.train_as_a_run(4)
        metric = next(iter(results[-1].values())).get("kl_coef")
        if metric is None:
            raise DoesNotApply("it reports no metric kl_coef")
        found.append(float(metric))
    if not found[0] > 0.2 > found[1]:
        raise CheckFailed(
            "a kl_coef that rises from 0.2 for kl_target = 1e-9, and falls for 1,000",
            f"{found[0]:.3g} and {found[1]:.3g} after four updates",
            location(subject.kind, "additional_update"),
        )


def _has(subject: Subject, option: str, value: float) -> bool:
    known = {field.name for field in attrs.fields(subject.kind.Config)}
    return option in known and subject.accepts({option: value})


def _change(subject: Subject, option: str, value: float) -> float | None:
    """How much values, or all other outputs, change in two updates; None if there are none."""
    case = subject.case_for({option: value})
    harness = make_harness(subject, case, config=subject.changed({option: value}))
    batch = harness.collect(4)["default"].to(harness.learner.device, harness.learner.dtype)
    before = _outputs(harness, batch, option in _OF_VALUES)
    if not before:
        return None
    harness.train_as_a_run(2)
    after = _outputs(harness, batch, option in _OF_VALUES)
    return sum(float((after[name] - one).abs().mean()) for name, one in before.items())


@torch.no_grad()
def _outputs(harness: Harness, batch: Any, of_values: bool) -> dict[str, Tensor]:
    outputs = harness.module.forward_train(batch)
    return {
        name: value.double()
        for name, value in outputs.items()
        if (name in _VALUES) is of_values
        and isinstance(value, Tensor)
        and value.is_floating_point()
    }
