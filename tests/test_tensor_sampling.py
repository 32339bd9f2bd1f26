"""Experience of tensors equals that of arrays, and nothing in the loop reads a value."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import attrs
import numpy
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import rlplug as rl
from examples.tensor_tasks import TensorCartPole, TensorPendulum
from rlplug import Acted, ActInput, Module
from rlplug.batch.nested import leaves
from rlplug.config.sections import EnvSection
from rlplug.envs import Environments, make_environments
from rlplug.feeds import FeedSetting, Replay, Rollout
from rlplug.runs.build_learner import build_learner
from tests.collecting import collector

MODES = ("same_step", "next_step")
COPIES = ("tensor", "as_tensor", "from_numpy")
"""Functions of torch that copy from the host, which waits for the device, too."""
READS = ("cpu", "numpy", "item", "tolist", "__bool__", "__int__", "__float__", "__array__")
SYNCS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::is_nonzero")


class Counts(TorchDispatchMode):
    """Counts operations that wait for a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().partition(".")[0]
        masks = [
            one
            for part in args
            if isinstance(part, list | tuple)
            for one in part
            if isinstance(one, Tensor) and one.dtype == torch.bool
        ]
        if name in SYNCS or (name == "aten::index" and masks):
            self.found.append(name)
        return func(*args, **(kwargs or {}))


