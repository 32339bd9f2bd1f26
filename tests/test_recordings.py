"""Recordings: what acted, with which probability, read back as a log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy
import pytest
import torch
from gymnasium import spaces

import rlplug
from rlplug import AddOn
from rlplug.config.sections import DataSection
from rlplug.errors import RequestError
from rlplug.logs import Log
from rlplug.logs.recording import Recording
from rlplug.runs.off_policy import Judging, judge_runs

pytestmark = pytest.mark.usefixtures("home")

OFF = {"tracking.enabled": False, "evaluation.episodes": 0}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RLPLUG_HOME", str(tmp_path / "home"))
    return tmp_path


def read(folder: Path) -> Any:
    return Log.open(DataSection(files=(str(folder),)))


RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "linucb": ("LinearBandit-v0", {}),
    "lints": ("LinearBandit-v0", {}),
    "epsilon-greedy": ("MultiArmedBandit-v0", {}),
    "softmax": ("MultiArmedBandit-v0", {}),
    "dqn": ("CartPole-v1", {"learning_starts": 50}),
    "ppo": ("CartPole-v1", {"n_steps": 32, "batch_size": 32, "sampling.num_envs": 2}),
    "a2c": ("CartPole-v1", {"sampling.num_envs": 2}),
}


@pytest.mark.parametrize(
    "name",
    [
        *("linucb", "dqn", "ppo"),
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in ("lints", "epsilon-greedy", "softmax", "a2c")
        ),
    ],
)
def test_recording_changes_nothing_and_holds_probabilities(tmp_path: Path, name: str) -> None:
    env, options = RUNS[name]
    arguments: dict[str, Any] = {"steps": 256, "options": {**OFF, **options}}
    plain = rlplug.run(name, env, **arguments)
    arguments["options"]["sampling.record"] = str(tmp_path / "log")
    recorded = rlplug.run(name, env, **arguments)
    for key, tensor in plain.module.state_dict().items():
        assert torch.equal(tensor, recorded.module.state_dict()[key]), key
    log = read(tmp_path / "log")
    assert log.rows == recorded.step
    rows = log.whole()
    propensity = rows["propensity"]
    assert ((propensity > 0) & (propensity <= 1)).all()
    assert numpy.allclose(numpy.log(propensity), rows["action_log_prob"])
    one = gymnasium.make(env if env == "CartPole-v1" else f"rlplug.bandits:{env}")
    assert log.action_space == one.action_space
    assert log.observation_space.shape == one.observation_space.shape
    assert log.is_bandit == (env != "CartPole-v1")
    assert rows["reward"].mean() == pytest.approx(
        1.0 if env == "CartPole-v1" else recorded.metrics["rollout/reward_mean"], abs=0.5
    )


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


class FromFive(gymnasium.Env[Any, Any]):
    """Actions 5 to 7, of which the last is worth 1, the others nothing; episodes of two steps."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), numpy.float32)
    action_space = spaces.Discrete(3, start=5)
    _step = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._step = 0
        return numpy.zeros(1, numpy.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self._step += 1
        return numpy.zeros(1, numpy.float32), float(action == 7), self._step == 2, False, {}


def test_recordings_of_actions_that_do_not_begin_at_0_are_learned_and_judged(
    tmp_path: Path,
) -> None:
    folder = str(tmp_path / "log")
    options = {"n_steps": 128, "batch_size": 64, "evaluation.episodes": 0}
    rlplug.run("ppo", FromFive, steps=128, options={**options, "sampling.record": folder})
    rows = read(tmp_path / "log").whole()
    assert set(rows["action"].tolist()) == {5, 6, 7}
    assert set(rows.action_index.tolist()) == {0, 1, 2}
    options = {"learning_rate": 0.01, "target_update_interval": 10, "checkpoint.minutes": 0.0}
    learned = rlplug.run("dqn", data=folder, steps=1000, options=options)
    policy = rlplug.load(learned.run_id, checkpoint="last")
    assert policy.predict(numpy.zeros((1, 1), numpy.float32)).tolist() == [7]
    (judged,), _ = judge_runs(
        [learned.run_id], [folder], checkpoint="last", judging=Judging(samples=10)
    )
    # Two steps, each worth 1.
    assert judged.judgement.estimates["dm"].value == pytest.approx(2.0, abs=0.05)


def test_a_resumed_run_records_each_row_once(tmp_path: Path, home: Path) -> None:
    options = {**OFF, "checkpoint.every": 50}
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    arguments: dict[str, Any] = {"env": "LinearBandit-v0", "steps": 200}
    rlplug.run(
        "linucb", addons=[CutOff()], options={**options, "sampling.record": str(whole)}, **arguments
    )
    before = set((home / "home").glob("work/*"))
    with pytest.raises(ArithmeticError, match="cut off"):
        rlplug.run(
            "linucb",
            addons=[CutOff(120)],
            options={**options, "sampling.record": str(cut)},
            **arguments,
        )
    (folder,) = set((home / "home").glob("work/*")) - before
    rlplug.resume(folder.name, addons=[CutOff()])
    one, other = read(whole).whole(), read(cut).whole()
    for name, column in one.columns.items():
        assert numpy.array_equal(column, other[name]), name


def test_a_recording_goes_on_after_any_row_and_forgets_the_later_ones(tmp_path: Path) -> None:
    context = spaces.Box(-numpy.inf, numpy.inf, (1,), numpy.float64)
    arms = spaces.Discrete(2)

    def record(recording: Recording, *rewards: float) -> None:
        columns = {"action": numpy.zeros(len(rewards), int), "reward": numpy.array(rewards)}
        recording.add(numpy.zeros((len(rewards), 1)), columns)
        recording.flush()

    first = Recording(tmp_path, context, arms)
    first.start()
    for rewards in ((0.0, 1.0), (2.0,), (3.0, 4.0)):
        record(first, *rewards)
    assert first.rows == 5
    record(first)
    first.flush()
    names = ["part-000000000000.parquet", "part-000000000002.parquet", "part-000000000003.parquet"]
    assert sorted(file.name for file in tmp_path.iterdir()) == names
    second = Recording(tmp_path, context, arms)
    second.resume(3)
    assert sorted(file.name for file in tmp_path.iterdir()) == names[:2]
    record(second, 30.0)
    assert second.rows == 4
    log = Log.open(DataSection(files=(str(tmp_path),)))
    assert log.whole()["reward"].tolist() == [0.0, 1.0, 2.0, 30.0]
    with pytest.raises(RequestError, match=rf"has a recording already \({names[0]}\)"):
        Recording(tmp_path, context, arms).start()


def test_evaluations_are_recorded_with_the_command_line(
    tmp_path: Path, rlplug: Callable[..., Any]
) -> None:
    train = ("run", "--algo", "dqn", "--steps", "300", "--set", "learning_starts=100")
    trained = rlplug(*train, "--set", "tracking.enabled=false", "--quiet")
    assert trained.code == 0, trained.err
    folder = tmp_path / "log"
    done = rlplug("eval", "last", "--episodes", "12", "--save-episodes", str(folder), "--no-save")
    assert done.code == 0, done.err
    rows = read(folder).whole()
    assert len(numpy.unique(rows["episode"])) == 12
    assert (rows["propensity"] == 1).all()
    mean = len(rows) / 12
    assert f"length              {mean:.4g}" in done.out
    again = rlplug("eval", "last", "--save-episodes", str(folder), "--no-save")
    assert (again.code, "has a recording already" in again.err) == (2, True)


def test_workers_in_lock_step_record_what_one_process_does(tmp_path: Path) -> None:
    options = {**OFF, "sampling.num_envs": 2, "learning_starts": 50, "batch_size": 16}
    workers = {"sampling.backend": "workers", "sampling.force_sync": True}
    for name, more in (("one", {}), ("other", workers)):
        record = {"sampling.record": str(tmp_path / name)}
        rlplug.run("dqn", "CartPole-v1", steps=200, options={**options, **more, **record})
    one, other = (read(tmp_path / name).whole() for name in ("one", "other"))
    assert set(one.columns) == set(other.columns)
    for name, column in one.columns.items():
        assert numpy.array_equal(column, other[name]), name


def follow_each_other(rows: Any) -> None:
    """Steps of each episode follow each other, and only the last one ends it."""
    for episode in numpy.unique(rows["episode"]):
        there = rows["episode"] == episode
        context, following = rows["context"][there], rows["next_context"][there]
        assert (following[:-1] == context[1:]).all()
        ended = rows["terminated"][there] | rows["truncated"][there]
        assert not ended[:-1].any()


@pytest.mark.parametrize("name", ["dqn", "ppo"])
def test_environments_of_tensors_are_recorded(tmp_path: Path, name: str) -> None:
    options: dict[str, Any] = {**OFF, "sampling.num_envs": 4, "batch_size": 32}
    options |= {"learning_starts": 50} if name == "dqn" else {"n_steps": 40}
    arguments: dict[str, Any] = {"steps": 320}
    env = "examples.tensor_tasks:TensorCartPole"
    plain = rlplug.run(name, env, options=options, **arguments)
    options["sampling.record"] = str(tmp_path / "log")
    recorded = rlplug.run(name, env, options=options, **arguments)
    for key, tensor in plain.module.state_dict().items():
        assert torch.equal(tensor, recorded.module.state_dict()[key]), key
    log = read(tmp_path / "log")
    rows = log.whole()
    assert log.rows == 320
    follow_each_other(rows)
    assert ((rows["propensity"] > 0) & (rows["propensity"] <= 1)).all()
    assert rows["terminated"].any()


def test_a_run_that_learns_from_a_log_has_nothing_to_record(tmp_path: Path) -> None:
    numpy.savez(tmp_path / "log.npz", context=numpy.eye(2), action=[0, 1], reward=[0.0, 1.0])
    options = {**OFF, "sampling.record": str(tmp_path / "log")}
    del options["evaluation.episodes"]
    with pytest.raises(RequestError, match=r"sampling\.record +has no effect"):
        rlplug.run("linucb", data=tmp_path / "log.npz", options=options)


@pytest.mark.parametrize("env", ["LinearBandit-v0", "FeatureBandit-v0"])
def test_what_is_learned_from_a_recording_is_what_was_learned_while_acting(
    tmp_path: Path, env: str
) -> None:
    folder = tmp_path / "log"
    acted = rlplug.run("linucb", env, steps=300, options={**OFF, "sampling.record": str(folder)})
    options = {"tracking.enabled": False}
    learned = rlplug.run("linucb", data=folder, options=options)
    assert learned.step == 300
    one, other = acted.module.estimates(), learned.module.estimates()
    assert numpy.allclose(one.A, other.A)
    assert numpy.allclose(one.theta, other.theta)
