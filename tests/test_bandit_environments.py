"""What holds for all bandit environments, in both of their forms."""

from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import gymnasium
import numpy
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import rlplug.bandits
from rlplug.bandits import (
    BanditEnv,
    BanditVectorEnv,
    ClassificationBandit,
    FeatureBandit,
    LinearBandit,
    MultiArmedBandit,
)
from rlplug.config import options_table
from rlplug.errors import ConfigError, RequestError

IDS = ("LinearBandit-v0", "FeatureBandit-v0", "ClassificationBandit-v0")


def single(name: str, **options: Any) -> BanditEnv:
    env = gymnasium.make(f"rlplug.bandits:{name}", **options).unwrapped
    assert isinstance(env, BanditEnv)
    return env


def vector(name: str, n: int, **options: Any) -> BanditVectorEnv:
    envs = gymnasium.make_vec(f"rlplug.bandits:{name}", num_envs=n, **options)
    assert isinstance(envs, BanditVectorEnv)
    return envs


def flat(observations: Any) -> numpy.ndarray[Any, Any]:
    """Observations as one row of numbers per context."""
    parts = observations.values() if isinstance(observations, dict) else [observations]
    return numpy.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)


def played(envs: BanditVectorEnv, seed: int, steps: int) -> numpy.ndarray[Any, Any]:
    """All numbers that a reset and steps with arms 0, 1, 0, 1 … return."""
    numbers = [flat(envs.reset(seed=seed)[0]).ravel()]
    for step in range(steps):
        seen, rewards, _, _, infos = envs.step(numpy.full(envs.num_envs, step % 2))
        numbers += [flat(seen).ravel(), rewards, infos["regret"]]
    return numpy.concatenate(numbers)


@pytest.mark.parametrize("name", [*IDS, "MultiArmedBandit-v0", "RingsBandit-v0"])
def test_the_single_form_passes_gymnasiums_check_without_a_warning(name: str) -> None:
    check_env(single(name))


@pytest.mark.parametrize("name", IDS)
def test_every_step_ends_all_episodes_and_brings_the_next_contexts(name: str) -> None:
    envs = vector(name, 3)
    before, _ = envs.reset(seed=1)
    after, rewards, terminated, truncated, infos = envs.step(numpy.array([0, 1, 0]))
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert envs.observation_space.contains(before)
    assert envs.observation_space.contains(after)
    assert (flat(before) != flat(after)).any(axis=1).all()
    assert rewards.shape == (3,)
    assert terminated.tolist() == [True, True, True]
    assert truncated.tolist() == [False, False, False]
    assert infos["_regret"].tolist() == [True, True, True]


@pytest.mark.parametrize("name", IDS)
def test_regret_is_never_negative(name: str) -> None:
    envs = vector(name, 500)
    envs.reset(seed=1)
    for arm in range(2):
        infos = envs.step(numpy.full(500, arm))[4]
        assert (infos["regret"] >= 0.0).all()
        assert (infos["regret"] > 0.0).any()


@pytest.mark.parametrize("name", IDS)
def test_the_same_seed_gives_the_same_stream_and_another_seed_another(name: str) -> None:
    envs = vector(name, 4)
    first = played(envs, 7, 300)
    assert numpy.array_equal(played(envs, 7, 300), first)
    assert numpy.array_equal(played(vector(name, 4), 7, 300), first)
    assert not numpy.array_equal(played(envs, 8, 300), first)


@pytest.mark.parametrize("name", IDS)
def test_the_single_form_plays_what_one_vectorised_environment_plays(name: str) -> None:
    env, envs = single(name), vector(name, 1)
    seen, _ = env.reset(seed=3)
    all_seen, _ = envs.reset(seed=3)
    for step in range(600):
        assert env.observation_space.contains(seen)
        assert all(numpy.array_equal(a, b[0]) for a, b in pairs(seen, all_seen))
        after, reward, terminated, truncated, info = env.step(step % 2)
        assert all(numpy.array_equal(a, b) for a, b in pairs(after, seen))
        all_seen, rewards, _, _, infos = envs.step(numpy.array([step % 2]))
        assert (reward, terminated, truncated) == (rewards[0], True, False)
        assert info == {key: infos[key][0] for key in infos if not key.startswith("_")}
        seen, _ = env.reset()


def pairs(one: Any, other: Any) -> list[tuple[Any, Any]]:
    if isinstance(one, dict):
        return [(one[key], other[key]) for key in one]
    return [(one, other)]


@pytest.mark.parametrize("name", IDS)
def test_a_copied_environment_goes_on_as_the_original_does(name: str) -> None:
    envs = vector(name, 2)
    envs.reset(seed=5)
    actions = numpy.array([0, 1])
    for _ in range(3):
        envs.step(actions)
    twin = copy.deepcopy(envs)
    for _ in range(400):
        (seen, rewards, *_), (twin_seen, twin_rewards, *_) = envs.step(actions), twin.step(actions)
        assert numpy.array_equal(flat(seen), flat(twin_seen))
        assert numpy.array_equal(rewards, twin_rewards)


