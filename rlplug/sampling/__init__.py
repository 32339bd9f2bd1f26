"""Samplers: step environments with a module and return experience."""

from rlplug.sampling.vector import VectorSampler

__all__ = ["VectorSampler"]
