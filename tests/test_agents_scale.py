"""Runs with several agents over several processes: learners, workers, and Ray runners."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import rlplug
from rlplug.errors import EnvironmentFailedError
from rlplug.trees import read_tree
from tests.agent_runs import COUNTDOWN, RELAY, SPREAD

TWO = {"modules.one.agents": "first", "modules.two.agents": "second"}
QUICK: dict[str, Any] = {"num_envs": 4, "evaluation.episodes": 0, "tracking.enabled": False}
REPLAY = {"batch_size": 16, "learning_starts": 64, "exploration_initial_eps": 0.05}
OPTIONS: dict[str, Any] = {
    "ppo": {"n_steps": 16, "batch_size": 16, "n_epochs": 2},
    "dqn": REPLAY,
    "vdn": {**REPLAY, "mixing": "qmix"},
}
LEAGUE = {
    "league.every": 40,
    "league.pool": 2,
    "league.draw": "prioritized",
    "league.self_play": 0.2,
}
RAY = {"scale.engine": "ray", "scale.runner_cpus": 0.5}
TOGETHER = {"central_critic": True, **LEAGUE}


def trained(algorithm: str = "ppo", env: str = RELAY, /, **options: Any) -> rlplug.RunResult:
    chosen = {**QUICK, **OPTIONS[algorithm], **options}
    return rlplug.run(algorithm, env, steps=4096, options=chosen)


def weights(run: rlplug.RunResult, at: int = -1) -> dict[str, Any]:
    """Tensors by module and name, those of the copies of a league, too; in the newest checkpoint,
    or another one."""
    folder = sorted((run.folder / "checkpoints").glob("step-*"))[at]
    found = {
        f"{module_id}.{name}": tensor
        for module_id, state in read_tree(folder / "policy")["modules"].items()
        for name, tensor in state.items()
    }
    for one in read_tree(folder / "training")["run"].get("league", {}).get("copies", ()):
        for module_id, state in one["modules"].items():
            found |= {f"{one['number']}.{module_id}.{name}": part for name, part in state.items()}
    return found


def gone_on(run: rlplug.RunResult) -> rlplug.RunResult:
    """Goes on from the first of two checkpoints of a run, as if it had been killed after it."""
    first, second = sorted((run.folder / "checkpoints").glob("step-*"))
    shutil.rmtree(second)
    rest = rlplug.resume(run.run_id)
    assert rest.step == run.step > int(first.name.removeprefix("step-"))
    return rest


def assert_same_metrics(one: rlplug.RunResult, other: rlplug.RunResult, *starts: str) -> None:
    """All but times are equal, or those whose names start so."""
    for name, value in one.metrics.items():
        if name.startswith(starts) if starts else not name.startswith("time/"):
            assert other.metrics[name] == value, name


def difference(here: dict[str, Any], there: dict[str, Any]) -> float:
    """The largest difference between weights."""
    assert here.keys() == there.keys()
    return max(float((value - there[name]).abs().max()) for name, value in here.items())


NORMALIZED = {"env.normalize_observation": True, "env.normalize_reward": True}


def test_two_learners_share_modules_whose_agents_come_and_go_and_go_on_exactly(
    store_root: Path,
) -> None:
    halves = {"run.max_updates": 4, "checkpoint.updates": 2}
    whole = trained(**NORMALIZED, **TWO, **halves, **{"scale.learners": 2})
    assert whole.metrics["rollout/two/length_mean"] == 3
    assert whole.metrics["rollout/two/return_mean"] == 20 + 30 + 40
    expected, before = weights(whole), weights(whole, at=0)
    for module_id in ("one", "two"):
        assert difference(
            {name: one for name, one in expected.items() if name.startswith(module_id)},
            {name: one for name, one in before.items() if name.startswith(module_id)},
        )
    assert difference(expected, weights(gone_on(whole))) == 0.0


def in_a_league(**spread: Any) -> rlplug.RunResult:
    """A run of two learners with a state for the critic, and copies to play against."""
    options = {**TOGETHER, "run.max_updates": 6, "checkpoint.updates": 3, "scale.learners": 2}
    return trained("ppo", COUNTDOWN, **options, **spread)


def test_two_learners_share_a_state_and_a_league_and_go_on_exactly(store_root: Path) -> None:
    whole = in_a_league()
    expected, before = weights(whole), weights(whole, at=0)
    assert whole.metrics["league/copies"] > 2
    # The copies that the league keeps are among the weights, by their numbers.
    assert expected.keys() != before.keys()
    rest = gone_on(whole)
    assert difference(expected, weights(rest)) == 0.0
    assert_same_metrics(whole, rest, "league/", "rollout/")


# -- worker processes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "env", "sections"),
    [
        ("ppo", RELAY, TWO),
        ("ppo", COUNTDOWN, TOGETHER),
        pytest.param("ppo", SPREAD, {"central_critic": True}, marks=pytest.mark.long),
        ("vdn", RELAY, {}),
    ],
)
def test_worker_processes_give_bit_for_bit_what_this_process_gives_also_when_resumed(
    algorithm: str, env: str, sections: dict[str, Any], store_root: Path
) -> None:
    workers = {"sampling.backend": "workers", "sampling.num_workers": 2}
    whole = trained(algorithm, env, **sections, **{"run.max_updates": 4})
    part = trained(algorithm, env, **sections, **workers, **{"run.max_updates": 2})
    rest = rlplug.resume(part.run_id, options={"run.max_updates": 4}, allow_drift=True)
    assert whole.step == rest.step > part.step
    assert difference(weights(whole), weights(rest)) == 0.0
    assert_same_metrics(whole, rest)


def test_an_environment_that_fails_or_lies_in_a_worker_ends_the_run_with_its_name() -> None:
    options = {**QUICK, "n_steps": 16, "batch_size": 16, "sampling.backend": "workers"}
    for lie, said in (
        (
            "raises",
            r"environment .*Relay' \(1 of 4\) failed in step after 0 steps: ValueError: broken\.",
        ),
        ("stranger", "agent 'stranger' is not among its possible_agents"),
    ):
        with pytest.raises(EnvironmentFailedError, match=said):
            rlplug.run("ppo", RELAY, steps=64, options={**options, "env.lie": lie})


# -- runners -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("cluster")
def test_one_runner_gives_bit_for_bit_what_this_process_gives_also_when_resumed(
    store_root: Path,
) -> None:
    chosen = {**TWO, **NORMALIZED, "modules.two.gamma": 0.9, "learner.modules_to_train": ["two"]}
    whole = trained(**chosen, **{"run.max_updates": 4})
    part = trained(**chosen, **RAY, **{"run.max_updates": 2})
    rest = rlplug.resume(part.run_id, options={"run.max_updates": 4}, allow_drift=True)
    assert whole.step == rest.step > part.step
    assert difference(weights(whole), weights(rest)) == 0.0
    assert_same_metrics(whole, rest)


@pytest.mark.long
@pytest.mark.parametrize(
    ("algorithm", "env", "sections"),
    [
        ("vdn", RELAY, {}),
        ("ppo", COUNTDOWN, TOGETHER),
    ],
)
@pytest.mark.usefixtures("cluster")
def test_one_runner_has_the_team_and_the_league_of_this_process(
    algorithm: str, env: str, sections: dict[str, Any], store_root: Path
) -> None:
    options = {**sections, "run.max_updates": 4}
    here = trained(algorithm, env, **options)
    there = trained(algorithm, env, **options, **RAY, **{"scale.max_staleness": 0})
    assert difference(weights(here), weights(there)) == 0.0
    assert_same_metrics(here, there)
