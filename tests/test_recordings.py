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
from rlplug import ActInput, AddOn
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


def test_next_observations_are_those_that_were_acted_on_next(tmp_path: Path) -> None:
    options = {**OFF, "learning_starts": 50, "sampling.num_envs": 2}
    folder = tmp_path / "log"
    rlplug.run("dqn", "CartPole-v1", steps=200, options={**options, "sampling.record": str(folder)})
    rows = read(folder).whole()
    follow_each_other(rows)
    assert rows["terminated"].sum() == len(numpy.unique(rows["episode"])) - 2


def test_ties_share_the_probability(tmp_path: Path) -> None:
    from rlplug_linucb import Layout, LinUCBModule

    module = LinUCBModule(Layout(num_arms=4, context_dim=2))
    act = ActInput(numpy.ones((3, 2)), random=numpy.random.default_rng(0), wants_log_prob=True)
    assert numpy.exp(module.forward_exploration(act).extras["log_prob"]).tolist() == [0.25] * 3
    module.update(numpy.ones((1, 2)), numpy.array([1]), numpy.array([50.0]))
    acted = module.forward_exploration(act)
    assert acted.actions.tolist() == [1, 1, 1]
    assert acted.extras["log_prob"].tolist() == [0.0] * 3


def test_lints_estimates_the_share_of_its_draws() -> None:
    from rlplug_linucb import Layout, LinTSModule

    module = LinTSModule(Layout(num_arms=2, context_dim=1))
    module.update(numpy.ones((20, 1)), numpy.array([0, 1] * 10), numpy.array([1.0, 0.8] * 10))
    observations = numpy.ones((4000, 1))
    act = ActInput(observations, random=numpy.random.default_rng(0), wants_log_prob=True)
    acted = module.forward_exploration(act)
    chances = numpy.exp(acted.extras["log_prob"])
    for arm in (0, 1):
        # 200 draws: a deviation of 0.035 each, of their mean over 1000 rows much less.
        share = (acted.actions == arm).mean()
        assert chances[acted.actions == arm].mean() == pytest.approx(share, abs=0.02)


def test_epsilon_greedy_and_softmax_tell_their_probabilities() -> None:
    from rlplug_bandits.config import EpsilonGreedyConfig, SoftmaxConfig
    from rlplug_bandits.randomized import EpsilonGreedyModule, SoftmaxModule

    mask = numpy.array([[1, 1, 0, 1]])
    greedy = EpsilonGreedyModule(4, EpsilonGreedyConfig(epsilon=0.3))
    greedy.update([0, 1, 2, 3], [1.0, 2.0, 9.0, 0.0])
    # Of three arms that are present, 1 is the best.
    assert greedy.probabilities(1, mask)[0].tolist() == pytest.approx([0.1, 0.8, 0.0, 0.1])
    softmax = SoftmaxModule(4, SoftmaxConfig(temperature=1.0))
    softmax.update([0, 1, 2, 3], [0.0, numpy.log(2.0), 9.0, 0.0])
    assert softmax.probabilities(1, mask)[0].tolist() == pytest.approx([0.25, 0.5, 0.0, 0.25])


def test_dqn_tells_the_probabilities_of_epsilon_greedy(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    options = {
        **OFF,
        "learning_starts": 100,
        "exploration_initial_eps": 0.2,
        "exploration_final_eps": 0.2,
        "sampling.record": str(folder),
    }
    rlplug.run("dqn", "CartPole-v1", steps=300, options=options)
    propensity = read(folder).whole()["propensity"]
    assert propensity[:100] == pytest.approx(0.5)
    assert set(numpy.round(propensity[100:], 6)) == {0.1, 0.9}


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
    done = rlplug("eval", "last", "--episodes", "12", "--record", str(folder), "--no-record")
    assert done.code == 0, done.err
    rows = read(folder).whole()
    assert len(numpy.unique(rows["episode"])) == 12
    assert (rows["propensity"] == 1).all()
    mean = len(rows) / 12
    assert f"length              {mean:.4g}" in done.out
    again = rlplug("eval", "last", "--record", str(folder), "--no-record")
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


def test_workers_that_do_not_wait_are_recorded_in_whole_episodes(tmp_path: Path) -> None:
    options = {
        **OFF,
        "sampling.num_envs": 3,
        "sampling.backend": "workers",
        "sampling.num_epoch_samples": 60,
        "batch_size": 32,
        "sampling.record": str(tmp_path / "log"),
    }
    run = rlplug.run("ppo", "CartPole-v1", steps=400, options=options)
    log = read(tmp_path / "log")
    assert log.rows == run.step
    follow_each_other(log.whole())
    assert ((log.whole()["propensity"] > 0) & (log.whole()["propensity"] < 1)).all()


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
    env = "rlplug.testing.tensors:TensorCartPole"
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


@pytest.mark.filterwarnings("ignore::UserWarning:minari")
def test_minari_data_sets_are_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    env = gymnasium.make("CartPole-v1")
    from minari.data_collector import EpisodeBuffer

    buffers = []
    for seed in (1, 2):
        seen, _ = env.reset(seed=seed)
        rows: dict[str, list[Any]] = {
            "observations": [seen],
            "actions": [],
            "rewards": [],
            "terminations": [],
            "truncations": [],
        }
        ended = False
        while not ended:
            action = len(rows["actions"]) % 2
            seen, reward, ended, cut, _ = env.step(action)
            for name, value in zip(rows, (seen, action, reward, ended, cut), strict=True):
                rows[name].append(value)
        buffers.append(EpisodeBuffer(id=seed - 1, **rows))
    minari.create_dataset_from_buffers(
        "cartpole/two-v0",
        buffers,
        env="CartPole-v1",
        eval_env="CartPole-v1",
        algorithm_name="turns",
        author="nobody",
        author_email="nobody@example.org",
        code_permalink="https://example.org",
        description="Two episodes.",
        data_format="arrow",
    )
    log = Log.open(DataSection(files=("cartpole/two-v0",), format="minari"))
    taken = log.whole()
    assert log.rows == sum(len(one.actions) for one in buffers)
    first = numpy.array(buffers[0].observations)
    assert (taken["context"][: len(first) - 1] == first[:-1]).all()
    assert (taken["next_context"][: len(first) - 1] == first[1:]).all()
    assert taken["terminated"].sum() == 2
    assert taken["episode"].tolist() == [0] * (len(first) - 1) + [1] * (log.rows - len(first) + 1)
    for start in (1, len(first) - 1, len(first)):
        (rest,) = log.read(start, log.rows)
        assert rest["context"].tolist() == taken["context"][start:].tolist()
    options = {**OFF, "data.format": "minari", "batch_size": 16}
    learned = rlplug.run("dqn", data="cartpole/two-v0", steps=200, options=options)
    assert learned.step == 200
    cloned = rlplug.run("bc", data="cartpole/two-v0", steps=400, options=options)
    (judged,), _ = judge_runs(
        [learned.run_id],
        ["cartpole/two-v0"],
        options={"format": "minari"},
        checkpoint="last",
        judging=Judging(explores=True, samples=10),
        logged_by=cloned.run_id,
    )
    assert judged.judgement.rows == 2
    assert judged.judgement.estimates["trajectory_wis"].value > 0
    with pytest.raises(RequestError, match=r"no local Minari data set 'cartpole/tow-v0'. Did you"):
        Log.open(DataSection(files=("cartpole/tow-v0",), format="minari"))


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
