"""Bandit environments and their problems, tables of labelled rows, and bandit batches."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import attrs
import gymnasium
import numpy
import pyarrow
import pytest
import torch
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow.parquet import write_table

from rlplug.bandits import (
    BanditBatch,
    BanditEnv,
    BanditVectorEnv,
    FeatureBandit,
    LinearBandit,
    MultiArmedBandit,
    Rounds,
    Table,
    load_table,
)
from rlplug.bandits.synthetic import DriftingParameters
from rlplug.batch import Batch
from rlplug.errors import ConfigError, RequestError

# -- bandit environments ---------------------------------------------------------------------------


IDS = ("LinearBandit-v0", "FeatureBandit-v0", "ClassificationBandit-v0")


def single(name: str, **options: Any) -> BanditEnv:
    env = gymnasium.make(f"rlplug.bandits:{name}", **options).unwrapped
    assert isinstance(env, BanditEnv)
    return env


def vector(name: str, n: int, **options: Any) -> BanditVectorEnv:
    envs = gymnasium.make_vec(f"rlplug.bandits:{name}", num_envs=n, **options)
    assert isinstance(envs, BanditVectorEnv)
    return envs


def flat(observations: Any) -> numpy.ndarray[Any, Any]:
    """Observations as one row of numbers per context."""
    parts = observations.values() if isinstance(observations, dict) else [observations]
    return numpy.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)


def played(envs: BanditVectorEnv, steps: int) -> numpy.ndarray[Any, Any]:
    """All numbers that steps with arms 0, 1, 0, 1 … return."""
    numbers = []
    for step in range(steps):
        seen, rewards, _, _, infos = envs.step(numpy.full(envs.num_envs, step % 2))
        numbers += [flat(seen).ravel(), rewards, infos["regret"]]
    return numpy.concatenate(numbers)


@pytest.mark.parametrize("name", [*IDS, "MultiArmedBandit-v0", "RingsBandit-v0"])
def test_the_single_form_passes_gymnasiums_check_without_a_warning(name: str) -> None:
    check_env(single(name))


@pytest.mark.parametrize("name", IDS)
def test_every_step_ends_all_episodes_and_brings_the_next_contexts(name: str) -> None:
    envs = vector(name, 500)
    before, _ = envs.reset(seed=1)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    for arm in (0, 1):
        after, rewards, terminated, truncated, infos = envs.step(numpy.full(500, arm))
        assert envs.observation_space.contains(before)
        assert (flat(before) != flat(after)).any()
        assert rewards.shape == (500,)
        assert terminated.all()
        assert not truncated.any()
        assert infos["_regret"].all()
        assert (infos["regret"] >= 0.0).all()
        assert (infos["regret"] > 0.0).any()
        before = after


@pytest.mark.parametrize("name", IDS)
def test_seeds_and_copies_give_the_same_stream_and_other_seeds_another(name: str) -> None:
    envs, others = vector(name, 4), vector(name, 4)
    first, _ = envs.reset(seed=7)
    kept = flat(first).copy()
    others.reset(seed=7)
    stream = played(envs, 300)
    assert numpy.array_equal(played(others, 300), stream)
    assert numpy.array_equal(played(copy.deepcopy(envs), 300), played(envs, 300))
    # What was returned is not written again.
    assert numpy.array_equal(flat(first), kept)
    envs.reset(seed=7)
    assert numpy.array_equal(played(envs, 300), stream)
    envs.reset(seed=8)
    assert not numpy.array_equal(played(envs, 300), stream)


@pytest.mark.parametrize("name", IDS)
def test_the_single_form_plays_what_one_vectorized_environment_plays(name: str) -> None:
    env, envs = single(name), vector(name, 1)
    seen, _ = env.reset(seed=3)
    all_seen, _ = envs.reset(seed=3)
    for step in range(600):
        assert env.observation_space.contains(seen)
        assert all(numpy.array_equal(a, b[0]) for a, b in pairs(seen, all_seen))
        after, reward, terminated, truncated, info = env.step(step % 2)
        assert all(numpy.array_equal(a, b) for a, b in pairs(after, seen))
        all_seen, rewards, _, _, infos = envs.step(numpy.array([step % 2]))
        assert (reward, terminated, truncated) == (rewards[0], True, False)
        assert info == {key: infos[key][0] for key in infos if not key.startswith("_")}
        seen, _ = env.reset()


def pairs(one: Any, other: Any) -> list[tuple[Any, Any]]:
    if isinstance(one, dict):
        return [(one[key], other[key]) for key in one]
    return [(one, other)]


def test_environments_of_one_problem_seed_share_their_hidden_parameters() -> None:
    """Noiseless rewards of one arm are a linear function of the context: the same for all."""
    makers = [lambda: single("LinearBandit-v0", noise=0.0, problem_seed=4)] * 8
    apart = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    together = vector("LinearBandit-v0", 8, noise=0.0, problem_seed=4)
    thetas = []
    for seed, envs in ((1, apart), (2, together)):
        seen, _ = envs.reset(seed=seed)
        rewards = envs.step(numpy.zeros(8, dtype=numpy.int64))[1]
        thetas.append(numpy.linalg.solve(seen, rewards))
    assert thetas[0] == pytest.approx(thetas[1], abs=1e-8)
    envs = vector("LinearBandit-v0", 1)
    envs.reset(seed=1)
    first = envs.problem_seed
    envs.reset()
    assert envs.problem_seed == first
    envs.reset(seed=2)
    assert envs.problem_seed != first
    fixed = vector("LinearBandit-v0", 1, problem_seed=first)
    fixed.reset(seed=2)
    assert fixed.problem_seed == first


# -- a problem whose numbers can be read off -------------------------------------------------------


@attrs.frozen(kw_only=True)
class TwoContexts:
    """In context 0 arm 2 is best (0.75); in context 1 arm 2 is absent and the others lose."""

    num_arms: int = 3
    problem_seed: int | None = None

    @property
    def observation_space(self) -> spaces.Box:
        return spaces.Box(0.0, 1.0, (1,), numpy.float64)

    def start(self, seed: int) -> TwoContexts:
        return self

    def draw(self, random: numpy.random.Generator, steps: int, n: int) -> Rounds:
        rewards = numpy.array([[0.625, 0.375, 0.875], [-1.25, -0.75, 0.0]])
        expected = numpy.array([[0.5, 0.25, 0.75], [-1.0, -0.5, 0.0]])
        present = numpy.array([[True, True, True], [True, True, False]])
        return Rounds(
            observations=numpy.tile(numpy.array([[0.0], [1.0]]), (steps, 1, 1)),
            rewards=numpy.tile(rewards, (steps, 1, 1)),
            expected=numpy.tile(expected, (steps, 1, 1)),
            best=numpy.tile(numpy.array([0.75, -0.5]), (steps, 1)),
            present=numpy.tile(present, (steps, 1, 1)),
        )


class TwoContextsVectorEnv(BanditVectorEnv):
    kind = TwoContexts


@pytest.mark.parametrize(
    ("actions", "rewards", "expected", "regret", "absent"),
    [
        ([1, 0], [0.375, -1.25], [0.25, -1.0], [0.5, 0.5], [False, False]),
        ([2, 1], [0.875, -0.75], [0.75, -0.5], [0.0, 0.0], [False, False]),
        # An absent arm earns nothing, and never beats the best.
        ([2, 2], [0.875, 0.0], [0.75, 0.0], [0.0, 0.0], [False, True]),
    ],
)
def test_regret_is_the_best_expected_reward_less_that_of_the_chosen_arm(
    actions: list[int], rewards: Any, expected: Any, regret: Any, absent: Any
) -> None:
    for kind in (numpy.int64, numpy.int32, numpy.uint8):
        envs = TwoContextsVectorEnv(2)
        assert envs.reset(seed=0)[0].tolist() == [[0.0], [1.0]]
        _, earned, _, _, infos = envs.step(numpy.array(actions, kind))
        assert earned.tolist() == rewards
        assert infos["best_reward"].tolist() == [0.75, -0.5]
        assert infos["expected_reward"].tolist() == expected
        assert infos["regret"].tolist() == regret
        assert infos["absent_arm"].tolist() == absent


def test_actions_that_are_no_arms_are_refused_and_steps_before_the_first_reset() -> None:
    envs = TwoContextsVectorEnv(2)
    with pytest.raises(ResetNeeded, match="TwoContextsVectorEnv: call reset before step"):
        envs.step(numpy.array([0, 0]))
    envs.reset(seed=0)
    for actions, told in (
        ([0, -1], "action -1 in row 1 is no arm: there are 3"),
        ([3, 0], "action 3 in row 0 is no arm: there are 3"),
        ([0, 1, 2], r"shape \(2,\), found int64 of shape \(3,\)"),
        ([0.0, 1.0], r"whole numbers of shape \(2,\), found float64"),
    ):
        with pytest.raises(RequestError, match=told):
            envs.step(numpy.array(actions))


# -- options ---------------------------------------------------------------------------------------


def test_all_wrong_options_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        single("LinearBandit-v0", num_arms=1, noise="loud", context_dims=3)
    text = str(caught.value)
    assert "3 problems in the options of LinearBanditEnv:" in text
    assert "must be at least 2, got 1" in text
    assert "expected float, got str 'loud'" in text
    assert "unknown option, did you mean 'context_dim'?" in text
    with pytest.raises(ConfigError, match="min_arms must be at most num_arms, got 5 and 3"):
        vector("FeatureBandit-v0", 2, num_arms=3, min_arms=5)
    with pytest.raises(RequestError, match="LinearBanditVectorEnv has nothing to draw"):
        vector("LinearBandit-v0", 1, render_mode="ansi")


# -- bandit problems -------------------------------------------------------------------------------


def drawn(kind: Any, steps: int, n: int, **options: Any) -> Rounds:
    rounds: Rounds = kind(**options).start(seed=3).draw(numpy.random.default_rng(4), steps, n)
    return rounds


# -- linear ----------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(num_arms=st.integers(2, 20), context_dim=st.integers(2, 30), drift=st.sampled_from([0, 0.1]))
def test_contexts_have_norm_1_and_no_arm_pays_more_than_the_best(
    num_arms: int, context_dim: int, drift: float
) -> None:
    rounds = drawn(LinearBandit, 5, 7, num_arms=num_arms, context_dim=context_dim, drift=drift)
    assert rounds.observations.shape == (5, 7, context_dim)
    assert numpy.linalg.norm(rounds.observations, axis=2) == pytest.approx(numpy.ones((5, 7)))
    assert rounds.expected.shape == (5, 7, num_arms)
    assert (rounds.expected <= rounds.best[..., None]).all()
    assert (abs(rounds.expected) <= 1.0 + 1e-12).all()


def test_an_arm_pays_the_product_of_its_parameters_and_the_context_plus_noise() -> None:
    rounds = drawn(LinearBandit, 100, 100, num_arms=3, context_dim=4, noise=0.5)
    theta = DriftingParameters(3, 4, drift=0.0, seed=3).rows
    assert rounds.expected == pytest.approx(rounds.observations @ theta.T)
    noise = (rounds.rewards - rounds.expected)[:, :, 0]
    assert noise.mean() == pytest.approx(0.0, abs=0.02)
    assert noise.std() == pytest.approx(0.5, abs=0.02)
    quiet = drawn(LinearBandit, 100, 100, noise=0.0)
    assert numpy.array_equal(quiet.rewards, quiet.expected)


def test_many_environments_drift_as_far_per_step_as_one_does() -> None:
    """100 steps of one environment and 1 step of 100 are 100 steps both."""
    for steps, n, drift, expected in ((1, 1, 0.01, 0.01), (100, 1, 0.01, 0.1), (1, 100, 0.01, 0.1)):
        hidden = DriftingParameters(2000, 50, drift=drift, seed=1)
        before = hidden.rows
        hidden.products(numpy.zeros((steps, n, 50)))
        assert numpy.linalg.norm(hidden.rows, axis=1) == pytest.approx(numpy.ones(2000))
        moved = numpy.linalg.norm(hidden.rows - before, axis=1).mean()
        assert moved == pytest.approx(expected, rel=0.03)


# -- arms with features ----------------------------------------------------------------------------


@settings(max_examples=25)
@given(num_arms=st.integers(2, 12), context_dim=st.integers(2, 9), arm_dim=st.integers(2, 9))
def test_present_arms_have_norm_1_and_absent_ones_are_zeros_that_pay_nothing(
    num_arms: int, context_dim: int, arm_dim: int
) -> None:
    options = {"num_arms": num_arms, "context_dim": context_dim, "arm_dim": arm_dim}
    rounds = drawn(FeatureBandit, 3, 20, min_arms=1, drift=0.1, **options)
    present, seen = rounds.present, rounds.observations
    assert present is not None
    assert numpy.array_equal(seen["action_mask"], present)
    assert numpy.linalg.norm(seen["context"], axis=2) == pytest.approx(numpy.ones((3, 20)))
    assert numpy.linalg.norm(seen["arms"], axis=3) == pytest.approx(present.astype(float))
    assert not rounds.rewards[~present].any()
    assert not rounds.expected[~present].any()
    assert (rounds.expected[present] <= rounds.best.repeat(present.sum(axis=2).ravel())).all()


def test_an_arm_pays_a_bilinear_part_and_a_linear_part() -> None:
    rounds = drawn(FeatureBandit, 1, 40, num_arms=4, min_arms=4, context_dim=3, arm_dim=2)
    rows = DriftingParameters(2, 4, drift=0.0, seed=3).rows
    W, v = rows[:, :3].T, rows[:, 3]
    contexts, arms = rounds.observations["context"][0], rounds.observations["arms"][0]
    by_hand = [[c @ W @ a + v @ a for a in row] for c, row in zip(contexts, arms, strict=True)]
    assert rounds.expected[0] == pytest.approx(numpy.array(by_hand))
    # No arm is seen twice.
    assert len(numpy.unique(arms.reshape(-1, 2), axis=0)) == 160


def test_choosing_an_absent_arm_earns_0_and_is_flagged() -> None:
    envs = gymnasium.make_vec("rlplug.bandits:FeatureBandit-v0", num_envs=200)
    seen, _ = envs.reset(seed=1)
    absent = seen["action_mask"].argmin(axis=1)
    chosen_absent = seen["action_mask"].min(axis=1) == 0
    _, rewards, _, _, infos = envs.step(absent)
    assert 100 < chosen_absent.sum() < 200
    assert numpy.array_equal(infos["absent_arm"], chosen_absent)
    assert not rewards[chosen_absent].any()
    assert rewards[~chosen_absent].all()


# -- arms without features -------------------------------------------------------------------------


def test_an_arm_always_expects_its_mean_and_pays_0_or_1_or_the_mean_plus_noise() -> None:
    rounds = drawn(MultiArmedBandit, 100, 100, num_arms=3)
    means = rounds.expected[0, 0]
    assert (rounds.expected == means).all()
    assert ((means >= 0) & (means <= 1)).all()
    assert (rounds.best == means.max()).all()
    assert set(numpy.unique(rounds.rewards)) == {0.0, 1.0}
    # Four standard deviations of the mean of 10,000 draws are at most 0.02.
    assert rounds.rewards.mean((0, 1)) == pytest.approx(means, abs=0.02)
    rounds = drawn(MultiArmedBandit, 100, 100, num_arms=3, rewards="gaussian", noise=0.2)
    assert rounds.expected[0, 0].tolist() == means.tolist()
    noise = rounds.rewards - rounds.expected
    assert (noise.mean(), noise.std()) == pytest.approx((0.0, 0.2), abs=0.01)
    vector = gymnasium.make_vec("rlplug.bandits:MultiArmedBandit-v0", 2)
    assert vector.reset(seed=0)[0].tolist() == [0, 0]
    assert vector.step(numpy.array([0, 1]))[0].tolist() == [0, 0]


# -- bandit classification -------------------------------------------------------------------------


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


# -- bandit table ----------------------------------------------------------------------------------


CSV = """height,kind,"width, cm"
1.5,cat,2
-2e1,dog,"4"