@contextmanager
def reads_counted() -> Iterator[list[str]]:
    """What would wait for a GPU, by the names of methods and operations."""
    found: list[str] = []

    def counting(name: str, method: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            # A tensor is taken as it is.
            if name != "as_tensor" or not isinstance(args[0], Tensor):
                found.append(name)
            return method(*args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch, Counts() as counts:
        for name in READS:
            patch.setattr(Tensor, name, counting(name, getattr(Tensor, name)))
        for name in COPIES:
            patch.setattr(torch, name, counting(name, getattr(torch, name)))
        counts.found = found
        yield found


class Steps(VectorEnv[Any, Any, Any]):
    """Rows count the steps of their episodes, which end after 2, 3, 4 … of them; every second
    episode is terminated, the others are truncated. An observation is row, episode and step.
    """

    def __init__(self, num_envs: int, device: str = "cpu", autoreset: str = "same_step") -> None:
        self.num_envs = num_envs
        mode = AutoresetMode[autoreset.upper()]
        self.metadata = {"autoreset_mode": mode}
        self.single_observation_space = spaces.Dict({"at": spaces.Box(0, 1e6, (3,))})
        self.single_action_space = spaces.Discrete(3, start=1)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.row = torch.arange(num_envs)
        self.same_step = mode == AutoresetMode.SAME_STEP

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.episode = torch.zeros(self.num_envs)
        self.taken = torch.zeros(self.num_envs)
        self.over = torch.zeros(self.num_envs, dtype=torch.bool)
        return self.seen(), {}

    def seen(self) -> Any:
        return {"at": torch.stack((self.row.float(), self.episode, self.taken), 1)}

    def step(self, actions: Tensor) -> Any:
        resets = self.over & (not self.same_step)
        self.taken = self.taken + 1
        ended = (self.taken >= self.row + 2) & ~resets
        terminated = ended & (self.episode % 2 == 0)
        rewards = (self.taken + 10 * self.episode + 100 * self.row + actions / 8) * ~resets
        infos: dict[str, Any] = {}
        if self.same_step:
            infos["final_obs"], resets = self.seen(), ended
        self.over = ended
        self.episode = torch.where(resets, self.episode + 1, self.episode)
        self.taken = torch.where(resets, 0.0, self.taken)
        return self.seen(), rewards, terminated, ended & ~terminated, infos


class Scripted(Module):
    """Acts by the step of the episode, with a state that counts the steps since its start."""

    acts_on_tensors = True

    def __init__(self, *, memory: bool = False) -> None:
        super().__init__()
        self.memory = memory

    def initial_state(self, n: int) -> Any:
        return {"age": torch.full((n, 1), 5.0)} if self.memory else None

    def forward_exploration(self, act: ActInput) -> Acted:
        at = act.observations["at"]
        state = {"age": act.state["age"] + 1} if self.memory else None
        actions = 1 + (at[:, 2] + at[:, 1]) % 3
        actions = actions.long() if act.in_torch else actions.astype(int)
        return Acted(actions, state, {"seen": at[:, 2] * 2})


def environments(env: Any, num_envs: int = 3, *, tensors: bool, **more: Any) -> Environments:
    return make_environments(env, num_envs, EnvSection(**more), tensors=tensors)


def samplers(env: Any, module: Module, num_envs: int = 3, **options: Any) -> list[Any]:
    """One for tensors, and one for the same environment as arrays."""
    made: list[Any] = [
        collector(environments(env, num_envs, tensors=True), module, seed=3, **options),
        collector(environments(env, num_envs, tensors=False), module, seed=3, **options),
    ]
    for sampler in made:
        sampler.start()
    return made


def setting(num_envs: int, *, tensors: bool, memory: bool = False) -> FeedSetting:
    env = Steps(num_envs)
    return FeedSetting(
        observation_space=env.single_observation_space,
        action_space=env.single_action_space,
        num_envs=num_envs,
        steps=10_000,
        seed=1,
        has_memory=memory,
        device=torch.device("cpu") if tensors else None,
    )


def assert_equal(one: Any, other: Any, name: str) -> None:
    for left, right in zip(leaves(one), leaves(other), strict=True):
        numpy.testing.assert_array_equal(numpy.asarray(left), numpy.asarray(right), name)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("memory", [False, True])
def test_rollouts_of_tensors_equal_those_of_arrays(mode: str, memory: bool) -> None:
    described = Rollout(n_steps=7, batch_size=0, truncated_bptt=3 if memory else 0)
    feeds = [described.open(setting(3, tensors=one, memory=memory)) for one in (True, False)]
    pair = samplers(
        partial(Steps, autoreset=mode),
        Scripted(memory=memory),
        steps=7,
        by_environment=True,
        state_interval=feeds[0].state_interval,
    )
    for _ in range(4):
        taken = [
            next(iter(feed.take(sampler.collect(0), 0))).batch
            for feed, sampler in zip(feeds, pair, strict=True)
        ]
        tensors, arrays = taken
        assert set(tensors) == set(arrays) >= {"fragments", "final_observations", "seen"}
        assert memory == ("state" in tensors)
        for name in tensors:
            assert_equal(tensors[name], arrays[name], name)
    for sampler in pair:
        sampler.absorb()
    found = [sampler.take_metrics() for sampler in pair]
    assert found[0] == pytest.approx(found[1])
    assert found[0]["rollout/length_mean"] > 2


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("n_step", [1, 3])
def test_replayed_transitions_are_what_happened(mode: str, n_step: int) -> None:
    gamma = 0.5
    described = Replay(buffer_size=60, batch_size=40, learning_starts=0, gamma=gamma, n_step=n_step)
    feed = described.open(setting(3, tensors=True))
    (sampler, _) = samplers(partial(Steps, autoreset=mode), Scripted())
    seen, lengths = set(), {0: 2, 1: 3, 2: 4}
    for step in range(60):
        for work in feed.take(sampler.collect(3 * step), 3 * step + 3):
            columns = {name: work.batch.array(name) for name in work.batch}
            for index in range(40):
                row, episode, at = columns["observations"]["at"][index].tolist()
                seen.add((row, episode, at))
                spans = numpy.log(columns["discounts"][index]) / numpy.log(gamma)
                spans = round(float(spans))
                end = lengths[int(row)]
                # Less than n steps at the end of an episode, and at the newest row.
                assert 1 <= spans <= min(n_step, end - at)
                after = columns["next_observations"]["at"][index].tolist()
                assert after == [row, episode, at + spans]
                over = at + spans == end
                assert columns["terminated"][index] == (over and episode % 2 == 0)
                assert columns["truncated"][index] == (over and episode % 2 == 1)
                earned = [
                    at + k + 1 + 10 * episode + 100 * row + (1 + (at + k + episode) % 3) / 8
                    for k in range(spans)
                ]
                expected = sum(gamma**k * one for k, one in enumerate(earned))
                assert columns["rewards"][index] == pytest.approx(expected, rel=1e-6)
                assert columns["actions"][index] == 1 + (at + episode) % 3
                assert columns["seen"][index] == 2 * at
    # Everything that was kept is drawn, and what was overwritten is not any more.
    assert len(seen) > 120
    newest = {(row, episode) for row, episode, _ in seen}
    assert (0.0, 19.0) in newest


def test_a_ring_goes_on_from_its_state() -> None:
    described = Replay(buffer_size=30, batch_size=16, learning_starts=0, prioritized=True)
    batches = []
    whole, first, second = (described.open(setting(3, tensors=True)) for _ in range(3))
    (one, _), (other, _) = (samplers(Steps, Scripted()) for _ in range(2))
    for step in range(20):
        expected = [work.batch for work in whole.take(one.collect(step), step + 1)]
        if step == 13:
            second.set_state(first.get_state())
        feed = first if step < 13 else second
        found = [work.batch for work in feed.take(other.collect(step), step + 1)]
        batches.append((expected, found))
    for expected, found in batches:
        for left, right in zip(expected, found, strict=True):
            for name in left:
                assert_equal(left[name], right[name], name)


# -- nothing is read ---------------------------------------------------------------------------


def collections(sampler: Any, feed: Any, count: int) -> list[str]:
    """What was read in some collections after the first ones."""
    step = 0

    def collect() -> None:
        nonlocal step
        experience = sampler.collect(step)
        step += experience.count
        for work in feed.take(experience, step):
            rows = work.batch
            if "indices" in rows:
                priority = rows["rewards"].abs()
                feed.learned(work, {"indices": rows["indices"], "priority": priority})
        sampler.absorb()

    for _ in range(3):
        collect()
    with reads_counted() as found:
        for _ in range(count):
            collect()
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("algorithm", ["dqn", "rainbow"])
def test_replay_reads_nothing_in_any_step(algorithm: str, mode: str) -> None:
    env = environments(
        lambda num_envs: TensorCartPole(num_envs, max_episode_steps=9, autoreset=mode),
        8,
        tensors=True,
        normalize_observation=True,
        normalize_reward=True,
    )
    learner = build_learner(algorithm, env.observation_space, env.action_space)
    sampler = collector(env, learner.modules["default"], seed=0)
    sampler.start()
    described = Replay(
        buffer_size=200,
        learning_starts=8,
        gradient_steps=2,
        n_step=3,
        prioritized=algorithm == "rainbow",
    )
    feed = described.open(
        attrs.evolve(
            setting(8, tensors=True),
            observation_space=env.observation_space,
            action_space=env.action_space,
            normalization=env.normalization,
        )
    )
    assert collections(sampler, feed, 40) == []


@pytest.mark.parametrize(
    ("env", "options"),
    [
        (TensorCartPole, {}),
        (TensorPendulum, {}),
        (TensorPendulum, {"squash": True, "memory": "lstm"}),
        (TensorPendulum, {"squash": True}),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_rollouts_are_read_once_however_long(env: Any, options: Any, mode: str) -> None:
    made = environments(
        lambda num_envs: env(num_envs, max_episode_steps=9, autoreset=mode),
        8,
        tensors=True,
        normalize_observation=True,
    )
    learner = build_learner("ppo", made.observation_space, made.action_space, options=options)
    found = []
    for steps in (12, 24):
        sampler = collector(
            made, learner.modules["default"], seed=0, steps=steps, by_environment=True
        )
        sampler.start()
        sampler.collect(0)
        with reads_counted() as while_collecting:
            sampler.collect(0)
        assert while_collecting == []
        feed = Rollout(n_steps=steps, batch_size=8).open(
            attrs.evolve(
                setting(8, tensors=True, memory="memory" in options),
                normalization=made.normalization,
            )
        )
        found.append(collections(sampler, feed, 3))
    # The number of fragments must be known; where environments only reset, the rows, too.
    assert found[0] == found[1]
    assert len(found[0]) <= 3 * (1 if mode == "same_step" else 12)


# -- what is accepted and refused --------------------------------------------------------------


class Unnormalised(Module):
    acts_on_tensors = True

    def forward_exploration(self, act: ActInput) -> Acted:
        n = len(act.observations["at"])
        return Acted(torch.ones(n, dtype=torch.int64) if act.in_torch else numpy.ones(n, int))


def test_an_environment_that_gives_no_final_observation_is_told_once(caplog: Any) -> None:
    class Without(Steps):
        def step(self, actions: Tensor) -> Any:
            return (*super().step(actions)[:4], {})

    (sampler, arrays) = samplers(lambda num_envs: Without(num_envs), Scripted())
    for step in range(8):
        experience = sampler.collect(step)
        other = arrays.collect(step)
        ended = experience.ended()[0]
        # The observation before the end is the nearest that there is.
        after = experience.next_rows("observations")["at"]
        assert torch.equal(after[ended], experience.columns["observations"]["at"][ended])
        assert_equal(after, other.next_rows("observations")["at"], "next observations")
    sampler.take_metrics()
    sampler.take_metrics()
    assert [one.message for one in caplog.records if "final_obs" in one.message] == [
        "rlplug: environment '<lambda>' gives no infos['final_obs']: the values of episodes that "
        "it truncates are bootstrapped from the observation before."
    ]


class Bad(Steps):
    """Gives something wrong in its third step."""

    def __init__(self, num_envs: int, wrong: str) -> None:
        super().__init__(num_envs)
        self.wrong, self.count = wrong, 0

    def step(self, actions: Tensor) -> Any:
        seen, rewards, terminated, truncated, infos = super().step(actions)
        self.count += 1
        if self.count == 3:
            if self.wrong == "reward":
                rewards = rewards / 0
            if self.wrong == "observation":
                seen = {"at": seen["at"] * float("nan")}
            if self.wrong == "mask":
                infos["action_mask"] = torch.zeros(self.num_envs, 3, dtype=torch.bool)
            if self.wrong == "shape":
                rewards = rewards[:, None]
            if self.wrong == "observations":
                seen = {"at": seen["at"][:, :2]}
            if self.wrong == "type":
                terminated = terminated.float()
            if self.wrong == "arrays":
                rewards = rewards.numpy()
            if self.wrong == "raises":
                raise ZeroDivisionError("no more")
            if self.wrong == "four":
                return seen, rewards, terminated, infos
        return seen, rewards, terminated, truncated, infos


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("reward", "gave a reward that is not a finite number between steps 0 and 15"),
        ("observation", "gave an observation that is not a finite number between steps 0 and 15"),
        ("mask", "gave an action mask that forbids every action between steps 0 and 15"),
    ],
)
def test_bad_numbers_are_told_at_the_next_report(wrong: str, message: str) -> None:
    (sampler, _) = samplers(lambda num_envs: Bad(num_envs, wrong), Unnormalised())
    for step in range(5):
        sampler.collect(3 * step)
    with pytest.raises(rl.RlplugError, match=message):
        sampler.take_metrics()
    # No checkpoint is saved with them either.
    (sampler, _) = samplers(lambda num_envs: Bad(num_envs, wrong), Unnormalised())
    for step in range(5):
        sampler.collect(3 * step)
    with pytest.raises(rl.RlplugError, match=message):
        sampler.get_state()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("shape", r"failed in step after 6 steps: ValueError: it gave rewards of shape \(3, 1\)"),
        ("observations", r"it gave observations with 'at' of shape \(3, 2\)"),
        ("type", "it gave terminated of torch.float32, expected booleans"),
        ("arrays", "it gave rewards of ndarray, expected tensors on cpu"),
        ("raises", "failed in step after 6 steps: ZeroDivisionError: no more"),
        ("four", "failed in step after 6 steps: ValueError: not enough values"),
    ],
)
def test_what_has_the_wrong_form_is_refused_at_once(wrong: str, message: str) -> None:
    (sampler, _) = samplers(lambda num_envs: Bad(num_envs, wrong), Unnormalised())
    sampler.collect(0)
    sampler.collect(3)
    with pytest.raises(rl.RlplugError, match=message):
        sampler.collect(6)


