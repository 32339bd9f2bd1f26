"""Norms of gradients, however they are reckoned, and what clipping makes of them."""

from __future__ import annotations

import math

import numpy
import pytest
import torch
from torch import Tensor

from rlplug.optim.clipping import clip, measure, zero_nonfinite


def side_by_side(*numbers: float) -> tuple[list[Tensor], numpy.ndarray]:
    """Two gradients in one array, the first one with all but the last number."""
    flat = numpy.array(numbers, numpy.float32)
    return [torch.from_numpy(flat[:-1]), torch.from_numpy(flat[-1:])], flat


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_gradients_of_any_precision_are_measured_and_clipped(dtype: torch.dtype) -> None:
    gradients = [torch.tensor([3.0, 4.0], dtype=dtype), torch.tensor([12.0], dtype=dtype)]
    norms = measure(gradients)
    # NumPy has no such numbers: their norm stays a tensor, which nobody has to read.
    assert isinstance(norms.total, float) == (dtype in (torch.float32, torch.float64))
    assert float(norms.total) == 13.0
    assert float(clip(norms, 6.5, "global_norm")) == pytest.approx(6.5)
    assert torch.cat(gradients).tolist() == pytest.approx([1.5, 2.0, 6.0])


@pytest.mark.parametrize("by", ["global_norm", "norm"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tiny_gradients_shrink_as_torch_shrinks_them(by: str, dtype: torch.dtype) -> None:
    # clip_grad_norm_ scales by limit / (norm + 1e-6): here that is 1 / (3 + 1).
    gradients = [torch.tensor([3e-6], dtype=dtype)]
    clip(measure(gradients), 1e-6, by)
    assert gradients[0].tolist() == pytest.approx([0.75e-6], rel=1e-2)


@pytest.mark.parametrize("bad", [math.inf, math.nan, 1e38])
def test_a_norm_that_no_number_holds_is_not_finite_and_numbers_that_are_not_become_zero(
    bad: float,
) -> None:
    gradients, flat = side_by_side(1.0, -bad, bad)
    assert not math.isfinite(measure(gradients).total)
    assert not math.isfinite(measure(gradients, 2.0, flat).total)
    zero_nonfinite(gradients)
    kept = bad if math.isfinite(bad) else 0.0
    assert flat.tolist() == pytest.approx([1.0, -kept, kept])
