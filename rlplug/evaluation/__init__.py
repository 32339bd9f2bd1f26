"""Evaluation: greedy episodes in environments of their own, what they earn, and a video."""

from rlplug.evaluation.evaluator import Evaluator
from rlplug.evaluation.play import play
from rlplug.evaluation.scores import Played
from rlplug.evaluation.standing import Standing

__all__ = ["Evaluator", "Played", "Standing", "play"]