0,cat,6
"""


def written(folder: Path, text: str, name: str = "pets.csv") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def parquet(folder: Path, columns: dict[str, list[Any]]) -> str:
    write_table(pyarrow.table(columns), folder / "pets.parquet")
    return str(folder / "pets.parquet")


def archive(folder: Path, **arrays: Any) -> str:
    numpy.savez(folder / "rows.npz", **arrays)
    return str(folder / "rows.npz")


def refusal(source: str, label: str = "kind") -> str:
    with pytest.raises(RequestError) as caught:
        load_table(source, label)
    return str(caught.value)


def test_a_csv_file_gives_numbers_and_classes_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for source in (written(tmp_path, CSV), "~/pets.csv"):
        table = load_table(source, "kind")
        assert table.features.tolist() == [[1.5, 2.0], [-20.0, 4.0], [0.0, 6.0]]
        assert table.columns == ("height", "width, cm")
        assert (table.classes, table.labels.tolist()) == (("cat", "dog"), [0, 1, 0])


def test_other_files_give_what_a_csv_file_gives(tmp_path: Path) -> None:
    table = load_table(archive(tmp_path, x=numpy.array([[1, 2], [3, 4]]), y=numpy.array([7, 5])))
    assert table.features.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert (table.classes, table.labels.tolist()) == (("5", "7"), [1, 0])
    source = parquet(tmp_path, {"x": [1, 2], "z": [0.5, 1.5], "kind": ["b", "a"]})
    table = load_table(source, "kind")
    assert table.features.tolist() == [[1.0, 0.5], [2.0, 1.5]]
    assert (table.classes, table.labels.tolist()) == (("a", "b"), [1, 0])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (CSV.replace("kind", "kinds"), "did you mean 'kinds'?"),
        (CSV.replace("kind", "kinds"), "no column 'kind'; there are: height, kinds, width, cm"),
        ("x,kind\n1,a\n\nred,b\n", "column 'x' holds string (line 4 holds 'red'), a feature must"),
        ("kind,x,z\na,1,2\nb,1\n", "line 3: column 'z' is not there: the line has 2 values"),
        ("x,z,kind\n1,2,a\n3,4\n", "line 3: column 'kind' is not there: the line has 2 values"),
        ("x,kind\n1,a\n2,a\n", "all rows are of one class, 'a'"),
        ("x,kind\n\n", "the table is empty"),
        ("kind\na\nb\n", "the table is empty"),
        ("", "is empty: it has 0 bytes"),
        ("x,z,kind\n1,2,a\n1,nan,b\n", "nan in column 'z', row 1 (counted from 0)"),
        ("x,z,kind\n1,2,a\n1,inf,b\n", "inf in column 'z', row 1 (counted from 0)"),
        ("x,kind\n1,a\n2,\n", "row 1 (counted from 0) has no label"),
        ("x,kind\n1,2\n2,3.7\n", "label 3.7 in row 1 (counted from 0) is no class"),
    ],
)
def test_what_is_wrong_with_a_csv_file_is_named(tmp_path: Path, text: str, told: str) -> None:
    said = refusal(written(tmp_path, text))
    assert said.startswith("pets.csv")
    assert told in said


def test_what_is_wrong_with_other_files_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "column 'x' holds string" in refusal(parquet(tmp_path, {"x": ["red"], "kind": ["a"]}))
    said = refusal(parquet(tmp_path, {"x": [1, 2, 3], "kind": ["a", "b", None]}))
    assert "row 2: column 'kind' is missing" in said
    source = archive(tmp_path, x=numpy.eye(2), target=numpy.arange(2))
    assert "there is no column 'y'; there are: x, target." in refusal(source)
    assert "is empty" in refusal(archive(tmp_path, x=numpy.empty((0, 3)), y=numpy.empty(0)))
    for name in ("rows.npz", "rows.parquet"):
        assert f"{name} cannot be read" in refusal(written(tmp_path, "not that", name))
    (tmp_path / "pets.csv").write_bytes(b"\xff\xfe\x00\x01")
    assert "pets.csv cannot be read" in refusal(str(tmp_path / "pets.csv"))
    missing = tmp_path / "none.csv"
    assert f"there is no such file.\n  looked at: {missing}" in refusal(str(missing))
    said = refusal("table.xlsx")
    assert "neither a file (.parquet, .pq, .csv, .npz) nor one of breast_cancer, digits" in said
    assert "did you mean 'rings'" in refusal("ring")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert "try: pip install 'rlplug[parquet]'" in refusal(parquet(tmp_path, {"x": [1]}))


def test_arrays_must_fit_each_other() -> None:
    with pytest.raises(RequestError, match=r"label must have shape \(2,\).* found \(3,\)"):
        Table.of(numpy.eye(2), [0, 1, 2])
    for features in ([1.0, 2.0], numpy.empty((0, 3)), [["a"], ["b"]]):
        with pytest.raises(RequestError, match=r"features must be numbers of shape \(rows, colu"):
            Table.of(features, [0, 1])


def test_columns_are_standardized_and_unit_rows_get_a_one_and_have_norm_1() -> None:
    """The rows (−1, 0) and (1, 0) get a 1: (∓1, 0, 1), which has norm √2."""
    table = Table.of([[1.0, 7.0], [3.0, 7.0]], [0, 1], columns=("a", "b"))
    assert table.preprocessed("none") is table
    assert table.preprocessed("standard").features.tolist() == [[-1.0, 0.0], [1.0, 0.0]]
    unit, half = table.preprocessed("unit"), 0.5**0.5
    assert unit.features == pytest.approx(numpy.array([[-half, 0, half], [half, 0, half]]))
    assert unit.columns == ("a", "b", "bias")


# -- bandit batch ----------------------------------------------------------------------------------


NAN, INF = numpy.nan, numpy.inf


def columns(**changes: Any) -> dict[str, Any]:
    """Two rows of two context features and three arms of one feature each."""
    return {
        "context": numpy.array([[1.0, 2.0], [3.0, 4.0]]),
        "arms": numpy.array([[[10.0], [11.0], [12.0]], [[20.0], [21.0], [22.0]]]),
        "action_mask": numpy.array([[1, 1, 1], [1, 0, 1]], dtype=numpy.int8),
        "actions": numpy.array([1, 2]),
        "rewards": numpy.array([0.5, -0.5]),
        **changes,
    }


def refused(**changes: Any) -> str:
    with pytest.raises(RequestError) as caught:
        BanditBatch(**columns(**changes))
    return caught.value.message


def test_the_effective_weight_is_weight_times_importance_weight() -> None:
    weights, importance = numpy.array([2.0, 3.0]), numpy.array([0.5, 4.0])
    for columns_given, expected in (
        ({"weights": weights, "importance_weight": importance}, [1.0, 12.0]),
        ({"weights": weights}, [2.0, 3.0]),
        ({"importance_weight": importance}, [0.5, 4.0]),
        ({}, [1.0, 1.0]),
    ):
        batch = BanditBatch(**columns(**columns_given))
        assert (batch.effective_weight.tolist(), batch.weighted) == (expected, bool(columns_given))


def test_the_features_of_the_chosen_arm_are_gathered() -> None:
    assert BanditBatch(**columns()).chosen_arm.tolist() == [[11.0], [22.0]]
    with pytest.raises(RequestError, match="fixed arms have no features"):
        _ = BanditBatch(**columns(arms=None)).chosen_arm


def test_a_batch_of_featured_arms_survives_the_way_through_batch() -> None:
    extra = {
        "label": numpy.array([1.0, 0.0]),
        "weights": numpy.array([2.0, 3.0]),
        "importance_weight": numpy.array([0.5, 4.0]),
        "action_log_prob": numpy.array([-0.5, 0.0]),
    }
    given = columns(**extra)
    batch = BanditBatch(**given).to_batch()
    assert sorted(batch) == sorted(["observations", "actions", "rewards", *extra])
    assert sorted(batch.array("observations")) == ["action_mask", "arms", "context"]
    back = BanditBatch.of(batch)
    for name, column in given.items():
        assert numpy.shares_memory(getattr(back, name), column)
    assert (len(back), back.num_arms) == (2, 3)


def test_contexts_and_arms_may_be_alone_or_not_at_all() -> None:
    batch = BanditBatch(**columns(arms=None, action_mask=None)).to_batch()
    assert batch.array("observations").tolist() == [[1.0, 2.0], [3.0, 4.0]]
    back = BanditBatch.of(batch)
    assert back.num_arms is None
    assert back.label is back.rewards
    arms = numpy.ones((1, 2, 1))
    chosen: dict[str, Any] = {"actions": numpy.array([1]), "rewards": numpy.ones(1)}
    for seen in (arms, {"arms": arms}):
        back = BanditBatch.of(Batch({"observations": seen, **chosen}))
        assert (back.context, back.num_arms, back.chosen_arm.tolist()) == (None, 2, [[1.0]])
        assert BanditBatch.of(back.to_batch()).arms is arms
    neither = BanditBatch(**chosen)
    assert (neither.num_arms, neither.observations.shape) == (None, (1, 0))
    empty = BanditBatch(
        context=numpy.empty((0, 2)), actions=numpy.empty(0, int), rewards=arms[:0, 0, 0]
    )
    assert (len(empty), empty.effective_weight.tolist()) == (0, [])


def test_tensors_and_a_mask_beside_the_observations_are_understood() -> None:
    given: dict[str, Any] = {
        "observations": torch.tensor([[1.0, 2.0]]),
        "action_mask": torch.tensor([[True, False]]),
        "actions": torch.tensor([0]),
        "rewards": torch.tensor([1.0]),
    }
    back = BanditBatch.of(Batch(given))
    assert back.action_mask is not None
    assert (back.action_mask.tolist(), back.num_arms) == ([[True, False]], 2)
    del given["rewards"]
    with pytest.raises(RequestError, match=r"'rewards' is missing .*: observations, action_mask"):
        BanditBatch.of(Batch(given))


def test_what_is_not_validated_and_features_of_absent_arms_may_be_anything() -> None:
    given = columns(rewards=numpy.array([NAN, 0.0]))
    batch = BanditBatch.of(BanditBatch(**given, validate=False).to_batch(), validate=False)
    assert numpy.isnan(batch.rewards[0])
    arms = columns()["arms"].copy()
    arms[1, 1] = NAN
    assert len(BanditBatch(**columns(arms=arms))) == 2
    told = "column 'arms', row 1, value 1, 0: is missing or NaN."
    assert refused(arms=arms, action_mask=None) == told


@pytest.mark.parametrize(
    ("name", "column", "expected"),
    [
        ("context", numpy.zeros(2), "numbers of shape (2, features)"),
        ("arms", numpy.zeros((2, 3)), "numbers of shape (2, arms, features)"),
        ("action_mask", numpy.zeros((2, 4), int), "0 and 1 or booleans of shape (2, arms)"),
        ("actions", numpy.zeros(2), "whole numbers of shape (2,)"),
        ("rewards", numpy.array(["a", "b"]), "numbers of shape (2,)"),
        ("action_log_prob", numpy.zeros((2, 2)), "numbers of shape (2,)"),
    ],
)
def test_a_wrong_shape_or_type_is_named_with_column_expected_and_found(
    name: str, column: Any, expected: str
) -> None:
    assert refused(**{name: column}) == (
        f"column {name!r}: expected {expected}, found {column.dtype} of shape {column.shape}."
    )


@pytest.mark.parametrize(
    ("name", "values", "told"),
    [
        ("context", [[0.0, 0.0], [NAN, 0.0]], "'context', row 1, value 0: is missing or NaN."),
        ("arms", [[[0.0]] * 3, [[0.0], [0.0], [INF]]], "'arms', row 1, value 2, 0: is infinite."),
        ("rewards", [INF, -INF], "'rewards', row 0: is infinite."),
        ("weights", [1.0, -2.0], "'weights', row 1: is -2, below 0."),
        ("importance_weight", [-0.5, 1.0], "'importance_weight', row 0: is -0.5, below 0."),
        ("action_log_prob", [0.0, 1.0], "'action_log_prob', row 1: is 1.0, no log-probability."),
        ("actions", [0, 3], "'actions', row 1: is 3, the arms are 0 to 2."),
        ("actions", [0, 1], "'actions', row 1: is 1, an arm that is absent there."),
    ],
)
def test_the_first_value_that_cannot_be_is_told_with_its_place(
    name: str, values: Any, told: str
) -> None:
    assert refused(**{name: numpy.array(values)}) == f"column {told}"
