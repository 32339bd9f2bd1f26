"""Seeds: how each is derived, by numbers that stay, and who draws from which."""

from __future__ import annotations

import contextlib
import random
from typing import Any, ClassVar

import gymnasium
import numpy
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from torch import nn

from rlplug import Acted, ActInput, Algorithm, Batch, Module, evaluate, run
from rlplug.envs import Environments, make_environments
from rlplug.envs.sync import SyncVector
from rlplug.evaluation import Evaluator
from rlplug.feeds import Feed, FeedSetting, Replay, Rollout, Stream
from rlplug.registry import Registry
from rlplug.seeding import derive, forked
from tests.collecting import collector


def test_derived_seeds_are_the_same_in_every_version_and_on_every_machine() -> None:
    # Other numbers would make runs that were recorded come out otherwise.
    assert [
        derive(0),
        derive(1, "acting"),
        derive(1, "environment", 0),
        derive(1, "environment", 1),
        derive(2**40, "module", "default"),
    ] == [
        7896617691693857887,
        2951492187992634717,
        943068724470449569,
        4935530018773134642,
        2369251618997757575,
    ]


def test_each_path_has_a_seed_of_its_own() -> None:
    paths: list[tuple[str | int, ...]] = [
        (),
        ("a",),
        ("b",),
        ("ab",),
        ("a", "b"),
        ("b", "a"),
        ("a", 1),
        ("a", 2**32),
        ("a", 0, 1),
    ]
    seeds = {derive(seed, *path) for seed in (0, 1) for path in paths}
    assert len(seeds) == 2 * len(paths)
    assert all(0 <= seed < 2**63 for seed in seeds)


def drawn() -> tuple[float, float, float]:
    """The next number of each global generator."""
    return float(torch.rand(())), float(numpy.random.random()), random.random()


def test_inside_a_fork_all_global_generators_begin_at_the_seed_and_go_on_as_before_after_it() -> (
    None
):
    with forked(0):
        following = drawn()
    with forked(0):
        with forked(5):
            first = drawn()
        with forked(5):
            assert drawn() == first
        with forked(6):
            assert all(one != other for one, other in zip(drawn(), first, strict=True))
        assert drawn() == following


def test_a_fork_keeps_the_generators_of_all_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[list[int]] = []

    def noted(devices: Any) -> Any:
        kept.append(list(devices))
        return contextlib.nullcontext()

    before = torch.get_rng_state()
    monkeypatch.setattr(torch.random, "fork_rng", noted)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for initialized in (True, False):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda found=initialized: found)
        with forked(1):
            pass
    torch.set_rng_state(before)
    assert kept == [[0, 1], []]


class Noted(gymnasium.Env[Any, Any]):
    """Episodes of one step; notes the seeds that it is given."""

    observation_space = spaces.Box(0, 1, (1,), numpy.float32)
    action_space = spaces.Discrete(2)
    seeds: list[int]

    def __init__(self, seeds: list[int]) -> None:
        self.seeds = seeds

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.seeds.append(seed)
        return numpy.zeros(1, numpy.float32), {}

    def step(self, action: Any) -> Any:
        return numpy.zeros(1, numpy.float32), 0.0, True, False, {}


