"""Vector environments of others: Gymnasium's AsyncVectorEnv, and EnvPool if it is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

import rlplug as rl
from rlplug.envs import Environments, make_environments
from rlplug.envs.saving import EnvironmentSaver

if TYPE_CHECKING:
    from tests.conftest import Outcome

Command = Callable[..., "Outcome"]


@contextmanager
def made(*args: Any, **options: Any) -> Iterator[Environments]:
    environments = make_environments(*args, {}, **options)
    try:
        yield environments
    finally:
        environments.close()


def told_by(vectorization: str) -> list[Any]:
    with made("CartPole-v1", 3, vectorization=vectorization) as environments:
        vector = environments.vector
        told, ended = [environments.reset(3)[0].tolist()], 0
        for step in range(60):
            actions = numpy.full(3, step % 3 > 0, numpy.int64)
            seen, rewards, terminated, truncated, infos = vector.step(actions)
            told += [seen.tolist(), rewards.tolist(), terminated.tolist(), truncated.tolist()]
            for env in numpy.flatnonzero(terminated | truncated):
                told.append(infos["final_obs"][env].tolist())
                ended += 1
    assert ended > 3
    return told


def test_asynchronous_environments_tell_what_those_of_one_process_tell() -> None:
    assert told_by("async") == told_by("sync")
    with made("CartPole-v1", 2, vectorization="async") as environments:
        assert isinstance(environments.vector, AsyncVectorEnv)
        assert environments.autoreset is AutoresetMode.SAME_STEP


def test_a_run_on_asynchronous_environments_equals_one_in_this_process(home: Any) -> None:
    options = {"num_envs": 2, "n_steps": 64, "batch_size": 64, "tracking.enabled": False}
    results = [
        rl.run("ppo", "CartPole-v1", steps=512, options={**options, "sampling.vectorization": how})
        for how in ("async", "sync")
    ]
    first, second = (
        {name: value for name, value in one.metrics.items() if not name.startswith("time/")}
        for one in results
    )
    assert first == second


def test_asynchronous_environments_cannot_be_saved() -> None:
    with made("CartPole-v1", 2, vectorization="async") as environments:
        saved = EnvironmentSaver().save(environments.vector, None)
    assert saved.reason


def test_without_envpool_its_environments_say_what_to_install(
    rlplug: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "envpool", None)
    done = rlplug("run", "--algo", "ppo", "--env", "envpool/Absent-v1")
    assert done.code == 2
    assert "environment 'envpool/Absent-v1' could not be made" in done.err
    assert "try: install what it needs" in done.err


@pytest.fixture
def envpool() -> Any:
    return pytest.importorskip("envpool", reason="not in rlplug[test]: it has 700 MB of assets")


def test_environments_of_envpool_are_seeded_when_they_are_reset(envpool: Any) -> None:
    def first(seed: int) -> Any:
        with made("envpool/CartPole-v1", 4) as environments:
            seen, _ = environments.reset(seed)
            again, _ = environments.reset(seed)
            assert (seen == again).all()
            return seen

    assert (first(1) == first(1)).all()
    assert len(numpy.unique(first(1), axis=0)) == 4
    assert (first(1) != first(2)).all()


def test_actions_of_envpool_are_whole_numbers_only_where_the_space_has_such(envpool: Any) -> None:
    def angles(actions: Any) -> Any:
        with made("envpool/Pendulum-v1", 2) as environments:
            environments.reset(0)
            seen, *_ = environments.vector.step(numpy.array(actions, numpy.float32))
            return seen[:, 2]

    # A torque changes the speed by 3 / 20 of it.
    pushed = angles([[0.5], [-0.25]]) - angles([[0.0], [0.0]])
    numpy.testing.assert_allclose(pushed, [0.075, -0.0375], atol=1e-5)
    with made("envpool/CartPole-v1", 3) as environments:
        before, _ = environments.reset(0)
        seen, *_ = environments.vector.step([0, 1, 0])
        assert (seen[:, 1] > before[:, 1]).tolist() == [False, True, False]


def test_threads_of_envpool_end_when_it_is_closed_or_replaced(envpool: Any) -> None:
    def threads() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    with made("envpool/CartPole-v1", 2) as environments:
        alone = threads()
        for seed in range(3):
            environments.reset(seed)
            assert threads() == alone
        environments.close()
        assert threads() < alone


def test_episodes_of_envpool_are_reset_in_the_step_after_their_end(envpool: Any) -> None:
    with made("envpool/CartPole-v1", 2) as environments:
        vector = environments.vector
        assert environments.autoreset is AutoresetMode.NEXT_STEP
        assert vector.single_observation_space.shape == (4,)
        assert vector.observation_space.shape == (2, 4)
        environments.reset(0)
        ended = numpy.zeros(2, bool)
        for _ in range(30):
            seen, rewards, terminated, truncated, infos = vector.step(numpy.ones(2, numpy.int64))
            assert infos == {}
            assert (rewards[ended] == 0).all()
            assert (abs(seen[ended]) < 0.051).all()
            ended = terminated | truncated
            assert (abs(seen[ended, 2]) > 0.2).all()


def test_ppo_learns_on_an_environment_of_envpool(envpool: Any, home: Any) -> None:
    result = rl.run("ppo", "envpool/CartPole-v1", steps=30_000, options={"num_envs": 8})
    assert result.best is not None
    assert result.best[1] > 400
    assert rl.runs(env="envpool/CartPole-v1")


@pytest.mark.parametrize(
    ("env", "option", "said"),
    [
        ("CartPole-v1", "sampling.backend=workers", "sampling.backend = 'workers'"),
        ("CartPole-v1", "sampling.vectorization=sync", "sampling.vectorization = 'sync'"),
        ("CartPole-v1", "env.frame_stack=2", "env.frame_stack"),
        ("CartPole-v1", "env.speed=3", "could not be made with speed=3"),
        ("CartPol-v1", "seed=1", "'envpool/CartPol-v1' could not be made"),
    ],
)
def test_what_cannot_be_of_envpool_is_refused(
    env: str, option: str, said: str, envpool: Any, rlplug: Command
) -> None:
    done = rlplug("run", "--algo", "ppo", "--env", f"envpool/{env}", "--set", option)
    assert done.code == 2
    assert said in done.err
