"""Environments with known answers that a correct algorithm solves within seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import attrs
import gymnasium
import numpy
from gymnasium import spaces

Space = spaces.Space[Any]
Play = Callable[[Any, Any, Any], tuple[Any, float, bool]]
"""State, action and generator → the next state, the reward, and whether it is terminal."""
See = Callable[[Any], Any]
"""State → what is observed."""
Mask = Callable[[Any, Any], Sequence[int]]
"""State and generator → the action mask."""


class Known(gymnasium.Env[Any, Any]):
    """States, and what an action leads to in each; choosing a masked action raises."""

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(
        self,
        play: Play,
        see: See,
        *,
        actions: Space | None = None,
        starts: Sequence[Any] = (0,),
        mask: Mask | None = None,
        space: Space | None = None,
    ) -> None:
        """`see`: what is observed of a state; episodes begin in one of `starts`."""
        self.observation_space = space or spaces.Box(-1.0, 3.0, (len(see(starts[0])),))
        self.action_space = actions or spaces.Discrete(2)
        self._play, self._see, self._starts, self._draw_mask = play, see, starts, mask
        self._state: Any = starts[0]
        self._mask: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start an episode."""
        super().reset(seed=seed)
        self._state = self._starts[int(self.np_random.integers(len(self._starts)))]
        return self._observe()

    def step(self, action: Any) -> Any:
        """One step."""
        if numpy.shape(action) != (self.action_space.shape or ()):
            raise ValueError(f"action {action!r} is not in {self.action_space}")
        if self._mask is not None and not self._mask[int(action)]:
            raise ValueError(f"action {int(action)} is masked: {self._mask.tolist()}")
        self._state, reward, terminated = self._play(self._state, action, self.np_random)
        observation, info = self._observe()
        return observation, float(reward), terminated, False, info

    def _observe(self) -> tuple[Any, dict[str, Any]]:
        observation = self._see(self._state)
        if not isinstance(observation, dict):
            observation = numpy.array(observation, numpy.float32)
        if self._draw_mask is None:
            return observation, {}
        self._mask = numpy.array(self._draw_mask(self._state, self.np_random), numpy.int8)
        return observation, {"action_mask": self._mask.copy()}


def one_hot(states: int) -> See:
    """States by their number, observed as one-hot vectors."""
    rows = numpy.eye(states).tolist()
    return lambda state: rows[min(state, states - 1)]


def _itself(state: Any) -> Sequence[float]:
    return (float(state),)


def _one(state: Any) -> Sequence[float]:
    return (1.0,)


def _two_steps(state: int, action: Any, random: Any) -> Any:
    """A reward of 1 in the second step."""
    return state + 1, float(state), state > 0


def _bandit(
    reward: Callable[..., float], *, see: See = _one, **options: Any
) -> Callable[[], Known]:
    """Makes episodes of one step, whose reward depends on state, action and chance."""

    def play(state: Any, action: Any, random: Any) -> Any:
        return state, reward(state, action, random), True

    return partial(Known, play, see, **options)


def _delayed(state: int, action: Any, random: Any) -> Any:
    if state == 0:
        return 1 + int(action), 0.0, False
    return state, 2.0 * state - 3.0, True


def _near(state: Any, action: Any, random: Any) -> float:
    """Minus the squared distance to the best action, which is 1 more than is observed."""
    return -float((action[0] - 1.0 - state) ** 2)


def _in_maze(state: tuple[float, int], action: Any, random: Any, *, length: int) -> Any:
    sign, at = state
    if at == length:
        return state, sign * (2.0 * int(action) - 1.0), True
    return (sign, at + 1), 0.0, False


def t_maze(length: int = 3) -> Known:
    """A sign at the start shows which way to turn at the end of a corridor of `length` steps.

    Observations are the sign (−1 or 1, 0 after the first step) and whether this is the junction,
    where the reward is 1 or −1. Without memory, the mean return is 0.
    """
    return Known(
        partial(_in_maze, length=length),
        lambda state: (state[0] * (state[1] == 0), float(state[1] == length)),
        starts=((-1.0, 0), (1.0, 0)),
    )


def _rounds() -> list[dict[str, Any]]:
    """Three arms each, of which the best one is absent."""
    random = numpy.random.default_rng(0)
    rounds = []
    for _ in range(200):
        arms = numpy.column_stack((random.permutation(3) / 2, random.random(3)))
        mask = (arms[:, 0] < 1).astype(numpy.int8)
        rounds.append({"context": numpy.ones(1), "arms": arms, "action_mask": mask})
    return rounds


ROUNDS = _rounds()
absent_best_arm = _bandit(
    lambda state, arm, random: state["arms"][arm, 0],
    see=lambda state: state,
    starts=ROUNDS,
    actions=spaces.Discrete(3),
    space=spaces.Dict(
        {
            "context": spaces.Box(0.0, 1.0, (1,), numpy.float64),
            "arms": spaces.Box(0.0, 1.0, (3, 2), numpy.float64),
            "action_mask": spaces.MultiBinary(3),
        }
    ),
)
"""The reward is the first feature of the arm: 0, 0.5 or 1; the arm with 1 is masked."""


