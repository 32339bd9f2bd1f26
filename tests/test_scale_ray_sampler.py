"""How the sampler of a run and its runners on Ray talk, with runners that tell what they hear."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from typing import Any

import gymnasium
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlplug.config.sections import EnvSection, LeagueSection
from rlplug.envs import Environments
from rlplug.envs.normalization import Normalization
from rlplug.errors import EnvironmentFailedError, RequestError, RunFailedError
from rlplug.sampling.league import Roster
from rlplug.scale import ray_sampler
from rlplug.scale.ray_sampler import RaySampler
from tests.scale_actors import REFUSES, Telling

WHY = r"\((exit code 3|killed or crashed)\)"
"""Ray does not always know it yet."""

pytestmark = pytest.mark.usefixtures("cluster")


@contextmanager
def sampler_of(
    *,
    dies_at: Callable[[int, int], int] = lambda index, life: -99,
    num_cpus: float = 0.1,
    resources: dict[str, float] | None = None,
    ahead: int = 0,
    max_restarts: int = 3,
    placement_timeout: float = 300.0,
    roster: Roster | None = None,
    made: list[Any] | None = None,
) -> Iterator[tuple[RaySampler, Any, Normalization]]:
    """A sampler of two runners with two environments each, and whose numbers they get.

    `dies_at`: at which timestep each life of a runner ends; `made` gets all runners.
    """
    ray = import_module("ray")
    actor = ray.remote(num_cpus=num_cpus, resources=resources, max_restarts=0)(Telling)

    def make(index: int, *, life: int, beside: str = "") -> Any:
        kind = actor.options(num_cpus=0, resources={}) if beside else actor
        runner = kind.remote(index, life, dies_at(index, life))
        if made is not None:
            made.append(runner)
        return runner

    vector = SyncVectorEnv([partial(gymnasium.make, "CartPole-v1")] * 4)
    box = gymnasium.spaces.Box(-9, 9, (1,))
    normalization = Normalization(EnvSection(normalize_observation=True), box, 4)
    environments = Environments(vector, "CartPole-v1", AutoresetMode.SAME_STEP, normalization)
    module: Any = torch.nn.Linear(1, 1)
    sampler = RaySampler(
        ray,
        make,
        environments,
        {"default": module},
        {"default": 4},
        runners=2,
        learners=1,
        ahead=ahead,
        max_restarts=max_restarts,
        placement_timeout=placement_timeout,
        roster=roster,
    )
    try:
        yield sampler, module, normalization
    finally:
        sampler.close()
        vector.close()


def kill(runner: Any) -> None:
    """Kill a runner, and wait until it answers no more."""
    ray = import_module("ray")
    ray.kill(runner)
    with suppress(ray.exceptions.RayActorError):
        while True:
            ray.get(runner.__ray_ready__.remote())


def test_runners_collect_ahead_with_the_weights_of_that_time(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with sampler_of(ahead=1) as (sampler, module, normalization):
        ray = sampler._ray

        def told() -> list[Any]:
            return [ray.get(one.told.remote())[0] for one in sampler._runners]

        def set_weight(value: float) -> None:
            torch.nn.init.constant_(module.weight, value)

        set_weight(1.0)
        assert (sampler.version, sampler.step_seconds) == (0, 0.0)
        sampler.absorb()
        sampler.start(7)
        assert told() == [["build", ("start", 7, None)]] * 2
        # Calls, and timesteps beside 100 of the second runner; the weight, and the life.
        first = sampler.collect(0).columns
        assert first["rewards"].tolist() == [1.0, 0.0, 1.0, 100.0]
        assert first["weights"].tolist() == [1.0, 0.0, 1.0, 0.0]
        assert sampler.step_seconds == 2.0
        set_weight(2.0)
        sampler.version = 5
        # Begun with the one before.
        second = sampler.collect(4).columns
        assert second["rewards"].tolist() == [2.0, 0.0, 2.0, 100.0]
        assert second["weights"][0] == 1.0
        # Weights are sent once for each version.
        set_weight(3.0)
        for timestep, before in ((8, 4), (12, 8)):
            later = sampler.collect(timestep)
            assert later.columns["rewards"][1::2].tolist() == [before, 100.0 + before]
            assert later.columns["weights"].tolist() == [2.0, 0.0, 2.0, 0.0]
            assert later.columns["observations"].tolist() == [[5.0]] * 4
        sampler.absorb()
        (moments,) = normalization._moments.values()
        assert (moments.count, moments.mean.tolist()) == (4, [5.0])
        assert sampler.take_metrics() == {
            "rollout/reward_mean": 1.5,
            "rollout/return_mean": 15.0,
            "rollout/length_mean": 1.5,
        }

        saved = sampler.get_state(environments=True)
        assert [one["index"] for one in saved["runners"]] == [0, 1]
        assert saved["not_saved"] == ""
        assert saved["environments"]
        assert sampler.set_state(saved, seed=3) == ""
        assert [one[-1] for one in told()] == [
            ("set_state", state, 3, None) for state in saved["runners"]
        ]
        lost = sampler.get_state(environments=False)
        assert (lost["not_saved"], lost["environments"]) == ("runner 0 was not asked", b"")
        assert sampler.set_state(lost, seed=4) == "runner 0 was not asked"
        # Those of a checkpoint whose environments were not kept.
        partly = {**saved, "environments": b"", "not_saved": "too large"}
        assert sampler.set_state(partly, seed=4) == "too large"
        _, state, *_ = told()[1][-1]
        assert state == {"index": 1, "environments": b"", "not_saved": "too large"}
        for runners, said in ((1, "1 runner"), (3, "3 runners")):
            other = {**saved, "runners": saved["runners"][:1] * runners}
            assert sampler.set_state(other, seed=9) == f"the run had {said}, now it has 2"
            assert [one[-1] for one in told()] == [("start", 9, None)] * 2
        assert sampler.set_state({}, seed=9) == "the run had no runners, now it has 2"

        # What was under way is forgotten.
        sampler.start()
        with pytest.raises(EnvironmentFailedError, match=r"^runner 0 fails\n  try: less$"):
            sampler.collect(-1)
        sampler.start()
        with pytest.raises(RequestError, match=r"^runner 0 fails\n  try: less$"):
            sampler.collect(-2)
        sampler.start()
        assert sampler.collect(20).columns["rewards"][1] == 20.0
    # What runners print is in the log files of Ray.
    assert "is built" not in "".join(capfd.readouterr())


@pytest.mark.long
def test_runners_that_die_are_replaced_as_often_as_is_allowed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A successor that starts slowly, on a busy machine, is waited for rather than put elsewhere.
    monkeypatch.setattr(ray_sampler, "_ROOM_SECONDS", 600.0)

    def dies_at(index: int, life: int) -> int:
        return {(1, 0): 4, (0, 0): 12, (0, 2): 20}.get((index, life), -99)

    caplog.set_level(logging.WARNING, "rlplug")
    with sampler_of(ahead=1, max_restarts=2, dies_at=dies_at) as (sampler, _, _):
        sampler.start(7)
        sampler.collect(0)
        sampler.collect(4)
        # What the second runner has under way, and what is begun now, comes from its successor.
        assert sampler.collect(8).columns["rewards"].tolist() == [3.0, 4.0, 1.0, 104.0]
        (record,) = caplog.records
        said = rf"rlplug: runner 1 died and is replaced; its episodes start anew {WHY}\."
        assert re.fullmatch(said, record.getMessage())
        (asked, failure) = sampler._ray.get(sampler._runners[1].told.remote())
        assert (asked, failure) == (["build", ("start", None, None)], None)
        assert sampler.take_metrics()["sampling/restarts"] == 1.0
        last = sampler.collect(12).columns
        assert last["rewards"].tolist() == [4.0, 8.0, 2.0, 108.0]
        assert last["weights"][1::2].tolist() == [0.0, 1.0]
        # The first one is found to be gone when it is asked for something else.
        sampler.stats_by_module["default"].sum = lambda numbers: [2 * one for one in numbers]
        assert sampler.take_metrics()["sampling/restarts"] == 4.0
        assert sampler.collect(16).columns["weights"][1::2].tolist() == [2.0, 1.0]
        said = rf"^runner 0 died {WHY}, after 2 others\.\n  try: look at its memory, or --set "
        with pytest.raises(RunFailedError, match=rf"{said}scale\.max_restarts=N$"):
            # With it may be lost what it had sent and nobody had read.
            all(sampler.collect(step) for step in (20, 24))


@pytest.mark.long
def test_only_runners_whose_node_is_still_there_count_as_dead() -> None:
    with sampler_of(max_restarts=0) as (sampler, _, _):
        here, _ = sampler._nodes
        sampler.start(7)
        sampler._nodes[1] = "one that has left"
        kill(sampler._runners[1])
        # That of its successor is asked again.
        metrics = sampler.take_metrics()
        assert (metrics["rollout/return_mean"], metrics["sampling/restarts"]) == (15.0, 1.0)
        assert sampler.collect(0).columns["weights"][1::2].tolist() == [0.0, 1.0]
        assert sampler._nodes == [here, here]
        kill(sampler._runners[1])
        with pytest.raises(RunFailedError, match=r"runner 1 died .*, after 0 others"):
            sampler.collect(4)


@pytest.mark.long
def test_a_copy_of_the_league_is_sent_once_to_each_runner_and_all_to_a_successor(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also to one for which there is no room, and which moves when there is."""
    monkeypatch.setattr(ray_sampler, "_ROOM_SECONDS", 0.2)
    caplog.set_level(logging.WARNING, "rlplug")
    module: Any = torch.nn.Linear(1, 1)
    agents = {"agent_0": "default", "agent_1": "default"}
    sides = [["agent_0"], ["agent_1"]]
    roster = Roster(LeagueSection(every=10), agents, {"default": module}, sides)

    ray = import_module("ray")
    (node,) = (name for name in ray.cluster_resources() if re.fullmatch(r"node:[\d.]+", name))
    # There is 1 of it, on the only node.
    half = {node: 0.5}
    holder = ray.remote(num_cpus=0, resources=half)(Holder)

    def dies_at(index: int, life: int) -> int:
        return REFUSES if life == 4 else -99

    with sampler_of(roster=roster, resources=half, dies_at=dies_at, max_restarts=9) as (
        sampler,
        _,
        _,
    ):

        def heard() -> list[tuple[list[int], list[int]]]:
            """The numbers in the pool, and of the copies that are sent, last of each runner."""
            told = [sampler._ray.get(one.told.remote())[0][-1][-1] for one in sampler._runners]
            return [
                (list(range(len(one["history"]))), [copy["number"] for copy in one["copies"]])
                for one in told
            ]

        def beside(lost: Any, step: int) -> tuple[Any, Any]:
            """Who goes on beside another for one that is killed, and who has room by now."""
            waiting = holder.remote()
            ray.kill(lost)
            ray.get(waiting.__ray_ready__.remote())
            sampler.collect(step)
            own, built = sampler._waiting[1]
            ray.kill(waiting)
            ray.get(built)
            return sampler._runners[1], own

        sampler.start(7)
        assert heard() == [([0], [0])] * 2
        saved = sampler.get_state(environments=True)
        sampler.set_state(saved, seed=3)
        assert heard() == [([0], [])] * 2
        roster.refresh(10)
        sampler.set_state(saved, seed=3)
        assert heard() == [([0, 1], [1])] * 2
        sampler.set_state(saved, seed=3)
        assert heard() == [([0, 1], [])] * 2
        waiting = holder.remote()
        ray.kill(sampler._runners[1])
        ray.get(waiting.__ray_ready__.remote())
        sampler.collect(20)
        numbers, sent = heard()[1]
        assert len(numbers) > 1
        assert sent == numbers
        assert "there is no room for runner 1, which goes on beside another" in caplog.text
        guest, (lost, built) = sampler._runners[1], sampler._waiting[1]
        ray.kill(waiting)
        ray.get(built)
        # It may have left again before it has the state: another one is made.
        ray.kill(lost)
        sampler.collect(22)
        own, built = sampler._waiting[1]
        assert (own is lost, sampler._runners[1]) == (False, guest)
        ray.get(built)
        sampler.collect(24)
        assert sampler._runners[1] is own
        assert heard()[1] == (numbers, numbers)
        assert "runner 1 has a place of its own again." in caplog.text
        assert sampler.collect(28).columns["rewards"].tolist()[1::2] == [28.0, 128.0]

        # One that cannot have the state of the runner beside another is given up.
        guest, _ = beside(own, 32)
        for step in (36, 40):
            sampler.collect(step)
            assert (sampler._runners[1], sampler._waiting) == (guest, {})
        said = "runner 1 stays beside another: runner 1 has no place for it"
        assert [said in one for one in caplog.messages].count(True) == 1

        # One beside another that dies is followed by the one that waits.
        guest, own = beside(guest, 44)
        ray.kill(guest)
        sampler.collect(48)
        assert (sampler._runners[1], sampler._waiting) == (own, {})
        assert sampler.collect(52).columns["rewards"].tolist()[1::2] == [52.0, 152.0]


