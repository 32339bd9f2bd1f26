"""Samplers: they step environments with a module and return experience."""

from rlplug.sampling.making import make_sampler, recorded
from rlplug.sampling.tensors import TensorSampler
from rlplug.sampling.vector import VectorSampler

__all__ = ["TensorSampler", "VectorSampler", "make_sampler", "recorded"]
