"""The options of `[env]` and how vectors are chosen: each has an effect."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import TimeLimit

from rlplug.config.sections import EnvSection
from rlplug.envs import Normalization, make_environments
from rlplug.envs.atari import EpisodicLife, FireReset, atari
from rlplug.envs.sync import SyncVector
from rlplug.errors import ConfigError, RequestError


class Counts(gymnasium.Env[Any, Any]):
    """Observes the step; one number drawn at the reset."""

    observation_space = spaces.Box(-99, 99, (2,), numpy.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count, self.drawn = 0, self.np_random.random()
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return self._seen(), 3.0, False, False, {}

    def _seen(self) -> Any:
        return numpy.array([self.count, self.drawn], numpy.float32)


def limited() -> gymnasium.Env[Any, Any]:
    return TimeLimit(Counts(), 4)


def stepped(section: EnvSection, steps: int = 1, env: Any = limited) -> Any:
    """What one environment shows after some steps."""
    made = make_environments(env, 1, section)
    observation, _ = made.reset(0)
    for _ in range(steps):
        observation, *_ = made.vector.step(numpy.array([0]))
    return observation


# -- vectors ------------------------------------------------------------------------------------


def test_auto_takes_the_native_vector_where_it_is_ahead() -> None:
    def kind(env: str, num_envs: int, how: str = "auto", **options: Any) -> str:
        section = EnvSection(**options)
        made = make_environments(env, num_envs, section, vectorization=how)
        return type(made.vector).__name__

    assert kind("LinearBandit-v0", 1) == "LinearBanditVectorEnv"
    assert kind("CartPole-v1", 8) == "SyncVector"
    assert kind("CartPole-v1", 16) == "CartPoleVectorEnv"
    assert kind("CartPole-v1", 1, "native") == "CartPoleVectorEnv"
    assert kind("CartPole-v1", 64, "sync") == "SyncVector"
    assert kind("CartPole-v1", 16, time_feature=True) == "SyncVector"


def test_a_native_vector_that_cannot_be_is_refused_with_the_reason() -> None:
    cases: list[tuple[Any, dict[str, Any], str]] = [
        ("MountainCar-v0", {}, "it has no vector form of its own"),
        ("CartPole-v1", {"frame_stack": 2}, "env.frame_stack is put around single environments"),
        (limited, {}, "it was given as a callable"),
    ]
    for env, options, reason in cases:
        with pytest.raises(RequestError, match=reason):
            make_environments(env, 1, EnvSection(**options), vectorization="native")


def test_environments_have_seeds_of_their_own_that_grow_from_one() -> None:
    def drawn(seed: int) -> list[float]:
        observations, _ = make_environments(limited, 3, {}).reset(seed)
        return [float(value) for value in observations[:, 1]]

    assert len({*drawn(0), *drawn(1)}) == 6
    assert drawn(0) == drawn(0)


def test_environments_that_differ_are_refused() -> None:
    class Other(Counts):
        action_space = spaces.Discrete(3)

    with pytest.raises(RequestError, match="environment 1 has another action_space"):
        SyncVector([Counts, Other])


# -- what is put around one environment ---------------------------------------------------------


def test_wrappers_are_imported_and_put_around_from_the_inside_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_wrappers.py").write_text(
        "import gymnasium\n"
        "class Add(gymnasium.ObservationWrapper):\n"
        "    def observation(self, seen): return seen + 1\n"
        "class Double(gymnasium.ObservationWrapper):\n"
        "    def observation(self, seen): return seen * 2\n"
        "number = 3\n"
        "def broken(env): return 7\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    section = EnvSection(wrappers=("my_wrappers:Add", "my_wrappers:Double"))
    assert stepped(section)[0, 0] == 4.0
    wrong = ("my_wrappers:Doubel", "no_such_module:X", "my_wrappers", "my_wrappers:number")
    with pytest.raises(ConfigError) as raised:
        make_environments(limited, 1, EnvSection(wrappers=wrong))
    said = str(raised.value)
    assert "env.wrappers[0]   'my_wrappers' has no 'Doubel', did you mean 'Double'?" in said
    assert "'no_such_module' cannot be imported" in said
    assert "expected 'package.module:Class', got 'my_wrappers'" in said
    assert "my_wrappers:number is no wrapper but int" in said
    with pytest.raises(RequestError, match=r"gave int, which is no gymnasium\.Env"):
        make_environments(limited, 1, EnvSection(wrappers=("my_wrappers:broken",)))
    sys.modules.pop("my_wrappers")


def test_the_time_that_is_left_is_appended() -> None:
    section = EnvSection(time_feature=True)
    # After the fourth step an episode begins anew.
    left = [stepped(section, steps)[0, 2] for steps in range(6)]
    assert left == [1.0, 0.75, 0.5, 0.25, 1.0, 0.75]
    assert make_environments(limited, 1, section).observation_space.shape == (3,)
    with pytest.raises(RequestError, match="the environment has no time limit"):
        make_environments(Counts, 1, section)


def test_the_last_frames_are_seen_at_once_the_newest_last() -> None:
    for frames in (2, 3):
        made = make_environments(limited, 1, EnvSection(frame_stack=frames))
        assert (made.frame_stack, made.observation_space.shape) == (frames, (frames, 2))
        made.close()
    assert make_environments(limited, 1, EnvSection(frame_stack=1)).observation_space.shape == (2,)
    assert stepped(EnvSection(frame_stack=2), 1)[0, :, 0].tolist() == [0.0, 1.0]
    assert stepped(EnvSection(frame_stack=3), 1)[0, :, 0].tolist() == [0.0, 0.0, 1.0]
    assert stepped(EnvSection(frame_stack=3), 3)[0, :, 0].tolist() == [1.0, 2.0, 3.0]


# -- scales -------------------------------------------------------------------------------------


BANDIT = spaces.Dict(arms=spaces.Box(-9, 9, (3, 2)), action_mask=spaces.MultiBinary(3))


def rows_of_arms(count: int, absent: float) -> dict[str, Any]:
    """Features of three arms, of which the last never comes and the second now and then."""
    random = numpy.random.default_rng(count)
    arms = random.normal(3.0, 2.0, (count, 3, 2)).astype(numpy.float32)
    mask = numpy.ones((count, 3), numpy.int8)
    mask[::3, 1] = mask[:, 2] = 0
    arms[mask == 0] = absent
    return {"arms": arms, "action_mask": mask}


@pytest.mark.parametrize("absent", [0.0, 99.0, numpy.nan, numpy.inf])
def test_statistics_are_of_the_arms_that_are_present(absent: float) -> None:
    made, restored = (normalization(BANDIT, normalize_observation=True) for _ in range(2))
    parts = [rows_of_arms(count, absent) for count in (4, 1, 7)]
    # All that there are in the first rows of another bandit.
    parts[1]["action_mask"][:] = [[1, 0, 0]]
    for number, seen in enumerate(parts):
        count = len(seen["arms"])
        made.absorb(seen, numpy.zeros((count, 1)), numpy.ones((count, 1), bool))
        if number == 1:
            restored.set_state(made.get_state())
    restored.absorb(seen, numpy.zeros((count, 1)), numpy.ones((count, 1), bool))
    scaled = made.observations(parts[2])["arms"]
    arms = numpy.concatenate([one["arms"] for one in parts]).astype(float)
    present = numpy.concatenate([one["action_mask"] for one in parts]) == 1
    for arm in (0, 1):
        rows = arms[present[:, arm], arm]
        expected = (parts[2]["arms"][:, arm] - rows.mean(0)) / numpy.sqrt(rows.var(0) + 1e-8)
        here = parts[2]["action_mask"][:, arm] == 1
        numpy.testing.assert_allclose(scaled[here, arm], expected[here].clip(-10, 10), atol=1e-4)
    # Of an arm that never came nothing is known.
    (mean, factor) = made.scales[("arms",)]
    assert mean[2].tolist() == [0.0, 0.0]
    assert factor[2].tolist() == [1.0, 1.0]
    numpy.testing.assert_array_equal(restored.observations(parts[2])["arms"], scaled)


def test_many_present_arms_are_added_up_in_double_precision() -> None:
    made = normalization(BANDIT, normalize_observation=True)
    seen = rows_of_arms(50_000, numpy.nan)
    seen["arms"] += numpy.float32(1e4)
    made.absorb(seen, numpy.zeros((50_000, 1)), numpy.ones((50_000, 1), bool))
    moments = made.get_state()["moments"][0]
    numpy.testing.assert_allclose(moments[1][0], seen["arms"][:, 0].mean(0, dtype=float), rtol=1e-9)
    numpy.testing.assert_allclose(moments[2][0], seen["arms"][:, 0].var(0, dtype=float), rtol=1e-6)


def normalization(space: spaces.Space[Any] = Counts.observation_space, **options: Any) -> Any:
    return Normalization(EnvSection(**options), space, 2)


def test_observations_come_to_mean_zero_and_spread_one() -> None:
    made = normalization(normalize_observation=True)
    rows = numpy.array([[1.0, 10.0], [3.0, 30.0]])
    assert made.observations(rows).tolist() == [[1.0, 10.0], [3.0, 10.0]]
    made.absorb(rows[:1], numpy.zeros((1, 1)), numpy.zeros((1, 1), bool))
    made.absorb(rows[1:], numpy.zeros((1, 1)), numpy.zeros((1, 1), bool))
    # Means 2 and 20, spreads 1 and 10, however they were absorbed.
    numpy.testing.assert_allclose(made.observations(rows), [[-1, -1], [1, 1]], atol=1e-6)
    assert made.observations(rows).dtype == numpy.float32
    assert made.observations(numpy.array([[1e9, -1e9]])).tolist() == [[10.0, -10.0]]
    assert made.space(Counts.observation_space) == spaces.Box(-10, 10, (2,), numpy.float32)


def test_statistics_are_those_of_the_rows_of_all_learners() -> None:
    alone = normalization(normalize_observation=True, normalize_reward=True)
    before = alone.get_state()["moments"]
    # One learner alone has nobody to take part with.
    alone.absorb_nothing()
    assert repr(alone.get_state()["moments"]) == repr(before)

    one = normalization(normalize_observation=True, normalize_reward=True)
    given: list[tuple[int, Any, Any]] = []

    def gather(own: tuple[int, Any, Any]) -> list[tuple[int, Any, Any]]:
        given.append(own)
        # Statistics of observations and those of returns take turns.
        shape = (2,) if len(given) % 2 else ()
        return [own, (2, numpy.full(shape, 2.0), numpy.full(shape, 1.0))]

    one.gather = gather
    one.absorb_nothing()
    # Of observations and of returns.
    assert [count for count, *_ in given] == [0, 0]
    for count, mean, variance in one.get_state()["moments"]:
        assert (count, numpy.ravel(mean)[0], numpy.ravel(variance)[0]) == (2, 2.0, 1.0)
    numpy.testing.assert_allclose(one.observations(numpy.array([[3.0, 1.0]])), [[1, -1]], atol=1e-6)
    assert float(one.rewards(numpy.array([3.0]))[0]) == pytest.approx(3.0)
    nothing = numpy.zeros((1, 2))
    one.absorb(numpy.full((2, 2), 5.0), nothing, nothing.astype(bool))
    # Again two rows of the other: four of mean 2 and variance 1, and two that are 5.
    count, mean, variance = one.get_state()["moments"][0]
    assert (count, mean[0]) == (6, pytest.approx(3.0))
    assert variance[0] == pytest.approx((4 * 1.0 + 4 * 1.0**2 + 2 * 2.0**2) / 6)


def test_pictures_masks_and_choices_are_left_as_they_are() -> None:
    space = spaces.Dict(
        {
            "numbers": spaces.Box(-9, 9, (1,), numpy.float64),
            "picture": spaces.Box(0, 255, (8, 8), numpy.uint8),
            "choice": spaces.Discrete(3),
            "action_mask": spaces.Box(0, 1, (2,), numpy.float32),
        }
    )
    made = normalization(space, normalize_observation=True)
    seen = {
        "numbers": numpy.array([[4.0], [6.0]]),
        "picture": numpy.ones((2, 8, 8), numpy.uint8),
        "choice": numpy.array([1, 2]),
        "action_mask": numpy.ones((2, 2), numpy.float32),
    }
    made.absorb(seen, numpy.zeros((1, 2)), numpy.zeros((1, 2), bool))
    scaled = made.observations(seen)
    numpy.testing.assert_allclose(scaled["numbers"], [[-1], [1]], atol=1e-6)
    for name in ("picture", "choice", "action_mask"):
        assert scaled[name] is seen[name]
    with pytest.raises(RequestError, match="there are no numbers in Discrete"):
        normalization(spaces.Discrete(2), normalize_observation=True)


def test_numbers_in_tuples_are_normalised_each_by_their_own_statistics() -> None:
    part = spaces.Box(-99, 99, (1,), numpy.float32)
    made = normalization(spaces.Tuple((part, spaces.Discrete(3), part)), normalize_observation=True)
    choice = numpy.array([1, 2])
    seen = numpy.array([[4.0], [6.0]]), choice, numpy.array([[10.0], [30.0]])
    made.absorb(seen, numpy.zeros((1, 2)), numpy.zeros((1, 2), bool))
    first, between, last = made.observations(seen)
    numpy.testing.assert_allclose(first, [[-1], [1]], atol=1e-6)
    numpy.testing.assert_allclose(last, [[-1], [1]], atol=1e-6)
    assert between is choice
    scaled = spaces.Box(-10, 10, (1,), numpy.float32)
    assert made.space(spaces.Tuple((part, spaces.Discrete(3), part))) == spaces.Tuple(
        (scaled, spaces.Discrete(3), scaled)
    )


def test_rewards_are_divided_by_the_spread_of_returns() -> None:
    made = normalization(normalize_reward=True, normalize_gamma=0.5, normalize_clip=3.0)
    rewards = numpy.array([[2.0, 0.0], [4.0, 0.0], [8.0, 0.0]])
    ended = numpy.array([[False, False], [True, False], [False, False]])
    made.absorb(numpy.zeros((6, 2)), rewards, ended)
    # Returns 2, 5 and, after an end, 8; three of 0: mean 2.5, mean of squares 15.5.
    spread = (15.5 - 2.5**2) ** 0.5
    assert made.rewards(numpy.array([1.0, 100.0])).tolist() == pytest.approx([1 / spread, 3.0])


def test_steps_that_only_reset_are_not_absorbed() -> None:
    made = normalization(normalize_reward=True, normalize_gamma=0.5)
    stepped_here = numpy.array([[True, True], [False, True]])
    made.absorb(
        numpy.zeros((3, 2)), numpy.array([[2.0, 2.0], [0.0, 2.0]]), ~stepped_here, stepped_here
    )
    # Returns 2, 2 and 3: variance 2 / 9.
    assert made.rewards(numpy.array([1.0])).tolist() == pytest.approx([(9 / 2) ** 0.5])


def test_rewards_are_clipped_where_they_are_learned_from() -> None:
    made = make_environments(limited, 1, EnvSection(reward_clip=1.0))
    made.reset(0)
    _, rewards, *_ = made.vector.step(numpy.array([0]))
    assert made.normalization is not None
    assert (rewards.tolist(), made.normalization.rewards(rewards).tolist()) == ([3.0], [1.0])


def test_statistics_that_were_saved_are_gone_on_with() -> None:
    options: dict[str, Any] = {"normalize_observation": True, "normalize_reward": True}
    one, other = normalization(**options), normalization(**options)
    rows = numpy.array([[1.0, 10.0], [3.0, 30.0]])
    one.absorb(rows, numpy.ones((1, 2)), numpy.zeros((1, 2), bool))
    other.set_state(one.get_state())
    for made in (one, other):
        made.absorb(rows + 1, numpy.ones((1, 2)), numpy.zeros((1, 2), bool))
    assert one.observations(rows).tolist() == other.observations(rows).tolist()
    assert one.rewards(numpy.ones(1)) == other.rewards(numpy.ones(1))
    wider = normalization(spaces.Box(-1, 1, (3,)), **options)
    with pytest.raises(RequestError, match=r"have shapes \[\(2,\), \(\)\]"):
        wider.set_state(one.get_state())


# -- Atari, with a console written for the test -------------------------------------------------


class Console(gymnasium.Env[Any, Any]):
    """Three lives; action 0 loses one in every second step; says how often it was reset."""

    observation_space = spaces.Box(0, 99, (2,), numpy.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.ale = self
        self.games = self.taken = 0
        self.pressed: list[int] = []

    def lives(self) -> int:
        return 3 - self.taken // 2

    def get_action_meanings(self) -> list[str]:
        return ["NOOP", "FIRE"]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.games, self.taken = self.games + 1, 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.pressed.append(action)
        self.taken += action == 0
        return self._seen(), 0.0, self.lives() == 0, False, {}

    def _seen(self) -> Any:
        return numpy.array([self.games, self.taken], numpy.float32)


def test_a_lost_life_ends_an_episode_and_the_game_goes_on() -> None:
    env = EpisodicLife(Console())
    observation, _ = env.reset(seed=0)
    assert observation.tolist() == [1, 0]
    assert [env.step(0)[2] for _ in range(2)] == [False, True]
    # The reset does nothing for one step of the same game.
    assert env.reset()[0].tolist() == [1, 3]
    assert env.step(0)[2]
    assert env.reset()[0].tolist() == [1, 5]
    assert env.step(0)[2]
    assert env.reset()[0].tolist() == [2, 0]


def test_fire_is_pressed_after_a_reset() -> None:
    console = Console()
    FireReset(console).reset(seed=0)
    assert console.pressed == [1]


def test_fire_is_pressed_after_a_lost_life_where_the_episode_goes_on() -> None:
    console = Console()
    env = FireReset(console)
    env.reset(seed=0)
    for _ in range(4):
        env.step(0)
    # The second of them lost a life: instead of the third, fire.
    assert console.pressed == [1, 0, 0, 1, 0]
    env.step(0)
    env.reset()
    env.step(0)
    assert console.pressed[5:] == [0, 1, 0]


def test_preprocessing_is_for_atari_games() -> None:
    with pytest.raises(RequestError, match="is no Atari game"):
        atari(Counts(), episodic_life=True)
    with pytest.raises(RequestError, match=r"^env\.atari: CartPole-v1 is no Atari game"):
        make_environments("CartPole-v1", 1, EnvSection(atari=True))


def test_a_vector_in_turn_resets_in_the_same_step() -> None:
    vector = SyncVector([limited])
    vector.reset(seed=0)
    assert vector.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    for _ in range(3):
        vector.step(numpy.array([0]))
    observation, _, _, truncated, infos = vector.step(numpy.array([0]))
    assert (observation[0, 0], truncated.tolist()) == (0.0, [True])
    assert infos["final_obs"][0][0] == 4.0
