"""What ends a run before its last step, and what is said about it."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs
import gymnasium
import numpy
import pytest
import torch
from gymnasium.wrappers import TimeLimit
from torch import nn

from rlplug import Acted, ActInput, Algorithm, Batch, Module, hookimpl, option, resume, run
from rlplug.config.condition import parse_condition
from rlplug.errors import ConfigError, RequestError
from rlplug.feeds import Feed, Rollout

OFF = {"tracking.enabled": False, "evaluation.episodes": 0}

pytestmark = pytest.mark.usefixtures("home")


class Endless(gymnasium.Env[Any, Any]):
    """Pays 1 in every step, for ever."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return numpy.ones(1, numpy.float32), {}

    def step(self, action: Any) -> Any:
        return numpy.ones(1, numpy.float32), 1.0, False, False, {}


def limited() -> gymnasium.Env[Any, Any]:
    return TimeLimit(Endless(), 4)


class Values(Module):
    """Acts at random and values what it sees by one number."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros(1))

    def forward_exploration(self, act: ActInput) -> Acted:
        return Acted(act.random.integers(2, size=len(act.observations)))

    def forward_inference(self, act: ActInput) -> Acted:
        return Acted(numpy.zeros(len(act.observations), numpy.int64))


@attrs.frozen(kw_only=True)
class Options:
    learning_rate: float = option(0.3, "Step size.")


class Plain(Algorithm):
    """Moves its one number towards 1, ten steps at a time."""

    Config: ClassVar[type[Options]] = Options
    config: Options

    def feed(self) -> Feed:
        return Rollout(n_steps=10, batch_size=10, n_epochs=1)

    @hookimpl
    def build(self) -> Module:
        return Values()

    @hookimpl
    def compute_loss_for_module(self, module: Any, batch: Batch) -> Any:
        return ((module.value - batch["rewards"]) ** 2).mean()


EVALUATED = {"tracking.enabled": False, "evaluation.every": 50, "evaluation.episodes": 1}


@pytest.mark.parametrize(
    ("options", "step", "reason"),
    [
        ({}, 320, ""),
        ({"max_updates": 3}, 30, "3 updates (run.max_updates = 3)"),
        # Episodes end after 4, 8, 12, 16 and 20 steps.
        ({"max_episodes": 4}, 20, "5 episodes (run.max_episodes = 4)"),
        ({"run.max_minutes": 1e-9}, 10, ""),
        ({"run.stop_when": "rollout/length_mean >= 4"}, 10, "rollout/length_mean = 4 ("),
        ({"run.stop_when": "time/updates > 4.5"}, 50, "time/updates = 5 ("),
        ({**EVALUATED, "run.stop_when": "eval/length_mean >= 4"}, 50, "eval/length_mean = 4 ("),
        ({**EVALUATED, "evaluation.stop_at_return": 1.0}, 50, "mean return 4 reached "),
    ],
)
def test_a_run_ends_with_the_collection_that_reaches_a_limit(
    options: dict[str, Any], step: int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    result = run(Plain, limited, steps=320, options={**OFF, **options})
    assert (result.status, result.step) == ("FINISHED", step)
    assert result.stopped.startswith(reason)
    assert caplog.messages == []


def test_a_run_that_has_taken_all_steps_is_not_ended_by_a_limit() -> None:
    result = run(Plain, limited, steps=30, options={**OFF, "run.max_updates": 3})
    assert (result.status, result.step, result.stopped) == ("FINISHED", 30, "")


def test_a_run_that_a_limit_ended_goes_on_where_it_was_with_a_higher_one() -> None:
    whole = run(Plain, limited, steps=320, options={**OFF, "max_episodes": 12})
    half = run(Plain, limited, steps=320, options={**OFF, "max_episodes": 5})
    # Episodes of 4 steps: the fifth ends with step 20, the twelfth with step 48.
    assert (half.step, whole.step) == (20, 50)
    with pytest.raises(RequestError, match=r"at step 20 of 320, .* limit: 5 episodes"):
        resume(half.run_id, algorithm=Plain, env=limited)
    options = {"run.max_episodes": 12}
    rest = resume(half.run_id, algorithm=Plain, env=limited, options=options, allow_drift=True)
    assert (rest.step, rest.stopped) == (50, "12 episodes (run.max_episodes = 12)")
    assert torch.equal(rest.module.state_dict()["value"], whole.module.state_dict()["value"])


def test_a_metric_that_was_never_reported_is_told_with_the_one_that_was_meant(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run(Plain, limited, steps=20, options={**OFF, "run.stop_when": "train/loss < -1"})
    assert caplog.messages == []
    run(Plain, limited, steps=20, options={**OFF, "run.stop_when": "train/los < 0"})
    (said,) = caplog.messages
    assert said.endswith("'train/los' was never reported, did you mean 'train/loss'?")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("train/loss => 3", "unknown operator '=>', did you mean '>='? (operators: >=, <=, >, <)"),
        ("train/loss", "expected a metric, an operator and a number, as in "),
        ("train/loss < small", "expected a number after '<'"),
        ("train/loss < nan", "expected a number after '<'"),
        ("loss < 3", "unknown metric 'loss': names of metrics begin with rollout/, train/, "),
    ],
)
def test_a_condition_that_cannot_work_is_refused_before_the_run(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        run(Plain, limited, steps=20, options={**OFF, "run.stop_when": text})
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("eval/x >= 2", [False, True, True]),
        ("eval/x>2", [False, False, True]),
        ("eval/x <= 2e0", [True, True, False]),
        ("eval/x < 2", [True, False, False]),
    ],
)
def test_a_condition_holds_for_values_and_never_for_nan(text: str, holds: list[bool]) -> None:
    condition = parse_condition(text)
    assert [condition.holds(value) for value in (1.0, 2.0, 3.0)] == holds
    assert not condition.holds(float("nan"))


def test_a_run_goes_on_after_evaluation_episodes_without_end_and_names_environment_and_limit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = {"tracking.enabled": False, "evaluation.every": 50, "evaluation.episodes": 2}
    limit = {"evaluation.max_episode_steps": 7}
    result = run(Plain, Endless, steps=100, options={**options, **limit})
    assert (result.status, result.step) == ("FINISHED", 100)
    # Each step pays 1, in both environments of every evaluation.
    assert result.metrics["eval/return_mean"] == 7.0
    assert result.metrics["eval/episodes_cut"] == 2.0
    (said,) = caplog.messages
    assert "environment 'Endless' did not end within 7 steps" in said
