"""Samplers: they step environments with a module and return experience."""

from rlplug.sampling.making import make_sampler, recorded
from rlplug.sampling.vector import VectorSampler

__all__ = ["VectorSampler", "make_sampler", "recorded"]
