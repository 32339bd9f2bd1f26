"""Runs with several agents: options, checkpoints, resume, evaluation, policies, serving."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pytest
import torch

import rlplug as library
from examples.agent_tasks import MatrixGame, shortest_meeting
from rlplug.checkpoint.manifest import checkpoints_in
from rlplug.config.toml import bare_key
from rlplug.errors import RequestError
from rlplug.tracking.evaluations import rows_of
from tests.agent_runs import (
    ADVERSARY,
    COUNTDOWN,
    MATRIX,
    MEETING,
    RELAY,
    UNLIKE,
    assert_same,
    checkpoint,
    told,
    trained,
    weights,
)

if TYPE_CHECKING:
    from tests.conftest import Outcome

Command = Callable[..., "Outcome"]


# -- what runs -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "env", "options"),
    [
        ("ppo", RELAY, {}),
        ("ppo", UNLIKE, {}),
        ("ppo", COUNTDOWN, {}),
        ("ppo", RELAY, {"memory": "lstm", "memory_size": 8, "truncated_bptt": 4}),
        ("ppo", MEETING, {"env__normalize_observation": True, "env__normalize_reward": True}),
        ("dqn", COUNTDOWN, {}),
    ],
)
def test_algorithms_learn_with_several_agents(
    algorithm: str, env: str, options: dict[str, Any], home: Path
) -> None:
    run = trained(env, algorithm, steps=128, **options)
    assert run.status == "FINISHED"
    assert any(name.endswith("loss") for name in run.metrics)
    found = library.evaluate(run.folder, episodes=3, checkpoint="last")
    assert len(found.agent_returns) == 2


def test_metrics_name_the_modules(home: Path) -> None:
    run = trained(RELAY, modules__one__agents="first", modules__two__agents="second")
    names = set(run.metrics)
    assert {"train/one/policy_loss", "train/two/policy_loss", "rollout/one/return_mean"} <= names
    assert run.metrics["rollout/two/return_mean"] == 90
    assert run.metrics["rollout/return_mean"] == (3 + 90) / 2
    assert run.metrics["eval/agents/second/return_mean"] == 90


def test_modules_that_are_not_trained_keep_their_weights(home: Path) -> None:
    sections: dict[str, Any] = {"modules__one__agents": "first", "modules__two__agents": "second"}
    run = trained(RELAY, learner__modules_to_train=["two"], **sections)
    longer = trained(RELAY, steps=512, learner__modules_to_train=["tw*"], **sections)
    one, other = weights(run), weights(longer)
    assert all(torch.equal(part, other["one"][name]) for name, part in one["one"].items())
    assert not all(torch.equal(part, other["two"][name]) for name, part in one["two"].items())
    assert not any("/one/" in name for name in run.metrics if not name.startswith("eval/"))
    assert run.metrics["rollout/two/return_mean"] == run.metrics["rollout/return_mean"] == 90
    assert "one: not trained" in run.engine.split("; ")


def test_agents_with_one_module_learn_to_meet(home: Path) -> None:
    run = library.run(
        "ppo",
        MEETING,
        steps=16_000,
        seed=1,
        options={
            "tracking.enabled": False,
            "evaluation.episodes": 0,
            "sampling.num_envs": 8,
            "env.cells": 4,
            "n_steps": 32,
            "batch_size": 256,
            "learning_rate": 2e-3,
        },
    )
    found = library.evaluate(run.folder, episodes=100, checkpoint="last")
    assert found.metrics["eval/return_mean"] == pytest.approx(shortest_meeting(4), abs=0.1)


# -- resume --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "env", "options"),
    [
        ("ppo", ADVERSARY, {}),
        ("ppo", COUNTDOWN, {"sampling__num_envs": 2}),
        ("dqn", RELAY, {}),
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_one(
    algorithm: str, env: str, options: dict[str, Any], home: Path
) -> None:
    whole = trained(env, algorithm, steps=256, **options)
    part = trained(env, algorithm, steps=128, **options)
    rest = library.resume(part.run_id, steps=256)
    assert_same(weights(whole), weights(rest))


# -- policies --------------------------------------------------------------------------------------


def test_of_evaluations_that_are_equal_the_latest_is_used_everywhere(store_root: Path) -> None:
    # What one wins the other loses: the mean over agents is always 0.
    run = trained(
        MATRIX,
        steps=192,
        n_steps=8,
        batch_size=16,
        tracking__enabled=True,
        evaluation__every=64,
        checkpoint__every=64,
        checkpoint__keep=1,
        checkpoint__keep_best=1,
    )
    assert run.metrics["eval/best_step"] == run.step
    assert library.load(run.folder, checkpoint="best").step == run.step
    assert checkpoints_in(run.folder / "checkpoints") == [checkpoint(run)]


def test_a_policy_takes_and_gives_mappings_by_agent(home: Path) -> None:
    policy = library.load(trained(UNLIKE).folder)
    one = policy.predict({"first": numpy.zeros(1, numpy.float32)})
    assert set(one) == {"first"}
    assert one["first"] in (0, 1)
    several = policy.predict(
        {"first": numpy.zeros((3, 1), numpy.float32), "second": numpy.zeros((3, 2), numpy.float32)}
    )
    assert {agent: actions.shape for agent, actions in several.items()} == {
        "first": (3,),
        "second": (3,),
    }
    with pytest.raises(RequestError, match=r"no agent 'frist'\. Did you mean 'first'"):
        policy.predict({"frist": numpy.zeros(1, numpy.float32)})
    with pytest.raises(RequestError, match="must be a mapping by agent"):
        policy.predict(numpy.zeros(1, numpy.float32))


def test_opponents_can_act_at_random(home: Path) -> None:
    run = trained(MEETING)
    found = library.evaluate(run.folder, episodes=4, opponents={"agent_1": "random"})
    assert len(found.agent_returns["agent_0"]) == 4
    for opponents, said in (
        ({"agent_7": "random"}, "there is no agent 'agent_7'"),
        ({"agent_1": "clever"}, "there is no run 'clever'"),
        ({"agent_0": "random", "agent_1": "random"}, "all agents are opponents"),
    ):
        with pytest.raises(RequestError, match=said):
            library.evaluate(run.folder, episodes=4, opponents=opponents)


def test_the_command_line_runs_evaluates_and_shows(rlplug: Command, home: Path) -> None:
    quick = ("--set", "n_steps=32", "--set", "batch_size=32", "--set", "evaluation.episodes=2")
    done = rlplug("run", "--algo", "ppo", "--env", UNLIKE, "--steps", "64", *quick, "--quiet")
    assert done.code == 0, done.err
    shown = rlplug("eval", "last", "--episodes", "2", "--opponent", "second=random")
    assert shown.code == 0, shown.err
    assert "return of first" in shown.out
    assert "opponents           second=random" in shown.out
    kept = sorted(home.glob("*/*/evaluations/*.json"))
    assert json.loads(kept[0].read_text())["opponents"] == {"second": "random"}
    names = {row[0] for row in rows_of(kept[0])[1]}
    assert "later_eval/opponents/return_mean" in names
    assert "later_eval/return_mean" not in names
    assert rlplug("show", "last").code == 0
    for given, said in (
        (("second",), "--opponent takes AGENT=WHO"),
        (("second=",), "--opponent takes AGENT=WHO"),
        (("=random",), "no agent ''"),
        (("second=random", "second=last"), "second"),
    ):
        options = (part for one in given for part in ("--opponent", one))
        wrong = rlplug("eval", "last", "--episodes", "2", *options)
        assert (wrong.code, said in wrong.err) == (2, True), wrong.err
    wrong = rlplug("eval", "last", "--save-episodes", "log")
    assert wrong.code == 2
    assert "logs are of one" in wrong.err


class Slashed(MatrixGame):
    """Agents with slashes in their names."""

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = ["red/1", "blue/1"]


def test_the_policy_of_one_agent_of_several_is_exported(
    rlplug: Command, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = trained(f"{__name__}:Slashed", steps=32)
    which = rlplug("export", "last")
    assert which.code == 2
    assert "the policy has several agents (red/1, blue/1), and a file is of one." in which.err
    assert "try: --agent red/1" in which.err
    near = rlplug("export", "last", "--agent", "blue")
    assert near.code == 2
    assert "there is no agent 'blue'. Did you mean 'blue/1'?" in near.err
    done = rlplug("export", "last", "--agent", "blue/1")
    assert done.code == 0, done.err
    (file,) = tmp_path.glob("*.pt2")
    assert file.name.endswith(f"-{run.step}-blue_1.pt2")
    program = torch.export.load(file).module()
    policy = library.load(run.folder).agents["blue/1"]
    seen = policy.observation_space.sample()
    (chosen,) = program(observation=torch.as_tensor(seen)[None]).tolist()
    assert chosen == policy.predict(seen)


# -- bad input -------------------------------------------------------------------------------------


EACH: dict[str, Any] = {"modules__one__agents": "first", "modules__two__agents": "second"}
ALL: dict[str, Any] = {"modules__one__agents": "*"}


@pytest.mark.parametrize(
    ("env", "algorithm", "options", "said"),
    [
        (MEETING, "linucb", {}, ("it is for bandits, which have one agent", "ppo", "vdn")),
        (MEETING, "bc", {}, ("algorithm 'bc'", "learns from a log only")),
        (MEETING, "ppo", {"learner__modules_to_train": []}, ("must not be empty",)),
        (
            MEETING,
            "ppo",
            {"learner__modules_to_train": ["defualt"]},
            ("no module is named 'defualt', did you mean 'default'?",),
        ),
        (RELAY, "ppo", {"modules__one__agents": "first"}, ("agent 'second' is in no module",)),
        (
            RELAY,
            "ppo",
            {**ALL, "modules__one__learnin_rate": 1},
            ("did you mean 'learning_rate'?",),
        ),
        (
            RELAY,
            "ppo",
            {**ALL, "modules__one__gamma": 7.0, "modules__one__algorithm": "dqn"},
            ("2 problems", "modules.one.algorithm   unknown option"),
        ),
        (
            "CartPole-v1",
            "ppo",
            {**ALL, "learner__modules_to_train": ["one"]},
            ("2 problems", "is for environments with several agents; 'CartPole-v1' has one"),
        ),
        (
            MEETING,
            "ppo",
            {"sampling__max_trajectory_length": 5},
            ("sampling.max_trajectory_length", "cannot be used with several agents"),
        ),
        (RELAY, "ppo", {**EACH, "modules__one__n_steps": 64}, ("different lengths: one 64, two",)),
        (COUNTDOWN, "ppo", {"memory": "gru"}, ("act in turn", "memory")),
        (
            RELAY,
            "ppo",
            {**EACH, "batch_size": 1024},
            ("module 'one': batch_size = 1,024 is larger",),
        ),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_recorded(
    env: str, algorithm: str, options: dict[str, Any], said: tuple[str, ...], home: Path
) -> None:
    message = told(env, algorithm, **options)
    assert all(words in message for words in said), message
    assert not any(home.glob("*/*/config.toml"))


@pytest.mark.parametrize(
    "module_id", ["a*", "a\nb", "", " ", "..", "/a", "a//b", "../../a", "all", "a" * 201]
)
def test_ids_that_metrics_cannot_have_are_refused_before_anything_is_recorded(
    module_id: str, rlplug: Command, home: Path, tmp_path: Path
) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        f'[run]\nalgorithm = "ppo"\nenv = "{MEETING}"\nsteps = 64\n'
        f'[modules.{json.dumps(module_id)}]\nagents = "agent_*"\n'
    )
    done = rlplug("run", "--config", str(file))
    assert done.code == 2
    assert f"modules.{bare_key(module_id)}   " in done.err
    assert not (home / "work").exists()