def test_a_runner_without_room_goes_where_the_fewest_of_the_others_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with sampler_of() as (sampler, _, _):
        here, _ = sampler._nodes
        assert sampler._alive() == {here}
        monkeypatch.setattr(sampler, "_alive", lambda: {"a", "b", "c"})
        # Nodes that have left, and the place that it had, do not count.
        for nodes, index, where in (
            (["a", "a", "b", "left", "c"], 4, "b"),
            (["a", "b", "b", "left"], 1, "a"),
            (["a", "b", "b", "left", "left"], 0, "b"),
            (["a", "left"], 0, here),
            (["a"], 0, here),
        ):
            sampler._nodes = nodes
            assert sampler._node_beside(index) == where


class Holder:
    """Holds what it reserves."""


def test_a_runner_without_room_is_waited_for_and_then_refused(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_sampler, "_TOLD_SECONDS", 0.1)
    caplog.set_level(logging.WARNING, "rlplug")
    made: list[Any] = []
    with (
        pytest.raises(RunFailedError, match=r"no room for runner 0 on the cluster within 0.3 sec"),
        sampler_of(num_cpus=10_000.0, placement_timeout=0.3, made=made),
    ):
        pass
    # Nobody waits for the room any more.
    over = [one.__ray_ready__.remote() for one in made]
    assert import_module("ray").wait(over, num_returns=2, timeout=60)[0] == over
    assert [one.getMessage() for one in caplog.records] == [
        "rlplug: runner 0 waits for room on the cluster."
    ] * 2
