"""Sampling: a collector steps environments with the modules of a run and yields experience."""

from rlplug.sampling.collector import Collector
from rlplug.sampling.making import make_collector, record_into

__all__ = ["Collector", "make_collector", "record_into"]