def entropy_ahead(*, continuous: bool) -> Known:
    """Without rewards: the higher the first action, the likelier are ten more steps.

    Where values include the entropy of the policy ahead, as in SAC, high first actions are best.
    """

    def play(state: int, action: Any, random: Any) -> Any:
        chance = (float(action[0]) + 1) / 4 if continuous else float(action)
        if state == 0 and random.random() >= chance:
            return state, 0.0, True
        return state + 1, 0.0, state == 10

    actions = BOX if continuous else spaces.Discrete(2)
    return Known(play, lambda state: (float(state == 0), state / 11), actions=actions)


BOX = spaces.Box(-1.0, 3.0, (1,), numpy.float32)
no_reward = _bandit(lambda state, action, random: 0.0, actions=BOX)
reward_by_action = _bandit(lambda state, action, random: 2.0 * action - 1.0)
box_target = _bandit(_near, see=_itself, actions=BOX, starts=(1.0,))
_MEANS = (0.2, 0.4, 0.9, 0.6)


@attrs.frozen(kw_only=True)
class Answer:
    """The optimal action or value of one observation."""

    observation: Sequence[float]
    mask: tuple[int, ...] | None = None
    action: Any = None
    """The optimal action; None if it makes no difference."""
    within: float = 0.0
    """How far from it a continuous action may be."""
    value: float | None = None
    """The optimal value."""
    start: bool = True
    """Whether episodes start there; recurrent modules are tested at no other observation."""


@attrs.frozen(kw_only=True)
class Probe:
    """An environment with known answers, and the likely cause if an algorithm misses them."""

    name: str
    make: Callable[[], gymnasium.Env[Any, Any]]
    answers: Sequence[Answer]
    likely_cause: str
    one_step: bool = True
    gamma: float = 0.9
    """The option `gamma` of the run."""
    steps: int = 3_000
    for_variants: bool = False
    """Whether it is solved with each variant of options as well."""


def _actions(*answers: tuple[float, Any], within: float = 0.0) -> list[Answer]:
    return [Answer(observation=(at,), action=best, within=within) for at, best in answers]


PROBES = (
    Probe(
        name="reward_by_observation",
        make=_bandit(lambda state, action, random: state, see=_itself, starts=(-1.0, 1.0)),
        answers=[Answer(observation=(sign,), value=sign) for sign in (-1.0, 1.0)],
        likely_cause="the value loss, or observations that do not reach it: order of rows, encoder",
    ),
    Probe(
        name="discounted_two_steps",
        make=partial(Known, _two_steps, one_hot(2)),
        answers=[
            Answer(observation=(1.0, 0.0), value=0.5),
            Answer(observation=(0.0, 1.0), value=1.0, start=False),
        ],
        likely_cause="discounting, bootstrapping through termination, or targets that never follow",
        gamma=0.5,
        for_variants=True,
        one_step=False,
        steps=5_000,
    ),
    Probe(
        name="reward_by_observation_and_action",
        make=_bandit(
            lambda state, action, random: state * (2.0 * action - 1.0),
            see=_itself,
            starts=(-1.0, 1.0),
        ),
        answers=_actions((-1.0, 0), (1.0, 1)),
        likely_cause="the sign of the policy's loss, or observations and actions of different rows",
        for_variants=True,
    ),
    Probe(
        name="delayed_reward",
        make=partial(Known, _delayed, one_hot(3)),
        answers=[Answer(observation=(1.0, 0.0, 0.0), action=1)],
        likely_cause="values of the next state: an off-by-one, or a baseline of the wrong row",
        for_variants=True,
        one_step=False,
        steps=5_000,
    ),
    Probe(
        name="masked_best_action",
        make=_bandit(
            lambda state, action, random: 0.5 * action,
            actions=spaces.Discrete(3),
            mask=lambda state, random: (1, 1, random.integers(2)),
        ),
        answers=[
            Answer(observation=(1.0,), mask=(1, 1, 1), action=2),
            Answer(observation=(1.0,), mask=(1, 1, 0), action=1),
        ],
        likely_cause="masks in acting, or log-probabilities of masked policies in the loss",
        for_variants=True,
    ),
    Probe(
        # All rewards are positive: without exploration the first arm tried stays the best.
        name="known_best_arm",
        make=_bandit(
            lambda state, arm, random: _MEANS[arm] + 0.05 * random.standard_normal(),
            actions=spaces.Discrete(4),
        ),
        answers=_actions((1.0, 2)),
        likely_cause="exploration, or what an arm is credited with",
        for_variants=True,
        steps=5_000,
    ),
    Probe(
        name="box_target",
        make=box_target,
        answers=_actions((1.0, (2.0,)), within=0.4),
        likely_cause="the sign of the actor's loss, or the scale of actions",
        steps=4_000,
    ),
    Probe(
        name="multi_discrete_choices",
        make=_bandit(
            lambda state, action, random: float(action[0] == 1) + float(action[1] == 2),
            actions=spaces.MultiDiscrete([2, 3]),
        ),
        answers=_actions((1.0, (1, 2))),
        likely_cause="log-probabilities summed over the parts of an action",
    ),
)
"""The probes for every algorithm; absent arms and recurrent modules have checks of their own."""
