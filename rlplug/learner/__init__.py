"""The learner: owns modules, extras and optimizers, and turns a batch into one update."""

from rlplug.learner.learner import Learner

__all__ = ["Learner"]
