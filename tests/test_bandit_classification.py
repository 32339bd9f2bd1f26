"""`ClassificationBandit-v0`: a table of labelled rows as a bandit."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium
import numpy
import pytest

from rlplug.bandits import Table
from rlplug.errors import ConfigError, RequestError


def three_rows() -> Table:
    """Row i holds the number i; the labels are a, b, a."""
    return Table.of([[0.0], [1.0], [2.0]], ["a", "b", "a"], name="three rows")


def bandits(n: int, **options: Any) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    return gymnasium.make_vec("rlplug.bandits:ClassificationBandit-v0", num_envs=n, **options)


def rows_seen(n: int, steps: int, seed: int) -> list[float]:
    envs = bandits(n, table=three_rows(), preprocess="none")
    seen = [envs.reset(seed=seed)[0]]
    seen += [envs.step(numpy.zeros(n, dtype=int))[0] for _ in range(steps - 1)]
    return [float(value) for value in numpy.concatenate(seen).ravel()]


def test_the_right_label_pays_1_and_any_other_nothing() -> None:
    envs = bandits(3, table=three_rows(), preprocess="none")
    seen, _ = envs.reset(seed=1)
    right = (seen[:, 0] == 1.0).astype(int)
    seen, rewards, _, _, infos = envs.step(right)
    assert rewards.tolist() == [1.0, 1.0, 1.0]
    assert infos["regret"].tolist() == [0.0, 0.0, 0.0]
    wrong = 1 - (seen[:, 0] == 1.0).astype(int)
    _, rewards, _, _, infos = envs.step(wrong)
    assert rewards.tolist() == [0.0, 0.0, 0.0]
    assert infos["regret"].tolist() == [1.0, 1.0, 1.0]
    assert infos["best_reward"].tolist() == [1.0, 1.0, 1.0]


def test_the_observation_space_has_the_bounds_of_the_columns_and_no_column_of_width_0() -> None:
    table = Table.of([[0.0, 5.0, -2.0], [1.5, 5.0, -3.0]], ["a", "b"], name="two rows")
    box = bandits(1, table=table, preprocess="none").single_observation_space
    assert (box.low.tolist(), box.high.tolist()) == ([0.0, 5.0, -3.0], [1.5, 6.0, -2.0])


@pytest.mark.parametrize("n", [1, 2, 7])
def test_every_row_comes_once_per_pass_whatever_the_number_of_environments(n: int) -> None:
    seen = rows_seen(n, steps=3 * 30, seed=2)
    passes = [seen[start : start + 3] for start in range(0, len(seen), 3)]
    assert all(sorted(one_pass) == [0.0, 1.0, 2.0] for one_pass in passes)
    assert len({tuple(one_pass) for one_pass in passes}) == 6


def test_digits_has_ten_arms_and_65_features_of_norm_1() -> None:
    envs = bandits(1797)
    seen, _ = envs.reset(seed=0)
    assert seen.shape == (1797, 65)
    assert numpy.linalg.norm(seen, axis=1) == pytest.approx(numpy.ones(1797))
    assert envs.action_space.nvec[0] == 10  # type: ignore[attr-defined] # a MultiDiscrete
    rewards = envs.step(numpy.full(1797, 3))[1]
    assert rewards.sum() == 183  # digits has 183 threes, and one step of 1,797 is one pass


def test_a_set_without_scikit_learn_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(RequestError, match=r'pip install "rlplug\[sklearn\]"'):
        bandits(1, table="digits")


def test_wrong_options_of_the_table_are_refused() -> None:
    with pytest.raises(ConfigError, match="must be one of 'unit', 'standard', 'none'"):
        bandits(1, preprocess="unitt")
    with pytest.raises(ConfigError, match="must be a file, one of breast_cancer, digits"):
        bandits(1, table=3)
    with pytest.raises(RequestError, match="did you mean 'digits'"):
        bandits(1, table="digit")
