"""Runs that learn from a log: no environment, exact resume, warm start."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pytest
import torch
from gymnasium.spaces import Box
from pyarrow import parquet

import rlplug
from rlplug import AddOn
from rlplug.config.sections import DataSection
from rlplug.errors import RequestError
from rlplug.logs import Log
from rlplug.logs.recording import spaces_as_metadata
from rlplug.registry import Registry
from rlplug.runs.prepare import prepare
from rlplug.runs.request import Request
from rlplug.sampling.log import LogReader

pytestmark = pytest.mark.usefixtures("home")

OFF = {"tracking.enabled": False}
ALIKE = {"env.num_arms": 4, "env.context_dim": 3}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RLPLUG_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def clicks(tmp_path: Path) -> Path:
    """3000 rows of four arms, chosen uniformly, whose reward is linear in three features."""
    random = numpy.random.default_rng(0)
    contexts, theta = random.standard_normal((3000, 3)), random.standard_normal((4, 3))
    actions = random.integers(0, 4, 3000)
    rewards = (contexts * theta[actions]).sum(1)
    table = {
        **{f"context_{one}": contexts[:, one] for one in range(3)},
        "action": actions,
        "reward": rewards,
        "propensity": numpy.full(3000, 0.25),
    }
    path = tmp_path / "clicks.parquet"
    parquet.write_table(pyarrow.table(table), path, row_group_size=700)
    return path


@pytest.fixture
def command(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """The command line."""
    invoke: Callable[..., Any] = request.getfixturevalue("rlplug")
    return invoke


class CutOff(AddOn):
    """Ends the process's part of a run by an error after an update at or after a step."""

    def __init__(self, at: int = 0) -> None:
        super().__init__(None)
        self.at = at

    def save_state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: Any) -> None:
        """Nothing is kept: a resumed run is not cut off again."""

    def update_finished(self, step: int) -> None:
        if self.at and step >= self.at:
            raise ArithmeticError("cut off")


def test_linucb_learns_each_row_of_the_log_once(clicks: Path) -> None:
    result = rlplug.run("linucb", data=clicks, options={**OFF, "rows_per_update": 512})
    assert (result.step, result.status) == (3000, "FINISHED")
    rows = Log.open(DataSection(files=(str(clicks),))).whole()
    estimates = result.module.estimates()
    for arm in range(4):
        x, r = (rows[name][rows["action"] == arm] for name in ("context", "reward"))
        assert numpy.allclose(estimates.A[arm], x.T @ x)
        assert numpy.allclose(
            estimates.theta[arm], numpy.linalg.solve(x.T @ x + numpy.eye(3), x.T @ r)
        )


def test_features_have_names_that_stay_with_the_policy(
    home: Path, command: Callable[..., Any]
) -> None:
    random = numpy.random.default_rng(0)
    zips, ages, actions = random.random(400), -random.random(400), random.integers(0, 2, 400)
    rewards = numpy.where(actions, zips + ages, -ages)
    logged = {"action": actions, "reward": rewards, "propensity": numpy.full(400, 0.5)}
    table = pyarrow.table({"zip": zips, "age": ages, **logged})
    parquet.write_table(table, home / "clicks.parquet")
    parquet.write_table(table.select(["age", *logged, "zip"]), home / "moved.parquet")
    parquet.write_table(table.rename_columns(["zip", "years", *logged]), home / "renamed.parquet")
    data = {"data.files": [str(home / "clicks.parquet")], "data.context": "*", **OFF}
    policy = rlplug.load(rlplug.run("linucb", options=data).folder)
    assert policy.features == ("zip", "age")
    ours, (action,) = policy.predict([0.9, -0.1]), policy.predict([{"age": -0.1, "zip": 0.9}])
    assert policy.predict({"age": -0.1, "zip": 0.9}) == ours == action
    frame = table.select(["age", "zip"]).to_pandas()
    assert (policy.predict(frame) == policy.predict(numpy.stack([zips, ages], 1))).all()
    for wrong in ({"zip": 0.9}, {"zip": 0.9, "age": 0.0, "sex": 1.0}):
        with pytest.raises(RequestError, match="features: zip, age"):
            policy.predict(wrong)
    with pytest.raises(RequestError, match="of different lengths"):
        policy.predict({"zip": [0.9, 0.8], "age": 0.0})
    same, moved = (
        command("ope", "last", "--data", str(home / f"{name}.parquet"), "--json", "--no-save").out
        for name in ("clicks", "moved")
    )
    (ours,), (theirs,) = json.loads(same)["runs"], json.loads(moved)["runs"]
    assert ours["estimates"] == theirs["estimates"] != {}
    refused = command("ope", "last", "--data", str(home / "renamed.parquet"))
    assert (refused.code, "no column 'age' in renamed.parquet" in refused.err) == (2, True)
    swapped = ("--set", "data.context=age,zip")
    told = command("ope", "last", "--data", str(home / "moved.parquet"), *swapped, "--json")
    assert json.loads(told.out)["runs"][0]["estimates"] == ours["estimates"]


