"""Norms of gradients, however they are reckoned, and what clipping makes of them."""

from __future__ import annotations

import math

import numpy
import pytest
import torch
from torch import Tensor

from rlplug.optim.clipping import clip, measure, zero_nonfinite
from rlplug.optim.no_grad import OptimizerStep


def side_by_side(numbers: list[float]) -> tuple[list[Tensor], numpy.ndarray]:
    """Two gradients in one array, the first one with all but the last number."""
    flat = numpy.array(numbers, numpy.float32)
    return [torch.from_numpy(flat[:-1]), torch.from_numpy(flat[-1:])], flat


@pytest.mark.parametrize("together", [False, True], ids=["apart", "together"])
def test_gradients_of_3_4_and_12_have_the_norm_13_and_shrink_to_the_limit(together: bool) -> None:
    gradients, flat = side_by_side([3.0, 4.0, 12.0])
    norms = measure(gradients, 2.0, flat if together else None)
    assert norms.total == 13.0
    assert norms.each.tolist() == [5.0, 12.0]
    assert clip(gradients, norms, 26.0, "global_norm") == 13.0
    assert flat.tolist() == [3.0, 4.0, 12.0]
    assert clip(gradients, norms, 6.5, "global_norm") == pytest.approx(6.5)
    assert torch.cat(gradients).tolist() == pytest.approx([1.5, 2.0, 6.0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_gradients_of_any_precision_are_measured_and_clipped(dtype: torch.dtype) -> None:
    gradients = [torch.tensor([3.0, 4.0], dtype=dtype), torch.tensor([12.0], dtype=dtype)]
    norms = measure(gradients)
    # NumPy has no such numbers: their norm stays a tensor, which nobody has to read.
    assert isinstance(norms.total, float) == (dtype in (torch.float32, torch.float64))
    assert float(norms.total) == 13.0
    assert float(clip(gradients, norms, 26.0, "global_norm")) == 13.0
    assert torch.cat(gradients).tolist() == [3.0, 4.0, 12.0]
    assert float(clip(gradients, norms, 6.5, "global_norm")) == pytest.approx(6.5)
    assert torch.cat(gradients).tolist() == pytest.approx([1.5, 2.0, 6.0])


@pytest.mark.parametrize("by", ["global_norm", "norm"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tiny_gradients_shrink_as_torch_shrinks_them(by: str, dtype: torch.dtype) -> None:
    # clip_grad_norm_ scales by limit / (norm + 1e-6): here that is 1 / (3 + 1).
    gradients = [torch.tensor([3e-6], dtype=dtype)]
    clip(gradients, measure(gradients), 1e-6, by)
    assert gradients[0].tolist() == pytest.approx([0.75e-6], rel=1e-2)


def test_other_norms_than_the_second_are_those_of_all_numbers() -> None:
    gradients, flat = side_by_side([3.0, -4.0, 12.0])
    norms = measure(gradients, 1.0, flat)
    assert (float(norms.total), norms.each.tolist()) == (19.0, [7.0, 12.0])
    assert float(clip(gradients, norms, 9.5, "global_norm")) == pytest.approx(9.5)
    assert flat.tolist() == pytest.approx([1.5, -2.0, 6.0])
    assert float(measure(gradients, math.inf).total) == pytest.approx(6.0)


def test_numbers_that_are_not_finite_become_zero() -> None:
    gradients = [torch.tensor([math.nan, 1.0]), torch.tensor([math.inf, -math.inf])]
    zero_nonfinite(gradients)
    assert [one.tolist() for one in gradients] == [[0.0, 1.0], [0.0, 0.0]]


@pytest.mark.parametrize("bad", [math.inf, math.nan, 1e38])
def test_a_norm_that_no_number_holds_is_not_finite_and_warns_nobody(bad: float) -> None:
    gradients, flat = side_by_side([1.0, bad, bad])
    assert not math.isfinite(measure(gradients).total)
    assert not math.isfinite(measure(gradients, 2.0, flat).total)


def test_what_is_too_small_to_matter_is_zero_inside_and_only_there() -> None:
    small = numpy.full(4, 1e-40, numpy.float32)
    one = numpy.float32(1.0)
    with OptimizerStep():
        assert not (small * one).any()
    assert (small * one).all()


def test_who_flushes_anyway_goes_on_doing_so() -> None:
    small = numpy.full(4, 1e-40, numpy.float32)
    torch.set_flush_denormal(True)
    try:
        with OptimizerStep():
            pass
        assert not (small * numpy.float32(1.0)).any()
    finally:
        torch.set_flush_denormal(False)
