from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlplug import Acted, Module
from rlplug.config.sections import EvaluationSection
from rlplug.envs import Environments, make_environments
from rlplug.errors import EnvironmentFailedError
from rlplug.evaluation import BestTracker, Evaluator
from tests.collecting import evaluated

MODES = (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED)


class Walk(gymnasium.Env[Any, Any]):
    """An episode of so many steps; each pays the action that was chosen."""

    observation_space = gymnasium.spaces.Box(0, 100, (1,), numpy.float64)
    action_space = gymnasium.spaces.Discrete(100)

    def __init__(self, length: int) -> None:
        self.length = length

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.taken = 0
        return numpy.zeros(1), {}

    def step(self, action: Any) -> Any:
        self.taken += 1
        return numpy.full(1, self.taken), float(action), self.taken == self.length, False, {}


class Ones(Module):
    """Chooses action 1."""

    def forward_inference(self, act: Any) -> Acted:
        return Acted(numpy.ones(len(act.observations), dtype=numpy.int64))


class Clock(Module):
    """Remembers how many steps of an episode it has acted in, and chooses that number."""

    def initial_state(self, n: int) -> Any:
        return {"steps": torch.zeros(n, 1, dtype=torch.int64)}

    def forward_inference(self, act: Any) -> Acted:
        return Acted(act.state["steps"][:, 0], state={"steps": act.state["steps"] + 1})


def uneven(*lengths: int, mode: AutoresetMode = AutoresetMode.SAME_STEP) -> Environments:
    vector = SyncVectorEnv([partial(Walk, n) for n in lengths], autoreset_mode=mode)
    return Environments(vector, "walk", mode)


# -- which episodes count -----------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_environments_with_short_episodes_do_not_play_more_of_them(mode: AutoresetMode) -> None:
    played = evaluated(Ones(), uneven(1, 9, mode=mode), episodes=11)
    # The first ten episodes that end would be nine of length 1 and one of length 9.
    assert played.lengths.tolist() == [1] * 6 + [9] * 5
    assert played.returns.tolist() == [1.0] * 6 + [9.0] * 5


@pytest.mark.parametrize("mode", MODES)
def test_memory_begins_anew_with_each_episode(mode: AutoresetMode) -> None:
    played = evaluated(Clock(), uneven(3, 4, mode=mode), episodes=4)
    # Actions 0, 1, 2 and 0, 1, 2, 3 are paid.
    assert played.returns.tolist() == [3.0, 3.0, 6.0, 6.0]


def test_an_episode_without_end_is_cut_counted_and_reported() -> None:
    played = evaluated(Ones(), uneven(10**9, 2), episodes=4, max_steps=50)
    assert played.lengths.tolist() == [50, 2, 2]
    metrics = played.metrics()
    assert (metrics["eval/episodes"], metrics["eval/episodes_cut"]) == (3.0, 1.0)


def test_metrics_are_those_of_the_returns() -> None:
    metrics = evaluated(Ones(), uneven(1, 2, 3, 10), episodes=4).metrics()
    assert metrics == {
        "eval/return_mean": 4.0,
        "eval/return_std": pytest.approx(12.5**0.5),
        "eval/return_min": 1.0,
        "eval/return_max": 10.0,
        "eval/return_iqm": 2.5,
        "eval/length_mean": 4.0,
        "eval/episodes": 4.0,
    }


def test_which_environment_raised_and_where_is_told() -> None:
    class Breaks(Walk):
        def step(self, action: Any) -> Any:
            raise ArithmeticError("planted")

    made = iter((lambda: Walk(3), lambda: Breaks(3)))
    environments = make_environments(lambda: next(made)(), 2, {})
    with pytest.raises(EnvironmentFailedError) as raised:
        evaluated(Ones(), environments, episodes=2)
    assert raised.value.message.endswith(
        " (2 of 2) failed in step after 0 steps of an evaluation: ArithmeticError: planted"
    )


# -- an evaluator -------------------------------------------------------------------------------


class Dice(Walk):
    """Pays what a die shows."""

    def step(self, action: Any) -> Any:
        seen, _, ended, cut, info = super().step(action)
        return seen, float(self.np_random.integers(1, 7)), ended, cut, info


