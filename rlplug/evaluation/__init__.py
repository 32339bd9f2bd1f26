"""Evaluation: greedy episodes in separate environments, their scores, the best one, a video."""

from rlplug.evaluation.best_tracker import BestTracker
from rlplug.evaluation.evaluator import Evaluator
from rlplug.evaluation.scores import EvaluationResult

__all__ = ["BestTracker", "EvaluationResult", "Evaluator"]