@pytest.mark.parametrize(
    ("algorithm", "options", "at"),
    [("linucb", {"rows_per_update": 100}, 1500), ("dqn", {"shuffle_rows": 700}, 3200)],
)
def test_a_run_that_was_cut_off_reads_on_where_it_was(
    home: Path, clicks: Path, algorithm: str, options: dict[str, Any], at: int
) -> None:
    settings = {**OFF, "checkpoint.every": 1000, **options}
    arguments: dict[str, Any] = {"data": clicks, "steps": 5000, "options": settings}
    whole = rlplug.run(algorithm, addons=[CutOff()], **arguments)
    before = set(home.glob("work/*"))
    with pytest.raises(ArithmeticError, match="cut off"):
        rlplug.run(algorithm, addons=[CutOff(at)], **arguments)
    (folder,) = set(home.glob("work/*")) - before
    resumed = rlplug.resume(folder.name, addons=[CutOff()])
    assert (resumed.step, resumed.status) == (whole.step, "FINISHED") == (5000, "FINISHED")
    there = resumed.module.state_dict()
    for name, tensor in whole.module.state_dict().items():
        assert torch.equal(tensor, there[name]), name
    assert resumed.metrics["data/epoch"] == whole.metrics["data/epoch"] > 1.6


def test_a_run_cannot_go_on_with_another_log(home: Path, clicks: Path) -> None:
    settings = {**OFF, "checkpoint.every": 1000, "rows_per_update": 100}
    with pytest.raises(ArithmeticError, match="cut off"):
        rlplug.run("linucb", data=clicks, addons=[CutOff(1500)], options=settings)
    (folder,) = home.glob("work/*")
    parquet.write_table(parquet.read_table(clicks).slice(0, 2000), clicks)
    with pytest.raises(RequestError, match=r"clicks.parquet had 3,000 rows .* now clicks.parquet"):
        rlplug.resume(folder.name, addons=[CutOff()])


def test_the_command_line_says_what_it_reads(clicks: Path, rlplug: Callable[..., Any]) -> None:
    arguments = (
        "run",
        "--algo",
        "linucb",
        "--data",
        str(clicks),
        "--set",
        "tracking.enabled=false",
    )
    ran = rlplug(*arguments)
    assert ran.code == 0, ran.err
    assert "linucb on clicks, 3,000 rows, seed 0" in ran.err
    assert " rows/s  logged reward " in ran.err
    asked = rlplug("eval", "last")
    assert (asked.code, "which has no id: it is a log" in asked.err) == (2, True)
    dry = rlplug(*arguments, "--dry-run")
    assert f'files = ["{clicks}"]' in dry.out
    assert "steps = 3000" in dry.out


def test_only_options_that_were_set_differ_from_the_defaults(clicks: Path) -> None:
    flags = {"run": {"algorithm": "linucb"}, "data": {"files": [str(clicks)]}}
    prepared = prepare(Request(flags=flags), Registry.installed())
    assert set(prepared.chosen) == {"data.files"}
    flags["data"] = {**flags["data"], "num_arms": 7}
    prepared = prepare(Request(flags=flags), Registry.installed())
    assert set(prepared.chosen) == {"data.files", "data.num_arms"}


