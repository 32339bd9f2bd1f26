"""Norms of gradients, however they are reckoned, and what clipping makes of them."""

from __future__ import annotations

import math

import numpy
import pytest
import torch
from torch import Tensor

from rlplug.optim.clipping import clip, measure
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
