"""Off-policy estimates: what a policy would have earned, from the log of another one."""

from rlplug.ope.bootstrap import Interval, bootstrap, intervals
from rlplug.ope.episodes import (
    cumulative_log_weights,
    per_decision_is,
    per_decision_wis,
    sequential_dr,
    trajectory_is,
    trajectory_wis,
    weighted_dr,
)
from rlplug.ope.estimators import (
    Terms,
    dm,
    dr,
    importance_weights,
    ips,
    replay,
    sndr,
    snips,
    switch_dr,
)
from rlplug.ope.judge import Choices, EpisodeChoices, Judgement, effective_sample_size, judge
from rlplug.ope.q_model import fit_q, state_features
from rlplug.ope.reward_model import RewardModel, mrdr_weights

__all__ = [
    "Choices",
    "EpisodeChoices",
    "Interval",
    "Judgement",
    "RewardModel",
    "Terms",
    "bootstrap",
    "cumulative_log_weights",
    "dm",
    "dr",
    "effective_sample_size",
    "fit_q",
    "importance_weights",
    "intervals",
    "ips",
    "judge",
    "mrdr_weights",
    "per_decision_is",
    "per_decision_wis",
    "replay",
    "sequential_dr",
    "sndr",
    "snips",
    "state_features",
    "switch_dr",
    "trajectory_is",
    "trajectory_wis",
    "weighted_dr",
]