def test_a_module_that_breaks_its_word_is_refused() -> None:
    class Arrays(Unnormalised):
        def forward_exploration(self, act: ActInput) -> Acted:
            return Acted(numpy.ones(3, int))

    class Floats(Unnormalised):
        def forward_exploration(self, act: ActInput) -> Acted:
            return Acted(torch.ones(3))

    for module, message in (
        (Arrays(), "its actions are of ndarray, not tensors on cpu"),
        (Floats(), "actions are of torch.float32, the action space has whole numbers"),
    ):
        (sampler, _) = samplers(Steps, module)
        with pytest.raises(rl.RlplugError, match=message):
            sampler.collect(0)


# -- what is added up on the device ----------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("mode", MODES)
def test_episodes_are_counted_on_the_device_as_those_of_arrays(mode: str, steps: int) -> None:
    make = partial(Steps, autoreset=mode)
    on_device, arrays = samplers(make, Scripted(), steps=steps)
    told: list[Any] = []
    for sampler in (on_device, arrays):
        metrics = []
        for step in range(0, 60, 3 * steps):
            sampler.collect(step)
            if step % 2:
                metrics.append(sampler.take_metrics())
        sampler.start()
        sampler.collect(60)
        told.append([*metrics, sampler.take_metrics(), sampler.take_metrics()])
    for one, other in zip(*told, strict=True):
        assert one == pytest.approx(other)
    assert told[0][-1] == {}
