"""TensorBoard event files for rlplug."""

from rlplug_tensorboard.addon import TensorBoard

__all__ = ["TensorBoard"]