def evaluator(make: Callable[[int], Environments], **more: Any) -> Evaluator:
    return Evaluator(make, **{"episodes": 6, "parallel": 4, "seed": 3, **more})


def without_time(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if not name.startswith("time/")}


def test_every_evaluation_plays_the_same_episodes_and_another_seed_plays_others() -> None:
    def make(num_envs: int) -> Environments:
        return make_environments(lambda: Dice(5), num_envs, {})

    one = evaluator(make)
    first = without_time(one.evaluate(Ones(), 0))
    assert without_time(one.evaluate(Ones(), 100)) == first
    assert without_time(evaluator(make).evaluate(Ones(), 0)) == first
    assert without_time(evaluator(make, seed=4).evaluate(Ones(), 0)) != first


def drawn() -> tuple[Any, Any]:
    """What the global generators would give next, without taking it from them."""
    state = numpy.random.get_state(legacy=False)
    return torch.get_rng_state().tolist(), state["state"]["key"].tolist()


def test_an_evaluation_leaves_modes_and_global_random_numbers_as_they_were() -> None:
    class Noisy(Ones):
        seen: bool | None = None

        def forward_inference(self, act: Any) -> Acted:
            self.seen = self.training
            torch.rand(5)
            numpy.random.random(5)
            return super().forward_inference(act)

    module = Noisy().train()
    before = drawn()
    evaluator(lambda n: make_environments(lambda: Walk(2), n, {})).evaluate(module, 0)
    assert (module.seen, module.training) == (False, True)
    assert drawn() == before


class Told(Ones):
    """Remembers at which steps it acted, and whether gradients were recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.told: set[tuple[int, bool]] = set()

    def forward_inference(self, act: Any) -> Acted:
        self.told.add((act.timestep, torch.is_grad_enabled()))
        return super().forward_inference(act)


def test_evaluations_act_at_the_step_of_the_run_and_without_gradients() -> None:
    module = Told()
    evaluator(lambda n: make_environments(lambda: Walk(2), n, {})).evaluate(module, 7)
    assert module.told == {(7, False)}


def test_what_ends_the_run_ends_an_evaluation_too() -> None:
    calls = itertools.count()

    def check() -> None:
        if next(calls) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluated(Ones(), uneven(10**9), episodes=1, check=check)


# -- what an evaluation decides -----------------------------------------------------------------


def verdicts(values: list[float], **options: Any) -> list[str]:
    tracker = BestTracker(EvaluationSection(**options))
    said = []
    for step, value in enumerate(values):
        metrics = {"eval/return_mean": value}
        tracker.update(step, metrics)
        said.append(tracker.stop_reason(metrics))
    return said


def test_a_mean_return_that_reaches_the_threshold_ends_the_run() -> None:
    assert verdicts([9.0, 10.0], stop_at_return=10.0) == [
        "",
        "mean return 10 reached evaluation.stop_at_return = 10",
    ]


def test_patience_counts_evaluations_in_a_row_that_were_no_better() -> None:
    said = verdicts([5.0, 4.0, 6.0, 6.0, 3.0], patience=2)
    assert said[:4] == ["", "", "", ""]
    assert said[4] == (
        "2 evaluations without a better mean return than 6 at step 2 (evaluation.patience = 2)"
    )


def test_a_mean_that_is_not_a_number_is_never_the_best() -> None:
    tracker = BestTracker(EvaluationSection())
    assert [tracker.update(0, {"eval/return_mean": x}) for x in (float("nan"), 1.0)] == [
        False,
        True,
    ]
    other = BestTracker(EvaluationSection())
    other.set_state(tracker.get_state())
    assert (other.best, other.best_step, other.without_better) == (1.0, 0, 0)


def test_of_equal_evaluations_the_first_is_the_best_and_of_several_agents_the_latest() -> None:
    of_agents = {"eval/agents/one/return_mean": 3.0, "eval/agents/two/return_mean": -3.0}
    for more, best_step in (({}, 10), (of_agents, 20)):
        tracker = BestTracker(EvaluationSection())
        for step, value in ((10, 0.0), (20, 0.0), (30, -1.0)):
            tracker.update(step, {"eval/return_mean": value, **more})
        assert tracker.best_evaluation == (best_step, 0.0)
