"""Environments in worker processes, which share memory with the sampler."""

from rlplug.envs.workers.vector import WorkerVector

__all__ = ["WorkerVector"]
