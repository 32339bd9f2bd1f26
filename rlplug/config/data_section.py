"""The options of `[data]`: logs to learn from, and which of their columns mean what."""

from __future__ import annotations

from typing import Any

import attrs

from rlplug.config.option import at_least, changed, no_effect, not_empty, one_of, option, refuse

__all__ = ["COLUMN_OPTIONS", "DataSection"]


def _columns(pattern: str, what: str) -> Any:
    return option(
        pattern, what, not_empty, lambda value: None if value.strip() == value else "has spaces"
    )


@attrs.frozen(kw_only=True)
class DataSection:
    """Logged data to learn from, and the columns to read (names, or patterns with *)."""

    files: tuple[str, ...] = option(
        (),
        "Files, folders or patterns of logged rows to learn from, as in --data; empty: learn "
        "in an environment.",
    )
    format: str = option(
        "auto",
        "parquet, csv, npz; obd: a folder of the Open Bandit Dataset; minari: a data set id; "
        "auto: by the name of the files.",
        one_of(("auto", "parquet", "csv", "npz", "obd", "minari")),
    )
    num_arms: int = option(0, "Number of arms; 0: as in the log.", at_least(0))
    rows_per_update: int = option(
        8192, "Rows per update of algorithms that learn from each row once.", at_least(1)
    )
    shuffle_rows: int = option(
        100_000,
        "Rows held in memory that minibatches are drawn from without replacement; 1: in "
        "order. For algorithms that learn by minibatches.",
        at_least(1),
    )
    offline_evaluation: str = option(
        "off",
        "Have a frozen copy of the policy act on each batch before it is learned (metrics "
        "ope/…). accepted: only rows that it agrees with are learned, weighted by 1 / "
        "propensity; all: all rows are learned as they are.",
        one_of(("off", "accepted", "all")),
    )
    max_importance_weight: float = option(
        0.0, "Clip the weights 1 / propensity to this; 0 disables.", at_least(0)
    )
    eval_model_update_critical_weight: float = option(
        0.0,
        "Renew the frozen copy after this much weight of data (rows, unless they are "
        "weighted); 0: for each batch.",
        at_least(0),
    )
    assume_uniform: bool = option(
        False,
        "Take the actions of a log without propensities as chosen uniformly among those present.",
    )
    context: str = _columns("context*", "Features of the context (the observation).")
    arms: str = _columns(
        "arms*", "Features of all arms: a column of lists per arm, or numbers named …_ARM_FEATURE."
    )
    action_mask: str = _columns("action_mask*", "Which arms were present, one value per arm.")
    action: str = _columns("action", "The arm chosen, from 0; or the values of a continuous one.")
    reward: str = _columns("reward", "Its reward.")
    propensity: str = _columns("propensity", "Probability with which it was chosen.")
    action_log_prob: str = _columns("action_log_prob", "The logarithm of that probability.")
    propensities: str = _columns("propensities*", "Probabilities of all arms.")
    rewards: str = _columns("rewards*", "Rewards of all arms, where they are known.")
    weight: str = _columns("weight", "How many rows each row stands for.")
    label: str = _columns("label", "Regression target, if it is not the reward.")
    position: str = _columns("position", "Place at which the arm was shown, from 0.")
    episode: str = _columns("episode", "Number of the episode; rows of one are consecutive.")
    terminated: str = _columns("terminated", "Whether the step ended its episode.")
    truncated: str = _columns("truncated", "Whether the episode was cut off after the step.")
    next_context: str = _columns("next_context*", "Observation after the step.")

    def __attrs_post_init__(self) -> None:
        if self.offline_evaluation == "off":
            idle = changed(self, ("max_importance_weight", "eval_model_update_critical_weight"))
            refuse(no_effect(idle, "with offline_evaluation = 'off'"))

    @property
    def is_used(self) -> bool:
        """Whether the run learns from logs."""
        return bool(self.files)


_NAMES = [field.name for field in attrs.fields(DataSection)]
COLUMN_OPTIONS = tuple(_NAMES[_NAMES.index("context") :])
"""The options that name columns."""
