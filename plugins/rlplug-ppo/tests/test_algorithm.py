"""PPO and A2C in the hands of the core: hooks, schedules, counts, and requests they refuse."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy
import pytest
import torch
from gymnasium import spaces
from rlplug_ppo import A2C, PPO, ActorCriticModule
from rlplug_ppo.algorithm import adapt

from rlplug import RequestError, UnsupportedSpaceError, run
from rlplug.batch import Batch
from rlplug.config.sections import LearnerSection
from rlplug.errors import ConfigError
from rlplug.hooks.calls import HookCalls
from rlplug.learner import Learner
from rlplug.registry import Participant, describe

BOX = spaces.Box(-1, 1, (3,))
QUIET = {"tracking.enabled": False, "evaluation.episodes": 0}


def learner(kind: Any = PPO, action_space: Any = None, **options: Any) -> Learner:
    config = kind.Config(**options)
    calls = HookCalls(Participant(describe("mine", kind), kind(config), config))
    two = spaces.Discrete(2) if action_space is None else action_space
    made = Learner(calls, {"default": (BOX, two)}, seed=0, learning=LearnerSection())
    made.build()
    return made


def rollout(rows: int = 32, seed: int = 0) -> Batch:
    random = numpy.random.default_rng(seed)
    ends = numpy.zeros(rows, bool)
    ends[rows // 2 - 1] = True
    half = rows // 2
    return Batch(
        {
            "observations": random.uniform(-1, 1, (rows, 3)).astype(numpy.float32),
            "actions": random.integers(2, size=rows),
            "rewards": random.standard_normal(rows),
            "terminated": ends,
            "truncated": numpy.zeros(rows, bool),
            "fragments": numpy.array([[0, half], [half, rows]]),
            "final_observations": random.uniform(-1, 1, (2, 3)).astype(numpy.float32),
        }
    )


def test_the_first_minibatch_has_a_ratio_of_1() -> None:
    one = learner()
    results = one.update({"default": rollout()}, timestep=32)["default"]
    assert results["approx_kl"] == pytest.approx(0.0, abs=1e-6)
    assert results["clip_fraction"] == 0.0
    # Advantages are normalised and every ratio is 1: the gains cancel.
    assert float(results["policy_loss"]) == pytest.approx(0.0, abs=1e-6)


def test_the_explained_variance_is_1_for_values_that_are_the_returns() -> None:
    one = learner()
    module = one.modules["default"]
    assert isinstance(module, ActorCriticModule)
    batch = rollout()
    with torch.no_grad():
        # All values are 0: nothing is foretold.
        module.network.value_head.linear.weight.zero_()
    results = one.update({"default": batch}, timestep=32)["default"]
    assert float(results["explained_variance"]) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    ("kl", "expected"), [(0.021, 0.3), (0.02, 0.2), (0.005, 0.2), (0.0049, 0.1)]
)
def test_the_penalty_follows_the_divergence(kl: float, expected: float) -> None:
    coefficient = torch.tensor(0.2)
    adapt(coefficient, torch.tensor(kl), 0.01)
    assert coefficient.item() == pytest.approx(expected)


def test_the_penalty_is_adapted_once_per_update_and_saved() -> None:
    one = learner(kl_coef=0.2, kl_target=1e-9, learning_rate=0.01)
    results = one.update({"default": rollout()}, timestep=32, num_iters=3)["default"]
    assert float(results["kl_coef"]) == pytest.approx(0.3)
    other = learner(kl_coef=0.2, kl_target=1e-9, learning_rate=0.01)
    other.set_state(one.get_state())
    results = other.update({"default": rollout(seed=1)}, timestep=64, num_iters=3)["default"]
    assert float(results["kl_coef"]) == pytest.approx(0.45)


def test_updates_that_end_early_are_counted() -> None:
    one = learner(target_kl=1e-7, learning_rate=0.01)
    before = {name: one.clone() for name, one in one.modules["default"].state_dict().items()}
    results = one.update({"default": rollout()}, timestep=32, num_iters=50)["default"]
    assert int(results["kl_stops"]) == 1
    # The first pass moved it, the second saw that and ended the update before its step.
    assert float(results["kl_stopped"]) == 0.5
    assert any(
        not torch.equal(before[name], now)
        for name, now in one.modules["default"].state_dict().items()
    )
    calm = learner(target_kl=1e3)
    assert int(calm.update({"default": rollout()}, timestep=32)["default"]["kl_stops"]) == 0


def test_one_pass_of_ppo_without_more_is_a2c() -> None:
    # With one pass over all rows every ratio is 1, where the surrogate has A2C's gradient.
    module = learner(normalize_advantage=False).modules["default"]
    gradients = []
    for kind in (PPO, A2C):
        one = learner(kind, normalize_advantage=False, gae_lambda=0.9)
        one.modules["default"].load_state_dict(module.state_dict())
        batch = rollout().to(torch.device("cpu"), torch.float32)
        with torch.no_grad():
            prepared = one.calls.prepare_batch("default", one.modules["default"], batch, {}, 0, one)
        losses = one.compute_loss(one.forward_train({"default": prepared}), {"default": prepared})
        found = one.compute_gradients(losses)
        names = {param: name for name, param in one.modules["default"].named_parameters()}
        gradients.append({names[param]: gradient for param, gradient in found.items()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-4, atol=1e-6)


class Odd(gymnasium.Env[Any, Any]):
    """Rewards 1, or a NaN in its tenth step; episodes of 7 steps."""

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, broken: bool = False, actions: Any = None) -> None:
        self.observation_space: Any = spaces.Box(-1.0, 1.0, (2,), numpy.float32)
        self.action_space: Any = spaces.Discrete(2) if actions is None else actions
        self.broken, self.steps = broken, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return numpy.zeros(2, numpy.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        reward = float("nan") if self.broken and self.steps == 10 else 1.0
        return numpy.zeros(2, numpy.float32), reward, self.steps % 7 == 0, False, {}


pytestmark = pytest.mark.usefixtures("home")


def short(maker: Any, steps: int = 64, **options: Any) -> Mapping[str, Any]:
    given = {"n_steps": 16, "batch_size": 32, "n_epochs": 2, "sampling.num_envs": 2}
    return run(PPO, maker, steps=steps, options={**QUIET, **given, **options}).metrics


def test_a_run_records_what_people_know(home: Path) -> None:
    from mlflow import MlflowClient

    given = {"n_steps": 16, "batch_size": 32, "sampling.num_envs": 2, "evaluation.episodes": 0}
    done = run(PPO, Odd, steps=64, options=given)
    client = MlflowClient(f"sqlite:///{home / 'mlflow.db'}")
    recorded = client.get_run(done.run_id).data.metrics
    named = {
        "rollout": ("return_mean", "length_mean"),
        "time": ("steps_per_second", "step_seconds", "learn_seconds"),
        "train": (
            "policy_loss",
            "value_loss",
            "entropy",
            "approx_kl",
            "clip_fraction",
            "explained_variance",
            "learning_rate",
        ),
    }
    assert {f"{group}/{name}" for group, names in named.items() for name in names} <= set(recorded)


def test_a_minibatch_larger_than_the_rollout_is_refused_with_its_size() -> None:
    with pytest.raises(RequestError, match=r"batch_size = 64 is larger .* 32 rows"):
        short(Odd, batch_size=64)


def test_rows_that_fill_no_minibatch_make_a_smaller_one() -> None:
    sizes: list[int] = []

    class Watched(PPO):
        def compute_loss_for_module(self, module, config, batch, fwd_out):  # type: ignore[no-untyped-def] # as the hook
            sizes.append(batch.rows)
            return super().compute_loss_for_module(module, config, batch, fwd_out)

    given = {"n_steps": 16, "batch_size": 24, "n_epochs": 2, "sampling.num_envs": 2}
    # On arrays the first minibatch is computed twice.
    given |= {"compute.arrays": "off"}
    run(Watched, Odd, steps=32, options={**QUIET, **given})
    assert sizes == [24, 8, 24, 8]


def test_actions_without_bounds_can_be_drawn_but_not_squashed() -> None:
    endless = spaces.Box(-numpy.inf, numpy.inf, (2,), numpy.float32)
    assert short(lambda: Odd(actions=endless))["train/entropy"] > 0
    with pytest.raises(UnsupportedSpaceError, match="without bounds") as raised:
        short(lambda: Odd(actions=endless), squash=True)
    assert "try: --set squash=false" in str(raised.value)


def test_a_memory_is_not_cut_where_there_is_none() -> None:
    with pytest.raises(ConfigError, match="truncated_bptt needs a recurrent network"):
        short(Odd, truncated_bptt=4)


@pytest.mark.parametrize("kind", ["ppo", "a2c"])
@pytest.mark.parametrize("memory", [{}, {"memory": "gru", "memory_size": 8, "truncated_bptt": 4}])
def test_v_trace_on_policy_learns_what_gae_learns(kind: str, memory: Mapping[str, Any]) -> None:
    """In one process the weights that learn are those that acted: all ratios are 1."""
    weights = []
    for advantages in ("gae", "vtrace"):
        options = {**QUIET, "algorithm.advantages": advantages, "n_steps": 32, **memory}
        found = run(kind, "CartPole-v1", steps=512, seed=1, options={**options, "gae_lambda": 0.9})
        weights.append(found.module.state_dict())
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=0, atol=1e-5)
