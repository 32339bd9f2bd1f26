"""What logs and policies chose, row by row: golden numbers of small logs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy
import pyarrow
import pytest
from gymnasium import spaces
from pyarrow import parquet

from rlplug.errors import RequestError
from rlplug.logs import Log
from rlplug.logs.recording import spaces_as_metadata
from rlplug.ope.choices import Policies, bandit_choices, episode_choices
from tests.log_files import opened


@attrs.frozen
class Fixed:
    """A policy with the same probabilities everywhere, and log-densities of twice the action."""

    shares: tuple[float, ...] = ()
    has_memory = False

    def probabilities(self, observations: Any, greedy: bool, action_mask: Any = None) -> Any:
        found = numpy.tile(self.shares, (len(observations), 1))
        return numpy.eye(len(self.shares))[found.argmax(1)] if greedy else found

    def log_prob(self, observations: Any, actions: Any, action_mask: Any = None) -> Any:
        return [2.0 * float(one.sum()) for one in actions]


def policies(
    target: tuple[float, ...] = (), by: tuple[float, ...] | None = None, num_arms: int = 0
) -> Policies:
    """A fixed policy, and what chose the actions: another one, or what the log says."""
    logged_by = None if by is None else Fixed(by)
    return Policies(
        target=Fixed(target),  # type: ignore[arg-type]
        explores=True,
        num_arms=num_arms or len(by or ()),
        logged_by=logged_by,  # type: ignore[arg-type]
    )


def log_of(
    folder: Path, table: Mapping[str, Any], spaces_of: tuple[Any, Any] | None = None, **options: Any
) -> Log:
    """A log of these columns, and of an environment with these spaces."""
    found = pyarrow.table(dict(table))
    if spaces_of is not None:
        found = found.replace_schema_metadata(spaces_as_metadata(*spaces_of))
    parquet.write_table(found, folder / "log.parquet")
    return opened(folder / "log.parquet", **options)


def ignore(rows: int) -> None:
    """Progress that nobody looks at."""


CHOICES = {"context": [[0.0], [1.0], [2.0], [3.0]], "action": [0, 1, 0, 1], "reward": [1.0] * 4}


def test_a_policy_without_what_it_is_asked_for_has_no_propensities(tmp_path: Path) -> None:
    (rows,) = log_of(tmp_path, CHOICES, num_arms=2).read(0, 10)
    told = policies(by=(0.25, 0.75)).log_propensities(rows)
    assert numpy.exp(told) == pytest.approx([0.25, 0.75, 0.25, 0.75])
    with pytest.raises(RequestError) as raised:
        policies(by=(1.0, 0.0)).log_propensities(rows.part(1, 4))
    assert str(raised.value) == (
        "the policy of --logged-by never takes the action of row 1.\n"
        "  try: the run that was recorded, or one of bc that was trained on this log"
    )


def test_densities_of_continuous_actions_may_be_those_of_a_policy(tmp_path: Path) -> None:
    table = {**CHOICES, "action": [0.5, -1.0, 2.0, 0.25], "episode": [0, 0, 1, 1]}
    boxes = spaces.Box(-9, 9, (1,)), spaces.Box(-3, 3, (1,))
    log = log_of(tmp_path, table, boxes)
    (rows,) = log.read(0, 10)
    assert policies(by=()).log_propensities(rows).tolist() == [1.0, -2.0, 4.0, 0.5]
    assert policies(by=()).log_propensities(rows).dtype == numpy.float64
    # Without a column for ends, episodes end where their numbers do.
    found, said = episode_choices(policies(by=()), log, 1.0, ignore)
    assert found.log_ratios.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert (found.steps, said, found.q_policy) == (4, [], None)


def test_what_a_log_never_shows_and_weights_are_those_of_its_columns(tmp_path: Path) -> None:
    shown = [[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.2, 0.4, 0.4], [0.0, 1.0, 0.0]]
    table = {**CHOICES, "action": [0, 1, 2, 1], "propensities": shown, "weight": [1, 2, 3, 4]}
    log = log_of(tmp_path, table)
    judged = policies((0.25, 0.125, 0.625), num_arms=3)
    found = bandit_choices(judged, log, ignore)
    assert found.unseen.tolist() == [0.625, 0.625, 0.0, 0.875]
    assert found.propensities == pytest.approx([0.5, 0.5, 0.4, 1.0])
    assert found.weights is not None
    assert found.weights.tolist() == [1.0, 2.0, 3.0, 4.0]
    # What the log never chose counts once, even if it never shows it either.
    log = log_of(tmp_path, {**table, "action": [0, 1, 1, 1]})
    never = bandit_choices(judged, log, ignore)
    assert never.unseen.tolist() == [0.625, 0.625, 0.625, 0.875]
    log = log_of(tmp_path, {**table, "weight": [1] * 4})
    even = bandit_choices(judged, log, ignore)
    assert even.influence is not None
    assert found.influence is not None
    assert not numpy.allclose(even.influence, found.influence)


TWO_ARMS = policies((0.25, 0.75), num_arms=2)

STEPS = {
    "context": [5, 6, 7, 5, 7, 6],
    "action": [0, 1, 1, 0, 1, 0],
    "reward": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
    "propensity": [0.5] * 6,
    "terminated": [False, False, True, False, False, True],
}


def test_numbered_states_are_told_apart_by_a_model(tmp_path: Path) -> None:
    log = log_of(tmp_path, STEPS, (spaces.Discrete(3, start=5), spaces.Discrete(2)))
    found, _ = episode_choices(TWO_ARMS, log, 0.9, ignore)
    hot = numpy.eye(3)[numpy.array(STEPS["context"]) - 5].tolist()
    boxes = spaces.Box(0, 1, (3,)), spaces.Discrete(2)
    log = log_of(tmp_path, {**STEPS, "context": hot}, boxes)
    other, _ = episode_choices(TWO_ARMS, log, 0.9, ignore)
    assert found.q_logged is not None
    assert found.q_policy is not None
    assert numpy.array_equal(found.q_logged, other.q_logged)  # type: ignore[arg-type]
    assert numpy.array_equal(found.q_policy, other.q_policy)  # type: ignore[arg-type]
