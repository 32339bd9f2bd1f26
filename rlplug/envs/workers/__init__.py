"""Environments in worker processes, which share memory with the sampler."""

from rlplug.envs.workers.vector import Infos, WorkerVector

__all__ = ["Infos", "WorkerVector"]