@pytest.mark.parametrize("name", IDS)
def test_what_a_step_returned_is_not_written_again(name: str) -> None:
    envs = vector(name, 2)
    seen, _ = envs.reset(seed=5)
    kept = [flat(seen).copy()]
    returned = [seen]
    for _ in range(300):
        seen = envs.step(numpy.array([0, 1]))[0]
        returned.append(seen)
        kept.append(flat(seen).copy())
    assert all(numpy.array_equal(flat(a), b) for a, b in zip(returned, kept, strict=True))


def test_environments_of_one_problem_seed_share_their_hidden_parameters() -> None:
    """Noiseless rewards of one arm are a linear function of the context: the same for all."""
    makers = [lambda: single("LinearBandit-v0", noise=0.0, problem_seed=4)] * 8
    apart = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    together = vector("LinearBandit-v0", 8, noise=0.0, problem_seed=4)
    thetas = []
    for seed, envs in ((1, apart), (2, together)):
        seen, _ = envs.reset(seed=seed)
        rewards = envs.step(numpy.zeros(8, dtype=numpy.int64))[1]
        thetas.append(numpy.linalg.solve(seen, rewards))
    assert thetas[0] == pytest.approx(thetas[1], abs=1e-8)


def test_the_seed_of_reset_chooses_the_problem_unless_an_option_does() -> None:
    envs = vector("LinearBandit-v0", 1)
    envs.reset(seed=1)
    first = envs.problem_seed
    envs.reset()
    assert envs.problem_seed == first
    envs.reset(seed=2)
    assert envs.problem_seed != first
    fixed = vector("LinearBandit-v0", 1, problem_seed=first)
    fixed.reset(seed=2)
    assert fixed.problem_seed == first


@pytest.mark.parametrize("name", IDS)
def test_gymnasiums_wrappers_take_both_forms_as_they_are(name: str) -> None:
    env = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make(f"rlplug.bandits:{name}"))
    env.reset(seed=1)
    _, reward, _, _, info = env.step(0)
    assert info["episode"]["r"] == pytest.approx(reward)
    assert info["episode"]["l"] == 1
    envs = gymnasium.wrappers.vector.DictInfoToList(vector(name, 2))
    envs.reset(seed=1)
    infos = envs.step(numpy.array([0, 1]))[4]
    assert [one["regret"] >= 0.0 for one in infos] == [True, True]


def test_a_step_before_the_first_reset_is_refused() -> None:
    with pytest.raises(gymnasium.error.ResetNeeded, match="LinearBanditVectorEnv: call reset"):
        vector("LinearBandit-v0", 1).step(numpy.array([0]))


def test_the_options_of_each_bandit_have_these_types_limits_and_defaults() -> None:
    def told(kind: type[Any]) -> dict[str, tuple[str, str]]:
        return {row.name: (row.type, row.default) for row in options_table.rows(kind)}

    arms, features = ("int, at least 2", "10"), ("int, at least 2", "8")
    noise, drift = ("float, at least 0", "0.1"), ("float, at least 0", "0.0")
    seed = ("int", "null")
    assert told(LinearBandit) == {
        "num_arms": arms,
        "context_dim": features,
        "noise": noise,
        "drift": drift,
        "problem_seed": seed,
    }
    assert told(FeatureBandit) == {
        "num_arms": arms,
        "min_arms": ("int, at least 1", "2"),
        "context_dim": features,
        "arm_dim": features,
        "noise": noise,
        "drift": drift,
        "problem_seed": seed,
    }
    assert told(MultiArmedBandit) == {
        "num_arms": arms,
        "rewards": ("'bernoulli' or 'gaussian'", '"bernoulli"'),
        "noise": ("float, at least 0", "0.5"),
        "problem_seed": seed,
    }
    assert told(ClassificationBandit) == {
        "table": ("anything", '"digits"'),
        "label": ("str", '"label"'),
        "preprocess": ("str, one of 'unit', 'standard', 'none'", '"unit"'),
        "problem_seed": seed,
    }


def test_all_wrong_options_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        single("LinearBandit-v0", num_arms=1, noise="loud", context_dims=3)
    text = str(caught.value)
    assert "3 problems in the options of LinearBanditEnv:" in text
    assert "must be at least 2, got 1" in text
    assert "expected float, got str 'loud'" in text
    assert "unknown option, did you mean 'context_dim'?" in text


def test_options_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match="min_arms must be at most num_arms, got 5 and 3"):
        vector("FeatureBandit-v0", 2, num_arms=3, min_arms=5)


def test_a_bandit_cannot_be_rendered() -> None:
    with pytest.raises(RequestError, match="LinearBanditVectorEnv has nothing to draw"):
        vector("LinearBandit-v0", 1, render_mode="ansi")


def test_importing_bandits_imports_neither_torch_nor_scikit_learn() -> None:
    code = (
        "import sys, gymnasium; gymnasium.make_vec('rlplug.bandits:LinearBandit-v0', 2).reset();"
        "print([name for name in ('torch', 'sklearn', 'pandas', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there() -> None:
    assert all(getattr(rlplug.bandits, name) is not None for name in rlplug.bandits.__all__)
    with pytest.raises(AttributeError, match=r"'rlplug\.bandits' has no attribute 'Nothing'"):
        rlplug.bandits.Nothing  # noqa: B018 # reading it is the test