class Draws(Module):
    """Keeps what it draws from the generator that it is given, and from torch's own."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[float] = []
        self.seeds: list[int] = []

    def forward_exploration(self, act: ActInput) -> Acted:
        self.drawn.append(act.random.random())
        self.seeds.append(torch.initial_seed())
        return Acted(numpy.zeros(len(act.observations), numpy.int64))

    forward_inference = forward_exploration


def of_environments(seed: int, count: int) -> list[int]:
    return [derive(seed, "environment", index) % 2**31 for index in range(count)]


def first_draw(seed: int) -> float:
    return float(numpy.random.default_rng(derive(seed, "acting")).random())


def test_environments_are_reset_from_seeds_by_their_index() -> None:
    seeds: list[int] = []
    make_environments(lambda: Noted(seeds), 3, {}).reset(5)
    assert seeds == of_environments(5, 3)
    native = make_environments("LinearBandit-v0", 2, {})
    native.reset(5)
    own = derive(5, "environments") % 2**31
    assert native.vector.unwrapped.np_random_seed == own
    assert getattr(native.vector.unwrapped, "problem_seed") == derive(own, "problem")  # noqa: B009


def test_acting_draws_from_a_seed_of_its_own() -> None:
    module = Draws()
    seeds: list[int] = []
    vector = SyncVector([lambda: Noted(seeds)])
    environments = Environments(vector, "Noted", AutoresetMode.SAME_STEP)
    sampler = collector(environments, module, seed=3)
    sampler.start()
    sampler.collect(0)
    assert (seeds, module.drawn) == (of_environments(3, 1), [first_draw(3)])


def test_an_evaluation_has_a_seed_that_training_has_not() -> None:
    module = Draws()
    seeds: list[int] = []
    evaluator = Evaluator(
        lambda n: make_environments(lambda: Noted(seeds), n, {}), episodes=2, parallel=2, seed=3
    )
    evaluator.evaluate(module, 0)
    own = derive(3, "evaluation")
    assert seeds == of_environments(own, 2)
    assert module.drawn == [first_draw(own)]
    assert module.seeds == [own]


class Blank(Algorithm):
    """Learns nothing."""

    def feed(self) -> Feed:
        return Stream()

    def build(self) -> Module:
        return Draws()

    def configure_optimizers_for_module(self) -> None:
        return None


@pytest.mark.usefixtures("home")
def test_a_tracked_run_is_evaluated_on_episodes_of_another_seed_than_its_own() -> None:
    options = {"tracking.enabled": False, "evaluation.episodes": 0}
    result = run(Blank, lambda: Noted([]), steps=2, seed=3, options=options)
    seeds: list[int] = []
    registry = Registry.of(blank=Blank)
    evaluate(result.run_id, env=lambda: Noted(seeds), episodes=1, seed=3, registry=registry)
    own = derive(derive(3, "evaluation of a tracked run"), "evaluation")
    assert seeds == of_environments(own, 1)


def test_replay_draws_from_a_seed_of_its_own() -> None:
    setting = FeedSetting(
        observation_space=Noted.observation_space,
        action_space=Noted.action_space,
        num_envs=1,
        steps=1_000,
        seed=3,
    )
    expected = numpy.random.default_rng(derive(3, "replay")).bit_generator.state
    assert Replay().open(setting).get_state()["random"] == expected


class Weight(Draws):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))


class Learns(Blank):
    """Notes from which seeds it builds, learns and is given its rows."""

    built: ClassVar[list[int]] = []
    trained: ClassVar[list[int]] = []
    rows: ClassVar[list[list[int]]] = []

    def feed(self) -> Feed:
        return Rollout(n_steps=10, batch_size=5)

    def build(self) -> Module:
        self.built.append(torch.initial_seed())
        return Weight()

    def configure_optimizers_for_module(self, module: Weight) -> torch.optim.Optimizer:
        return torch.optim.SGD(module.parameters(), 0.1)

    def prepare_batch(self, batch: Batch) -> dict[str, Any]:
        return {"row": torch.arange(batch.rows)}

    def compute_loss_for_module(self, module: Weight, batch: Batch, learner: Any) -> torch.Tensor:
        self.trained.append(learner.generator().initial_seed())
        self.rows.append(batch["row"].tolist())
        return module.weight**2


@pytest.mark.usefixtures("home")
def test_modules_hooks_and_minibatches_have_seeds_of_their_own() -> None:
    options = {"tracking.enabled": False, "evaluation.episodes": 0, "compute.arrays": "off"}
    run(Learns, lambda: Noted([]), steps=10, seed=3, options=options)
    assert Learns.built == [derive(derive(3, "module", "default"), "algorithm", "learns")]
    assert set(Learns.trained) == {derive(3, "training", "default")}
    generator = torch.Generator().manual_seed(derive(3, "minibatches", "default"))
    order = torch.randperm(10, generator=generator).tolist()
    assert Learns.rows == [order[:5], order[5:]]
