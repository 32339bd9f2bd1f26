"""Which learners and runners a Ray cluster can hold: compared with all ways to place them."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from rlplug.config.scale_section import ScaleSection
from rlplug.errors import RequestError
from rlplug.scale.cluster import learner_resources, refuse_unmet


def section(**options: Any) -> ScaleSection:
    return ScaleSection(engine="ray", **options)


def refused(nodes: Sequence[Mapping[str, float]], **options: Any) -> str:
    with pytest.raises(RequestError) as raised:
        refuse_unmet(nodes, section(**options))
    return str(raised.value)


def ways(count: int, places: int) -> Iterator[tuple[int, ...]]:
    """All ways to put so many alike things into places."""
    for cuts in itertools.combinations(range(count + places - 1), places - 1):
        ends = (-1, *cuts, count + places - 1)
        yield tuple(b - a - 1 for a, b in itertools.pairwise(ends))


def can_be_placed(nodes: Sequence[Mapping[str, int]], asked: Mapping[str, Any]) -> bool:
    """By trying all: one of several learners is on the first node."""
    runner = {"CPU": asked["runner_cpus"], **asked["runner_resources"]}
    learner = {"CPU": asked["learner_cpus"]} if asked["learners"] > 1 else {}
    learners = asked["learners"] if learner else 0
    for put in ways(learners, len(nodes)):
        if learners and not put[0]:
            continue
        for placed in ways(asked["runners"], len(nodes)):
            if all(
                count * learner.get(name, 0) + others * runner.get(name, 0) <= node.get(name, 0)
                for node, count, others in zip(nodes, put, placed, strict=True)
                for name in {*runner, *learner}
            ):
                return True
    return False


def test_what_can_be_placed_in_some_way_and_nothing_else_is_accepted() -> None:
    drawn = random.Random(3)
    answers = []
    for _ in range(300):
        nodes = [
            {"CPU": drawn.randint(0, 7), "big": drawn.randint(0, 3)}
            for _ in range(drawn.randint(1, 3))
        ]
        asked: dict[str, Any] = {
            "runners": drawn.randint(1, 4),
            "runner_cpus": drawn.randint(1, 3),
            "runner_resources": {"big": drawn.randint(1, 2)} if drawn.random() < 0.3 else {},
            "learners": drawn.randint(1, 3),
            "learner_cpus": 1,
        }
        if asked["learners"] > 1:
            asked["learner_cpus"] = drawn.randint(0, 2)
        possible = can_be_placed(nodes, asked)
        answers.append(possible)
        with contextlib.nullcontext() if possible else pytest.raises(RequestError):
            refuse_unmet(nodes, section(**asked))
    assert 80 < sum(answers) < 240


def test_runners_that_reserve_nothing_fit_everywhere() -> None:
    refuse_unmet([{}], section(runners=1000, runner_cpus=0))
    refuse_unmet([{"CPU": 2.0}], section(runners=50, runner_cpus=0, learners=2))
    assert learner_resources(section(learners=2, learner_cpus=0)) == {}


def test_amounts_are_counted_in_ten_thousandths() -> None:
    # In floats, 3 · 0.1 is more than 0.3, and 0.3 / 0.1 less than 3.
    refuse_unmet([{"CPU": 0.3}], section(runners=3, runner_cpus=0.1))
    assert "room for 2" in refused([{"CPU": 0.299}], runners=3, runner_cpus=0.1)


TWO = [{"CPU": 2.0, "big": 2.0}, {"CPU": 4.0}]
FIRST = [{"CPU": 1.0, "fast": 1.0}, {"CPU": 8.0, "fast": 8.0}]


@pytest.mark.parametrize(
    ("nodes", "options", "said", "hint"),
    [
        (TWO, {"runner_gpus": 1}, "CPU 1, GPU 1 can never", "--set scale.runner_gpus=0"),
        (TWO, {"runner_cpus": 5}, "CPU 6 on 2 nodes, none with CPU 5", "scale.runner_cpus=4"),
        (TWO, {"runner_resources": {"nix": 1.0}}, "none with nix 1", "without nix"),
        (TWO, {"runner_resources": {"big": 3.0}}, "none with big 3", "with big = 2"),
        # Each is there, but not on one node.
        (
            TWO,
            {"runner_cpus": 3, "runner_resources": {"big": 1.0}},
            "none with CPU 3, big 1",
            "a smaller scale.runner_cpus or scale.runner_resources",
        ),
        (TWO, {"runners": 3, "runner_cpus": 2.5}, "3 runners with CPU 2.5 each", "runners=1, or"),
        (TWO, {"runners": 5, "runner_cpus": 2.0}, "room for 3", "scale.runners=3, or"),
        # The first learner is in this process, on the first node.
        (
            FIRST,
            {"learners": 2, "learner_cpus": 2.0, "learner_resources": {"fast": 1.0}},
            "the first learner is in this process, whose node has CPU 1, fast 1",
            "scale.learner_cpus=1",
        ),
        (
            FIRST,
            {"learners": 2, "learner_resources": {"fast": 2.0}},
            "no room for CPU 1, fast 2",
            "scale.learner_resources with fast = 1",
        ),
        (
            [{"CPU": 2.0, "GPU": 1.0}],
            {"learners": 2, "learner_gpus": 0.5},
            "2 learners with CPU 1, GPU 0.5 each and 1 runner with CPU 1 can never be placed tog",
            "scale.learner_gpus",
        ),
    ],
)
def test_what_can_never_be_placed_is_named_with_what_to_ask_for(
    nodes: Any, options: dict[str, Any], said: str, hint: str
) -> None:
    told = refused(nodes, **options)
    assert said in told
    assert hint in told.partition("try: ")[2]


def test_several_runs_that_are_placed_as_a_whole_are_called_runs() -> None:
    with pytest.raises(RequestError, match=r"^a run with CPU 3 can never be placed"):
        refuse_unmet([{"CPU": 2.0}], section(runner_cpus=3), whole_runs=True)
