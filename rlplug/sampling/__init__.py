"""Samplers: they step environments with the modules and yield experience."""

from rlplug.sampling.vector import VectorSampler

__all__ = ["VectorSampler"]
