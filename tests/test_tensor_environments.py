"""Runs on environments of tensors: they learn, resume, are evaluated, and refuse what cannot be."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor

import rlplug as rl
from examples.tensor_tasks import TensorCartPole
from rlplug.config.sections import ComputeSection
from rlplug.learner.device import match_environment_device
from tests.collecting import collector
from tests.test_resume_exact import resumed_equals

if TYPE_CHECKING:
    from tests.conftest import Outcome

Command = Callable[..., "Outcome"]

CART_POLE = "examples.tensor_tasks:TensorCartPole"
PENDULUM = "examples.tensor_tasks:TensorPendulum"
ON_CPU = ("--set", "compute.device=cpu")
QUIET = {"tracking.enabled": False, "evaluation.episodes": 0}


class Arms(VectorEnv[Any, Any, Any]):
    """A bandit of three arms: the one whose feature is the largest gives 1, the others 0."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(self, num_envs: int, device: str = "cpu") -> None:
        self.num_envs = num_envs
        self.single_observation_space = spaces.Box(-1, 1, (3,))
        self.single_action_space = spaces.Discrete(3)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.generator = torch.Generator()

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        if seed is not None:
            self.generator.manual_seed(seed)
        self.seen = torch.rand(self.num_envs, 3, generator=self.generator) * 2 - 1
        return self.seen, {}

    def step(self, actions: Tensor) -> Any:
        assert isinstance(actions, Tensor)
        rewards = (self.seen.argmax(1) == actions).float()
        last, _ = self.seen, self.reset()
        ends = torch.ones(self.num_envs, dtype=torch.bool)
        return self.seen, rewards, ends, ~ends, {"final_obs": last}


def test_ppo_learns_cart_pole(home: Path) -> None:
    options = {
        "num_envs": 64,
        "n_steps": 32,
        "batch_size": 512,
        "learning_rate": [[0, 2e-3], [60_000, 0.0]],
        "evaluation.every": 0,
        "evaluation.episodes": 8,
    }
    result = rl.run("ppo", CART_POLE, steps=60_000, options=options)
    assert result.metrics["eval/return_mean"] >= 475


@pytest.mark.long
def test_dqn_learns_cart_pole(home: Path) -> None:
    options = {
        "num_envs": 8,
        "learning_rate": [[0, 1e-3], [20_000, 1e-5]],
        "batch_size": 128,
        "learning_starts": 1000,
        "train_freq": 2,
        "gradient_steps": 4,
        "double": True,
        "n_step": 3,
        "tau": 0.01,
        "exploration_fraction": 0.16,
        "evaluation.every": 0,
        "evaluation.episodes": 20,
    }
    result = rl.run("dqn", CART_POLE, steps=20_000, options=options)
    assert result.metrics["eval/return_mean"] >= 200