REFUSED: list[tuple[str, str, dict[str, Any], str]] = [
    ("ppo", "", {}, "'ppo' (.*) learns from its own actions only"),
    ("dqn", "", {"prioritized": True}, "--set prioritized=false"),
    ("linucb", "", {"normalize_observation": True}, "env.normalize_observation +has no effect"),
    ("linucb", "", {"evaluation.episodes": 5}, "evaluation.episodes +has no effect"),
    ("linucb", "", {"sampling.backend": "workers"}, "sampling.backend +a log is read in this"),
    ("linucb", "", {"sampling.record": "log"}, "sampling.record +has no effect"),
    ("linucb", "LinearBandit-v0", {}, r"observations of log 'clicks' are Box of shape \(3,\)"),
    ("linucb", "LinearBandit-v0", {**ALIKE, "normalize_observation": True}, "are not normalized"),
]


@pytest.mark.parametrize(("algorithm", "env", "options", "said"), REFUSED)
def test_what_does_not_go_with_a_log_is_refused(
    clicks: Path, algorithm: str, env: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(RequestError, match=said):
        rlplug.run(algorithm, env, data=clicks, options={**OFF, **options})


def test_an_environment_like_the_log_is_evaluated_in(clicks: Path) -> None:
    done = rlplug.run("linucb", "LinearBandit-v0", data=clicks, options={**OFF, **ALIKE})
    assert done.step == 3000
    assert "eval/return_mean" in done.metrics


def test_options_of_logs_are_refused_without_a_log() -> None:
    # `num_arms` alone is an option of [data], and easily meant for the environment.
    settings = {"num_arms": 20, "data.label": "target"}
    with pytest.raises(RequestError) as raised:
        rlplug.run("linucb", steps=4, options={**OFF, **settings})
    for name in ("data.num_arms", "data.label"):
        assert re.search(rf"{name} +has no effect without a log", str(raised.value))


def test_a_policy_that_learned_from_a_log_acts_well_at_once(tmp_path: Path) -> None:
    """Rows of the environment, chosen uniformly: what is learned from them is known later."""
    import gymnasium

    env = "rlplug.bandits:LinearBandit-v0"
    made = gymnasium.make_vec(env, num_envs=2000, problem_seed=5)
    contexts, _ = made.reset(seed=1)
    random = numpy.random.default_rng(0)
    arms = made.single_action_space.n
    actions = random.integers(0, arms, 2000)
    _, rewards, *_ = made.step(actions)
    path = tmp_path / "uniform.npz"
    numpy.savez(path, context=contexts, action=actions, reward=rewards)
    learned = rlplug.run("linucb", data=path, options={**OFF, "num_arms": int(arms)})
    options = {**OFF, "env.problem_seed": 5}
    cold = rlplug.run("linucb", env, steps=200, options=options)
    warm = rlplug.run(
        "linucb", env, steps=200, options={**options, "run.init_from": str(learned.folder)}
    )
    assert warm.metrics["rollout/regret_mean"] < 0.3 * cold.metrics["rollout/regret_mean"]
    evaluated = rlplug.evaluate(learned.folder, env=env, episodes=500)
    assert evaluated.environment == env


EPISODES = {
    "context": [[0.0], [1.0], [2.0], [10.0], [11.0], [20.0]],
    "action": [0, 1, 0, 1, 0, 1],
    "reward": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
    "episode": [0, 0, 0, 1, 1, 2],
    "terminated": [False, False, True, False, False, False],
}
"""Episode 0 terminates, 1 was cut off, 2 goes on beyond the log."""


@pytest.mark.parametrize("pool", [2, 3, 4, 100])
def test_next_observations_are_those_of_the_next_row_of_the_episode(
    tmp_path: Path, pool: int
) -> None:
    path = tmp_path / "log.parquet"
    parquet.write_table(pyarrow.table(EPISODES), path)
    log = Log.open(DataSection(files=(str(path),)))
    assert not log.is_bandit
    sampler = LogReader(log, rows=1, steps=100, seed=0, pool=pool, wants_next=True)
    sampler.start()
    found = {}
    for step in range(4):
        columns = sampler.collect(step).columns
        found[columns["observations"].item()] = (
            columns["next_observations"].item(),
            bool(columns["terminated"].item()),
        )
    after = {0.0: (1.0, False), 1.0: (2.0, False), 10.0: (11.0, False)}
    # Whatever follows the end of an episode does not matter.
    assert {seen: one for seen, one in found.items() if not one[1]} == after
    assert [seen for seen, one in found.items() if one[1]] == [2.0]


def test_transitions_over_several_steps_stop_at_ends(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    # Rows of two environments by turns: 0, 10, 1, 11, 2, 20.
    order = [0, 3, 1, 4, 2, 5]
    table = {name: [column[place] for place in order] for name, column in EPISODES.items()}
    table["next_context"] = [[1.0], [11.0], [2.0], [12.0], [99.0], [21.0]]
    table["truncated"] = [False] * 6
    parquet.write_table(pyarrow.table(table), path)
    log = Log.open(DataSection(files=(str(path),)))
    sampler = LogReader(log, rows=6, steps=6, seed=0, pool=6, wants_next=True, n_step=2, gamma=0.5)
    sampler.start()
    columns = sampler.collect(0).columns
    found = {
        seen[0]: (reward, following[0], ended, discount)
        for seen, reward, following, ended, discount in zip(
            columns["observations"].tolist(),
            columns["rewards"].tolist(),
            columns["next_observations"].tolist(),
            columns["terminated"].tolist(),
            columns["discounts"].tolist(),
            strict=True,
        )
    }
    assert found == {
        # 1 + 2/2, then two steps later; 2 + 3/2, the end.
        0.0: (2.0, 2.0, False, 0.25),
        1.0: (3.5, 99.0, True, 0.25),
        2.0: (3.0, 99.0, True, 0.5),
        # 4 + 5/2; the last row here is one step.
        10.0: (6.5, 12.0, False, 0.25),
        11.0: (5.0, 12.0, False, 0.5),
        20.0: (6.0, 21.0, False, 0.5),
    }
    assert "episode" not in columns
    options = {**OFF, "n_step": 3, "batch_size": 4}
    assert rlplug.run("dqn", data=path, steps=12, options=options).step == 12


def test_a_pool_hands_out_each_row_once_in_an_order_of_the_seed(clicks: Path) -> None:
    log = Log.open(DataSection(files=(str(clicks),)))

    def rewards(seed: int) -> Any:
        sampler = LogReader(log, rows=64, steps=3000, seed=seed, pool=1000)
        sampler.start()
        parts: list[Any] = []
        while (done := sum(map(len, parts))) < 3000:
            parts.append(sampler.collect(done).columns["rewards"])
        return numpy.concatenate(parts)

    logged = log.whole()["reward"]
    assert sorted(rewards(0)) == sorted(logged)
    assert sorted(rewards(0)[:1000]) == sorted(logged[:1000])
    assert (rewards(0) == rewards(0)).all()
    assert (rewards(0) != rewards(1)).any()


def test_bandits_refuse_logs_of_episodes(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    parquet.write_table(pyarrow.table(EPISODES), path)
    with pytest.raises(RequestError, match="it is for bandits"):
        rlplug.run("linucb", data=path, options=OFF)


def test_rows_that_the_frozen_copy_disagrees_with_are_not_learned(clicks: Path) -> None:
    """With uniform propensities of 1/4, accepted rows have the weight 4."""
    options = {**OFF, "rows_per_update": 500, "offline_evaluation": "accepted"}
    result = rlplug.run("linucb", data=clicks, options=options)
    metrics = result.metrics
    assert 0.15 < metrics["ope/accepted_fraction"] < 0.35
    fraction = metrics["ope/accepted_fraction"]
    assert metrics["ope/accepted_per_rejected"] == pytest.approx(fraction / (1 - fraction))
    assert metrics["ope/importance_weight_mean"] == pytest.approx(4 * fraction)
    mean = (
        fraction * metrics["ope/reward_accepted"] + (1 - fraction) * metrics["ope/reward_rejected"]
    )
    assert mean == pytest.approx(metrics["ope/reward_all"])
    # It has learned: what it wants earns more than what was logged.
    assert metrics["ope/reward_accepted"] > 1 > metrics["ope/reward_all"]
    assert 0 < metrics["ope/value"] < metrics["ope/reward_accepted"]
    assert (metrics["ope/slate_size_min"], metrics["ope/slate_size_mean"]) == (4, 4)
    # Of each row in three features, the squares of which have the mean 1.
    learned = result.module.estimates().A.trace(axis1=1, axis2=2).sum()
    assert 3 * 4 * 3000 * 0.15 < learned < 3 * 4 * 3000 * 0.35
    every = rlplug.run("linucb", data=clicks, options={**options, "offline_evaluation": "all"})
    contexts = parquet.read_table(clicks).select([f"context_{one}" for one in range(3)])
    squares = (contexts.to_pandas().to_numpy() ** 2).sum()
    assert every.module.estimates().A.trace(axis1=1, axis2=2).sum() == pytest.approx(squares)


def test_weights_are_clipped_and_the_copy_renewed_after_so_much_data(clicks: Path) -> None:
    options = {
        **OFF,
        "rows_per_update": 500,
        "offline_evaluation": "accepted",
        "max_importance_weight": 2.5,
        "eval_model_update_critical_weight": 1000.0,
    }
    result = rlplug.run("linucb", data=clicks, options=options)
    # Batches of 500: after 1000, 2000 rows, before the next is weighed.
    assert result.metrics["ope/renewed"] == 2
    fraction = result.metrics["ope/accepted_fraction"]
    assert result.metrics["ope/importance_weight_mean"] == pytest.approx(2.5 * fraction)


def test_offline_evaluation_of_a_resumed_run_goes_on(home: Path, clicks: Path) -> None:
    options = {
        **OFF,
        "rows_per_update": 100,
        "offline_evaluation": "accepted",
        "eval_model_update_critical_weight": 700.0,
        "checkpoint.every": 1000,
    }
    whole = rlplug.run("linucb", data=clicks, addons=[CutOff()], options=options)
    before = set(home.glob("work/*"))
    with pytest.raises(ArithmeticError, match="cut off"):
        rlplug.run("linucb", data=clicks, addons=[CutOff(1500)], options=options)
    (folder,) = set(home.glob("work/*")) - before
    resumed = rlplug.resume(folder.name, addons=[CutOff()])
    for name, value in whole.metrics.items():
        if name.startswith("ope/"):
            assert resumed.metrics[name] == value, name
    assert numpy.array_equal(whole.module.estimates().A, resumed.module.estimates().A)


def test_uniform_propensities_are_assumed_only_when_said(tmp_path: Path, clicks: Path) -> None:
    path = tmp_path / "bare.parquet"
    parquet.write_table(parquet.read_table(clicks).drop(["propensity"]), path)
    options = {**OFF, "offline_evaluation": "all"}
    with pytest.raises(RequestError, match="needs propensities, and log 'bare' has none"):
        rlplug.run("linucb", data=path, options=options)
    assumed = rlplug.run("linucb", data=path, options={**options, "assume_uniform": True})
    logged = rlplug.run("linucb", data=clicks, options=options)
    assert assumed.metrics["ope/value"] == logged.metrics["ope/value"]


@pytest.mark.parametrize("is_continuous", [False, True])
def test_offline_evaluation_is_of_single_choices_among_arms(
    tmp_path: Path, is_continuous: bool
) -> None:
    table = pyarrow.table(EPISODES)
    if is_continuous:
        declared = spaces_as_metadata(Box(-99, 99, (1,)), Box(-1, 1, (1,)))
        table = table.drop(["episode", "terminated"]).replace_schema_metadata(declared)
    path = tmp_path / "log.parquet"
    parquet.write_table(table, path)
    with pytest.raises(RequestError, match=r"log 'log' has others\.\s+try: leave it out"):
        rlplug.run("bc", data=path, options={**OFF, "offline_evaluation": "all"})
