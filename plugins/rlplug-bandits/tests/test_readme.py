"""README says what is so: its tables are the options, its example runs as written."""

from __future__ import annotations

from typing import Any

import pytest
from rlplug_bandits import (
    EpsilonGreedyConfig,
    MetricUCBConfig,
    SoftmaxConfig,
    ThompsonConfig,
    UCB1Config,
)


@pytest.mark.parametrize(
    ("title", "config"),
    [
        ("UCB1", UCB1Config),
        ("MetricUCB", MetricUCBConfig),
        ("Thompson sampling", ThompsonConfig),
        ("Epsilon-greedy", EpsilonGreedyConfig),
        ("Softmax", SoftmaxConfig),
    ],
)
def test_the_table_lists_every_option_with_its_default_and_help(
    title: str, config: type[Any], readme: Any
) -> None:
    assert readme.rows(title) == readme.option_rows(config)


def test_the_example_prints_what_it_says(example: tuple[str, str]) -> None:
    printed, promised = example
    assert printed == promised
