"""Off-policy estimates: what a policy would have earned, from the log of another one."""

from rlplug.ope.bootstrap import Interval, bootstrap, intervals
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
from rlplug.ope.judge import Choices, Judgement, effective_sample_size, judge
from rlplug.ope.reward_model import RewardModel, mrdr_weights

__all__ = [
    "Choices",
    "Interval",
    "Judgement",
    "RewardModel",
    "Terms",
    "bootstrap",
    "dm",
    "dr",
    "effective_sample_size",
    "importance_weights",
    "intervals",
    "ips",
    "judge",
    "mrdr_weights",
    "replay",
    "sndr",
    "snips",
    "switch_dr",
]
