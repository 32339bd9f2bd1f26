"""Samplers: they step environments with the modules and yield experience."""

from rlplug.sampling.stream import StreamSampler

__all__ = ["StreamSampler"]