@pytest.mark.parametrize(
    ("algorithm", "env", "options"),
    [
        pytest.param("ppo", CART_POLE, {"n_steps": 32, "n_epochs": 2}, marks=pytest.mark.long),
        (
            "ppo",
            PENDULUM,
            {"n_steps": 32, "n_epochs": 2, "memory": "lstm", "env.max_episode_steps": 20},
        ),
        (
            "a2c",
            PENDULUM,
            {"normalize_observation": True, "normalize_reward": True, "env.max_episode_steps": 20},
        ),
        ("dqn", CART_POLE, {"learning_starts": 200, "buffer_size": 300, "n_step": 2}),
        pytest.param(
            "rainbow",
            CART_POLE,
            {"learning_starts": 200, "train_freq": 4, "env.autoreset": "next_step"},
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_resumed_run_equals_one_that_was_not_cut_off(
    home: Path, algorithm: str, env: str, options: dict[str, Any]
) -> None:
    settings = {"num_envs": 8, "batch_size": 64, "evaluation.episodes": 2, **options}
    if algorithm == "a2c":
        del settings["batch_size"]
    resumed_equals(home, algorithm, env, steps=768, every=256, at=540, options=settings)


def test_algorithms_that_act_on_arrays_get_arrays(home: Path, caplog: Any) -> None:
    result = rl.run("linucb", Arms, steps=2000, options={**QUIET, "num_envs": 20})
    assert result.metrics["rollout/reward_mean"] > 0.8
    (told,) = [one.message for one in caplog.records if "acts on arrays" in one.message]
    assert told.endswith("each step copies the tensors of environment 'Arms' to the host.")


@pytest.mark.parametrize(
    ("algorithm", "steps", "options"),
    [
        ("ppo", 12_800, {"num_envs": 32, "n_steps": 4, "batch_size": 128}),
        (
            "dqn",
            4_000,
            {"num_envs": 8, "learning_starts": 200, "train_freq": 2, "exploration_final_eps": 0.0},
        ),
    ],
)
def test_modules_on_tensors_learn_a_bandit_too(
    home: Path, algorithm: str, steps: int, options: dict[str, Any]
) -> None:
    options = {**QUIET, "learning_rate": 0.01, **options}
    result = rl.run(algorithm, Arms, steps=steps, options=options)
    assert result.metrics["rollout/reward_mean"] > 0.8
    assert "rollout/length_mean" in result.metrics


def test_limits_by_episodes_count_those_of_tensors(home: Path) -> None:
    options = {**QUIET, "num_envs": 4, "n_steps": 8, "batch_size": 32, "max_episodes": 50}
    result = rl.run("ppo", Arms, steps=10_000, options=options)
    assert result.step == 64


def test_a_saved_run_is_evaluated_on_the_command_line(rlplug: Command, home: Path) -> None:
    options = ["--set", "num_envs=8", "--set", "n_steps=16", "--set", "batch_size=128"]
    quiet = ["--set", "tracking.enabled=false", "--set", "evaluation.episodes=0"]
    run = rlplug("run", "--algo", "ppo", "--env", CART_POLE, "--steps", "256", *options, *quiet)
    assert run.code == 0, run.err
    (folder,) = (home / "work").iterdir()
    done = rlplug("eval", folder.name, "--episodes", "3")
    assert done.code == 0, done.err
    assert "return" in done.out + done.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--env", CART_POLE, "--set", "sampling.backend=workers"),
            "which rules out sampling.backend = 'workers'",
        ),
        (
            ("--env", CART_POLE, "--set", "sampling.vectorization=sync"),
            "which rules out sampling.vectorization = 'sync'",
        ),
        (
            ("--env", CART_POLE, "--set", "env.frame_stack=4"),
            "which rules out env.frame_stack",
        ),
        (
            ("--env", CART_POLE, "--set", "sampling.max_trajectory_length=20"),
            "which rules out sampling.max_trajectory_length",
        ),
        (
            ("--env", CART_POLE, "--set", "sampling.min_trajectory_length=5"),
            "sampling.min_trajectory_length = 5",
        ),
        (
            ("--env", CART_POLE, "--set", "evaluation.video=true"),
            "no video can be made: environment 'examples.tensor_tasks:TensorCartPole' is",
        ),
        (
            ("--env", CART_POLE, "--set", "env.autorest=next_step"),
            "unexpected keyword argument 'autorest'",
        ),
        (
            ("--env", CART_POLE, "--set", "env.autoreset=never", *ON_CPU),
            "could not be made with autoreset='never'",
        ),
        (
            ("--env", "examples.tensor_tasks:TensorCartPol"),
            "unknown environment 'examples.tensor_tasks:TensorCartPol'",
        ),
        (
            ("--env", "examples.tensor_taks:TensorCartPole"),
            "names a package that cannot be imported",
        ),
        (
            ("--env", CART_POLE, "--algo", "linucb"),
            "it is for bandits, whose episodes have one step; here they go on.",
        ),
        (
            ("--env", PENDULUM, "--algo", "dqn"),
            "it needs Discrete actions",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_the_first_step(
    arguments: tuple[str, ...], message: str, rlplug: Command, home: Path
) -> None:
    given = arguments if "--algo" in arguments else (*arguments, "--algo", "ppo")
    done = rlplug("run", *given, "--set", "tracking.enabled=false", "--steps", "3000")
    assert done.code == 2
    assert message in " ".join(done.err.split())
    assert "Traceback" not in done.err


def test_tensors_on_another_device_than_the_learner_are_refused() -> None:
    cuda = torch.device("cuda", 1)
    for wanted, found in (("auto", "cuda:1"), ("cuda", "cuda:1"), ("cuda:1", "cuda:1")):
        assert match_environment_device(ComputeSection(device=wanted), cuda, "X").device == found
    for wanted in ("cpu", "cuda:0"):
        with pytest.raises(rl.RlplugError, match="gives tensors on cuda:1"):
            match_environment_device(ComputeSection(device=wanted), cuda, "X")
    assert match_environment_device(ComputeSection(), None, "X") == ComputeSection()


def test_an_import_path_may_name_a_single_environment(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_single.py").write_text(
        "from gymnasium.envs.classic_control import CartPoleEnv\nclass Mine(CartPoleEnv): pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    options = {**QUIET, "n_steps": 16, "batch_size": 16}
    result = rl.run("ppo", "my_single:Mine", steps=64, options=options)
    assert result.status == "FINISHED"
    del sys.modules["my_single"]


def test_vectors_of_arrays_may_come_from_a_factory(home: Path) -> None:
    import gymnasium

    def make(num_envs: int) -> Any:
        return gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode="vector_entry_point")

    options = {**QUIET, "num_envs": 3, "n_steps": 16, "batch_size": 16}
    assert rl.run("ppo", make, steps=96, options=options).status == "FINISHED"


def test_a_class_of_its_own_that_gives_arrays_is_refused(home: Path) -> None:
    import gymnasium

    class Arrays:
        num_envs = 2
        single_observation_space = gymnasium.spaces.Box(-1, 1, (3,), numpy.float32)
        single_action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return numpy.zeros((2, 3), numpy.float32), {}

        def step(self, actions: Any) -> Any:
            raise AssertionError("it is refused before")

    with pytest.raises(rl.RlplugError, match=r"Arrays that gives ndarray; .* must give tensors\."):
        rl.run("ppo", lambda num_envs: Arrays(), steps=96, options={**QUIET, "num_envs": 2})


def test_a_run_on_another_kind_of_device_starts_new_episodes() -> None:
    from tests.test_tensor_sampling import Unnormalised, environments

    made = environments(TensorCartPole, 4, tensors=True)
    sampler = collector(made, Unnormalised(), seed=0)
    sampler.start()
    saved = sampler.get_state()
    assert saved["environments"]
    assert sampler.set_state(saved, seed=5) == ""
    told = sampler.set_state({**saved, "source": {**saved["source"], "device": "cuda"}}, seed=5)
    assert told == "they were on cuda, here they are on cpu"
