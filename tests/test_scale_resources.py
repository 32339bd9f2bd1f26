"""Which learners and runners a Ray cluster can hold: compared with all ways to place them."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from rlplug.config.sections import ScaleSection
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


def test_the_number_of_runners_that_is_said_to_fit_does() -> None:
    nodes = [{"CPU": 5.0}, {"CPU": 2.0, "big": 1.0}]
    assert refused(nodes, runners=5, runner_cpus=2.0) == (
        "5 runners with CPU 2 each can never be placed: the cluster has CPU 7 on 2 nodes, room "
        "for 3.\n  try: --set scale.runners=3, or a smaller scale.runner_cpus"
    )
    refuse_unmet(nodes, section(runners=3, runner_cpus=2.0))
    # What there is enough of for all is not to be asked for less.
    asked = {"runners": 2, "runner_cpus": 1.0, "runner_resources": {"big": 0.75}}
    exact = [{"CPU": 2.0, "big": 1.0}]
    assert refused(exact, **asked).endswith("or a smaller scale.runner_resources")
    # Of what nobody asks for, nothing is told.
    asked = {"runners": 2, "runner_cpus": 0, "runner_resources": {"big": 1.0}}
    assert "the cluster has big 1 on 1 node, room for 1." in refused(exact, **asked)
    # Neither is short by itself.
    apart = [{"CPU": 3.0, "big": 1.0}, {"CPU": 1.0, "big": 3.0}]
    asked = {"runners": 3, "runner_cpus": 1.0, "runner_resources": {"big": 1.0}}
    assert refused(apart, **asked).endswith(
        "room for 2.\n  try: --set scale.runners=2, or a smaller scale.runner_cpus or "
        "scale.runner_resources"
    )


def test_a_node_with_enough_of_each_but_not_together_is_not_asked_for_what_it_has() -> None:
    nodes = [{"CPU": 2.0, "big": 2.0}, {"CPU": 4.0}]
    asked = {"runner_cpus": 4.0, "runner_resources": {"big": 2.0}}
    assert refused(nodes, **asked).endswith(
        "try: a smaller scale.runner_cpus or scale.runner_resources"
    )


def test_runners_that_reserve_nothing_fit_everywhere() -> None:
    refuse_unmet([{}], section(runners=1000, runner_cpus=0))
    refuse_unmet([{"CPU": 2.0}], section(runners=50, runner_cpus=0, learners=2))
    assert learner_resources(section(learners=2, learner_cpus=0)) == {}


def test_amounts_are_counted_in_ten_thousandths() -> None:
    # In floats, 3 · 0.1 is more than 0.3, and 0.3 / 0.1 less than 3.
    refuse_unmet([{"CPU": 0.3}], section(runners=3, runner_cpus=0.1))
    assert "room for 2" in refused([{"CPU": 0.299}], runners=3, runner_cpus=0.1)


def test_what_the_node_of_the_first_learner_lacks_is_named() -> None:
    nodes = [{"CPU": 1.0, "fast": 1.0}, {"CPU": 8.0, "fast": 8.0}]
    asked = {"learners": 2, "runners": 1, "learner_cpus": 2.0, "learner_resources": {"fast": 1.0}}
    assert refused(nodes, **asked) == (
        "the first learner is in this process, whose node has CPU 1, fast 1: there is no room for "
        "CPU 2, fast 1.\n  try: start the run on another node, or --set scale.learner_cpus=1"
    )
    asked |= {"learner_cpus": 1.0, "learner_resources": {"fast": 2.0}}
    assert refused(nodes, **asked).endswith(
        "start the run on another node, or scale.learner_resources with fast = 1"
    )
    asked |= {"learner_resources": {"slow": 1.0}}
    assert refused(nodes, **asked).endswith("or scale.learner_resources without slow")


def test_learners_and_runners_that_do_not_fit_together_are_named_with_their_options() -> None:
    nodes = [{"CPU": 2.0, "GPU": 1.0}]
    asked = {"learners": 2, "runners": 1, "learner_gpus": 0.5, "learner_cpus": 1.0}
    assert refused(nodes, **asked) == (
        "2 learners with CPU 1, GPU 0.5 each and 1 runner with CPU 1 can never be placed together: "
        "the cluster has CPU 2, GPU 1 on 1 node.\n  try: fewer of them, or a smaller "
        "scale.runner_cpus or scale.learner_cpus or scale.learner_gpus"
    )


def test_a_node_without_what_learners_and_runners_ask_for_holds_neither() -> None:
    nodes = [{"CPU": 3.0, "big": 1.0}, {"CPU": 9.0}]
    asked: dict[str, Any] = {"learners": 2, "learner_resources": {"big": 0.25}, "runners": 1}
    refuse_unmet(nodes, section(**asked, runner_resources={"big": 0.5}))
    said = refused(nodes, **asked, runner_resources={"big": 0.75})
    assert "can never be placed together" in said


def test_several_runs_that_are_placed_as_a_whole_are_called_runs() -> None:
    with pytest.raises(RequestError, match=r"^a run with CPU 3 can never be placed"):
        refuse_unmet([{"CPU": 2.0}], section(runner_cpus=3), whole_runs=True)
