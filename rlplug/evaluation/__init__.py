"""Evaluation: greedy episodes in separate environments, their scores, the best one, a video."""

from rlplug.evaluation.evaluator import Evaluator
from rlplug.evaluation.scores import BestTracker, EvaluationResult

__all__ = ["BestTracker", "EvaluationResult", "Evaluator"]
