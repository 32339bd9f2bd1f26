"""The experience of several runners, joined to that of one sampler with all their environments."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from rlplug.feeds import Experience, ModuleExperience
from rlplug.feeds.feed import FinalObservations
from rlplug.scale.experience import join


def experience(envs: range, *, by_environment: bool) -> Experience:
    """Three steps of these environments, of which every second ends at the second step."""
    grid = numpy.array([[10 * time + env for env in envs] for time in range(3)], numpy.float32)
    ended = numpy.zeros((3, len(envs)), bool)
    ended[1] = [env % 2 == 0 for env in envs]

    def rows(values: Any) -> Any:
        return (values.T if by_environment else values).reshape(-1)

    columns = {"observations": rows(grid), "rewards": rows(grid), "terminated": rows(ended)}
    columns["truncated"] = numpy.zeros_like(columns["terminated"])
    indices = numpy.flatnonzero(ended.reshape(-1))
    return Experience(
        columns,
        steps=3,
        num_envs=len(envs),
        by_environment=by_environment,
        following={"observations": numpy.array([30.0 + env for env in envs], numpy.float32)},
        finals=FinalObservations(
            indices, {"observations": grid.reshape(-1)[indices].astype(numpy.float32) + 0.5}
        ),
    )


@pytest.mark.parametrize("by_environment", [True, False])
def test_joined_experience_is_that_of_all_environments(by_environment: bool) -> None:
    whole = experience(range(5), by_environment=by_environment)
    parts = [
        experience(some, by_environment=by_environment)
        for some in (range(2), range(2, 3), range(3, 5))
    ]
    joined = join(parts)
    for name, column in whole.columns.items():
        assert (joined.columns[name] == column).all(), name
    assert (joined.next_rows("observations") == whole.next_rows("observations")).all()
    assert joined.count == whole.count == 15
    assert joined.by_environment == by_environment
    assert (joined.stepped, joined.counts, joined.after_reset) == (None, None, False)
    assert joined.finals is not None
    assert whole.finals is not None
    assert joined.finals.indices.tolist() == whole.finals.indices.tolist()


def rollout(counts: list[int] | None, steps: int, first: int, **more: Any) -> Experience:
    """Time-major rows of environments numbered from `first`: reward 10 · time + environment."""
    num_envs = 2 if counts is None else len(counts)
    times, envs = numpy.indices((steps, num_envs))
    rewards = (10.0 * times + envs + first).reshape(-1)
    own = None if counts is None else numpy.array(counts)
    return Experience(
        {"observations": rewards[:, None] * [1.0, 2.0], "rewards": rewards},
        steps=steps,
        num_envs=num_envs,
        following={"observations": numpy.array([[-1.0 - first, -2.0]] * num_envs)},
        stepped=None if own is None else (numpy.arange(steps)[:, None] < own).reshape(-1),
        counts=own,
        **more,
    )


def test_a_part_with_fewer_steps_has_what_it_acts_on_next_in_the_rows_beyond() -> None:
    joined = join([rollout(None, 3, 0), rollout([2, 1], 2, 2)])
    assert (joined.steps, joined.num_envs, joined.count) == (3, 4, 9)
    assert joined.counts is not None
    assert joined.counts.tolist() == [3, 3, 2, 1]
    assert joined.stepped is not None
    stepped = joined.grid(joined.stepped)
    assert stepped.T.tolist() == [[1, 1, 1], [1, 1, 1], [1, 1, 0], [1, 0, 0]]
    assert joined.grid(joined.columns["rewards"]).tolist() == [
        [0.0, 1.0, 2.0, 3.0],
        [10.0, 11.0, 12.0, 13.0],
        [20.0, 21.0, 0.0, 0.0],
    ]
    seen = joined.grid(joined.columns["observations"])
    assert seen[2].tolist() == [[20.0, 40.0], [21.0, 42.0], [-3.0, -2.0], [-3.0, -2.0]]
    assert joined.following["observations"][:, 0].tolist() == [-1.0, -1.0, -3.0, -3.0]


def test_rows_that_are_ordered_by_environment_stay_so() -> None:
    def by_environment(one: Experience) -> Experience:
        for name, column in one.columns.items():
            grid = one.grid(column).swapaxes(0, 1)
            one.columns[name] = grid.reshape(len(column), *column.shape[1:])
        one.stepped = None if one.stepped is None else one.grid(one.stepped).T.reshape(-1)
        one.by_environment = True
        return one

    parts = rollout(None, 3, 0), rollout([2, 1, 2], 2, 2)
    expected = join(parts)
    joined = join(list(map(by_environment, parts)))
    assert joined.by_environment
    for name in ("observations", "rewards"):
        there, wanted = joined.columns[name], expected.columns[name]
        assert joined.grid(there).tolist() == expected.grid(wanted).tolist()
    assert joined.stepped is not None
    assert joined.stepped.tolist() == [True] * 8 + [False, True, False, False, True, True, False]


def test_masks_are_full_where_a_part_has_none() -> None:
    masked = rollout(None, 2, 0)
    masked.columns["action_mask"] = numpy.zeros((4, 3), numpy.int8)
    masked.following = {**masked.following, "action_mask": numpy.zeros((2, 3), numpy.int8)}
    for joined in (join([masked, rollout(None, 2, 2)]), join([masked, rollout(None, 1, 2)])):
        masks = joined.grid(joined.columns["action_mask"])
        assert masks.dtype == numpy.int8
        assert masks[:, :, 0].tolist() == [[0, 0, 1, 1]] * 2
        assert joined.following["action_mask"].tolist() == [[0] * 3] * 2 + [[1] * 3] * 2
        assert joined.following["action_mask"].dtype == numpy.int8


def test_recurrent_states_that_a_part_lacks_are_empty() -> None:
    model = {"initial_state": {"h": numpy.zeros((1, 3))}}
    one = rollout(None, 4, 0, states=[{"h": numpy.full((2, 3), at)} for at in (1.0, 2.0)], **model)
    other = rollout([2, 2, 1], 2, 2, states=[{"h": numpy.full((3, 3), 5.0)}], **model)
    for parts, expected in (
        ([one, other], [[1.0, 1.0, 5.0, 5.0, 5.0], [2.0, 2.0, 0.0, 0.0, 0.0]]),
        ([other, one], [[5.0, 5.0, 5.0, 1.0, 1.0], [0.0, 0.0, 0.0, 2.0, 2.0]]),
    ):
        joined = join(parts)
        assert [state["h"][:, 0].tolist() for state in joined.states] == expected
        assert {state["h"].shape for state in joined.states} == {(5, 3)}
        assert joined.initial_state == model["initial_state"]


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ((False, False), False),
        ((True, True), True),
        ((True, False), [True, True, False, False]),
        ((numpy.array([True, False]), False), [True, False, False, False]),
        ((False, numpy.array([False, True])), [False, False, False, True]),
    ],
)
def test_which_environments_were_reset_is_told_of_each_where_it_differs(
    told: Any, expected: Any
) -> None:
    joined = join([rollout(None, 2, 2 * i, after_reset=one) for i, one in enumerate(told)])
    if isinstance(expected, bool):
        assert joined.after_reset is expected
    else:
        assert numpy.asarray(joined.after_reset).tolist() == expected


def finals(*told: tuple[int, float], masked: bool = False) -> FinalObservations:
    indices, values = zip(*told, strict=True)
    columns: dict[str, Any] = {"observations": {"x": numpy.array(values)}}
    if masked:
        columns["action_mask"] = numpy.ones((len(told), 2), bool)
    return FinalObservations(numpy.array(indices), columns)


def test_final_observations_are_in_the_order_of_time_and_environment() -> None:
    # Of two environments each: row 3 is time 1 of the second one.
    parts = [
        rollout(None, 3, 0, finals=finals((3, 0.1), (4, 0.2), masked=True)),
        rollout(None, 3, 2),
        rollout(None, 2, 4, finals=finals((1, 0.3), (2, 0.4))),
    ]
    joined = join(parts)
    assert joined.finals is not None
    assert joined.finals.indices.tolist() == [5, 7, 10, 12]
    assert joined.finals.columns["observations"]["x"].tolist() == [0.3, 0.1, 0.4, 0.2]
    # A mask that not all of them have says nothing.
    assert set(joined.finals.columns) == {"observations"}


def test_modules_of_environments_with_agents_are_joined_one_by_one() -> None:
    def part(first: int, **modules: Any) -> ModuleExperience:
        experiences = {name: one for name, one in modules.items() if one.columns}
        over = numpy.array([[False] * 2, [first > 0] * 2])
        made = ModuleExperience({}, steps=2, num_envs=2, by_module=experiences, over=over)
        made.idle = {name: one for name, one in modules.items() if not one.columns}
        return made

    def idle() -> Experience:
        seen = numpy.full((2, 2), 7.0)
        return Experience({}, steps=0, num_envs=2, following={"observations": seen})

    joined = join(
        [
            part(0, red=rollout(None, 2, 0), blue=idle(), gray=idle()),
            part(2, red=rollout(None, 2, 2), blue=rollout(None, 1, 2), gray=idle()),
        ]
    )
    assert isinstance(joined, ModuleExperience)
    assert set(joined.by_module) == {"red", "blue"}
    assert (joined.steps, joined.num_envs) == (2, 4)
    assert joined.over.tolist() == [[False] * 4, [False, False, True, True]]
    red, blue = joined.by_module["red"], joined.by_module["blue"]
    assert red.grid(red.columns["rewards"])[1].tolist() == [10.0, 11.0, 12.0, 13.0]
    assert blue.counts is not None
    assert (blue.steps, blue.counts.tolist()) == (1, [0, 0, 1, 1])
    assert blue.columns["rewards"].tolist() == [0.0, 0.0, 2.0, 3.0]
    assert blue.columns["observations"][:, 0].tolist() == [7.0, 7.0, 2.0, 3.0]
