"""`rlplug ope` of policies that explore, and on logs of episodes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pytest
from pyarrow import parquet

import rlplug as library
from rlplug.errors import RequestError
from rlplug.runs.off_policy import Judging, judge_runs

pytestmark = pytest.mark.usefixtures("home")

OFF = {"tracking.enabled": False, "evaluation.episodes": 0}
FROM_LOG = {"tracking.enabled": False}
STILL = {**OFF, "learning_rate": 0.0, "sampling.num_envs": 4}
"""A policy that does not change: what it has recorded is what it would do."""

EPISODES = ("ppo", "a2c", "recurrent a2c", "continuous ppo")


def values(judged: Any) -> dict[str, float]:
    return {name: one.value for name, one in judged.judgement.estimates.items()}


def judged(run: Any, data: Path, **judging: Any) -> Any:
    options = judging.pop("options", {})
    logged_by = judging.pop("logged_by", "")
    (one,), _ = judge_runs(
        [run.run_id],
        [str(data)],
        options=options,
        logged_by=logged_by,
        checkpoint="last",
        judging=Judging(samples=20, **judging),
    )
    return one


def test_an_epsilon_greedy_policy_is_a_mixture_of_the_greedy_and_the_uniform_one(
    tmp_path: Path,
) -> None:
    random = numpy.random.default_rng(0)
    contexts, propensities = random.standard_normal((1500, 2)), numpy.array([0.5, 0.3, 0.2])
    actions = random.choice(3, 1500, p=propensities)
    rewards = contexts[:, 0] * (actions == 1) + random.standard_normal(1500)
    log = tmp_path / "log.npz"
    numpy.savez(
        log, context=contexts, action=actions, reward=rewards, propensity=propensities[actions]
    )
    options = {"tracking.enabled": False, "exploration_final_eps": 0.3, "learning_starts": 0}
    run = library.run("dqn", data=log, options=options)
    greedy, exploring = (values(judged(run, log, explores=one)) for one in (False, True))
    uniform = (rewards / (3 * propensities[actions])).mean()
    assert exploring["ips"] == pytest.approx(0.7 * greedy["ips"] + 0.3 * uniform)
    # A policy that chooses at random agrees with no row; the model's value is a mixture, too.
    assert numpy.isnan(exploring["replay"])
    assert min(greedy["dm"], 0.0) - 0.1 < exploring["dm"] < max(greedy["dm"], 0.0) + 0.1


@pytest.fixture
def recorded(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Any, Path]:
    """A run that did not learn, and its recording."""
    name = request.param
    options = {**STILL, "sampling.record": str(tmp_path / "log"), "n_steps": 64}
    if "ppo" in name:
        options |= {"batch_size": 64, "n_epochs": 1}
    if "recurrent" in name:
        options["memory"] = "gru"
    if "continuous" in name:
        options["n_steps"] = 208
    env = "Pendulum-v1" if "continuous" in name else "CartPole-v1"
    algorithm = name.split()[-1]
    steps = 4 * options["n_steps"] * (1 if "continuous" in name else 2)
    return library.run(algorithm, env, steps=steps, options=options), tmp_path / "log"


@pytest.mark.parametrize("recorded", EPISODES, indirect=True)
def test_a_policy_earned_what_its_own_recording_says(recorded: tuple[Any, Path]) -> None:
    run, folder = recorded
    one = judged(run, folder, explores=True, gamma=0.9)
    told = one.judgement
    assert told.effective == pytest.approx(told.rows, rel=1e-3)
    assert told.max_weight == pytest.approx(1.0, abs=2e-2)
    for name in ("trajectory_is", "trajectory_wis", "per_decision_is", "per_decision_wis"):
        assert told.estimates[name].value == pytest.approx(told.logged.value, rel=2e-3), name
    if "weighted_dr" in told.estimates:
        for name in ("sequential_dr", "weighted_dr"):
            assert told.estimates[name].value == pytest.approx(told.logged.value, rel=0.1), name
    (said,) = [one for one in told.warnings if "were left out" in one]
    assert said.startswith("4 of ")


@pytest.mark.parametrize("recorded", ["ppo"], indirect=True)
def test_propensities_may_be_those_of_a_run(recorded: tuple[Any, Path], tmp_path: Path) -> None:
    run, folder = recorded
    tables = [parquet.read_table(one) for one in sorted(folder.glob("*.parquet"))]
    bare = pyarrow.concat_tables(tables).drop(["propensity", "action_log_prob"])
    parquet.write_table(bare, tmp_path / "bare.parquet")
    with pytest.raises(RequestError, match=r"has no propensities[\s\S]*--logged-by RUN"):
        judged(run, tmp_path / "bare.parquet", explores=True)
    one = judged(run, folder, explores=True)
    other = judged(run, tmp_path / "bare.parquet", explores=True, logged_by=run.run_id)
    assert values(other) == pytest.approx(values(one), rel=1e-3)
    assert any("propensities are those of" in said for said in other.judgement.warnings)
    cloned = library.run("bc", data=tmp_path / "bare.parquet", steps=3000, options=FROM_LOG)
    imitated = judged(run, tmp_path / "bare.parquet", explores=True, logged_by=cloned.run_id)
    # The policy is close to uniform: so is its imitation.
    assert values(imitated)["per_decision_wis"] == pytest.approx(
        values(one)["per_decision_wis"], rel=0.2
    )


@pytest.mark.parametrize("recorded", ["continuous ppo"], indirect=True)
def test_continuous_actions_have_estimates_as_the_policy_explores(
    recorded: tuple[Any, Path], rlplug: Callable[..., Any], tmp_path: Path
) -> None:
    run, folder = recorded
    ask = ("ope", f"{run.run_id}@last", "--data", str(folder), "--no-save")
    done = rlplug(*ask)
    assert done.code == 2
    assert "a greedy policy takes exactly the logged ones with probability 0" in done.err
    done = rlplug(*ask, "--explore")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0].endswith("exploring, step 832")
    assert lines[1].startswith("log log: 4 episodes of 800 steps, whose own policy earned ")
    assert lines[1].endswith(" per episode")
    names = [line.split("  ")[0] for line in lines[4:8]]
    assert names == ["Trajectory IS", "Trajectory WIS", "Per-decision IS", "Per-decision WIS"]
    assert "episodes that it may choose  4 of 4" in done.out
    table = parquet.read_table(next(folder.glob("*.parquet"))).drop(["action_log_prob"])
    parquet.write_table(table, tmp_path / "bare.parquet")
    bare = ("ope", run.run_id, "--data", str(tmp_path / "bare.parquet"), "--explore")
    done = rlplug(*bare, "--assume-uniform", "--no-save")
    assert (done.code, "they cannot be assumed to be uniform" in done.err) == (2, True)


def test_a_log_without_an_end_has_no_episodes(tmp_path: Path) -> None:
    options = {**OFF, "learning_starts": 0, "sampling.record": str(tmp_path / "log")}
    run = library.run("dqn", "CartPole-v1", steps=8, options=options)
    with pytest.raises(RequestError, match=r"none of the 1 episodes of log 'log' ends in it"):
        judged(run, tmp_path / "log")
