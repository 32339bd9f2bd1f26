"""Spaces are read right: where an image's channels are, which key is a mask, what is valid."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from gymnasium import spaces

from rlplug.errors import RunFailedError, UnsupportedSpaceError
from rlplug.spaces import (
    describe,
    find_mask,
    image_of,
    mask_width,
    number_of_arms,
    open_masks,
    outline,
    placeholder,
    shape_mismatch,
    whole_numbers,
)


def pixels(*shape: int) -> spaces.Box:
    return spaces.Box(0, 255, shape, numpy.uint8)


def test_placeholders_are_valid_in_every_kind_of_space() -> None:
    space = spaces.Dict(
        {
            "box": spaces.Box(2.0, 3.0, (2,)),
            "pair": spaces.Tuple([spaces.Discrete(3, start=7), spaces.MultiBinary(2)]),
            "many": spaces.MultiDiscrete([2, 3], start=[1, 5]),
        }
    )
    rows = placeholder(space, 2)
    assert rows["box"].tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert rows["pair"][0].tolist() == [7, 7]
    assert rows["pair"][1].tolist() == [[0, 0], [0, 0]]
    assert rows["many"].tolist() == [[1, 5], [1, 5]]


def test_spaces_have_one_outline_if_what_is_made_for_one_fits_the_other() -> None:
    one, bytes_ = spaces.Box(0, 1, (2,), numpy.float32), spaces.Box(0, 1, (2,), numpy.uint8)
    bounded = spaces.Box(-5, 5, (2,), numpy.float64)
    assert outline(one) == outline(bounded)
    assert outline(spaces.Tuple([one])) == outline(spaces.Tuple([bounded]))
    different = [
        one,
        bytes_,
        spaces.Box(0, 1, (3,), numpy.float32),
        spaces.Discrete(2),
        spaces.Discrete(3),
        spaces.Discrete(2, start=1),
        spaces.MultiBinary(2),
        spaces.MultiBinary(3),
        spaces.MultiDiscrete([2, 2]),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiDiscrete([2, 2], start=[0, 1]),
        spaces.Dict(a=one),
        spaces.Dict(b=one),
        spaces.Dict(a=bytes_),
        spaces.Tuple([one]),
        spaces.Tuple([one, one]),
    ]
    for place, space in enumerate(different):
        assert [outline(space) == outline(other) for other in different].index(True) == place
    assert describe(spaces.Discrete(2, start=1)) == "Discrete with 2 values, from 1"


@pytest.mark.parametrize(
    ("space", "observation", "said"),
    [
        (spaces.Box(0, 1, (2,)), [0.0, 1.0], ""),
        (spaces.Box(0, 1, (2,)), numpy.zeros(3), "of shape (3,), its space has (2,)"),
        (spaces.Discrete(2), 1, ""),
        (spaces.Sequence(spaces.Discrete(2)), (1, 1), ""),
        (spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1, (1,))]), (1, [0.0]), ""),
        (
            spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1, (1,))]),
            (1, [0.0, 0.0]),
            "with part 1 of shape (2,), its space has (1,)",
        ),
        (
            spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Dict({"c": spaces.Discrete(2)})}),
            {"a": 1, "b": {"c": [1]}},
            "with 'b' with 'c' of shape (1,), its space has ()",
        ),
    ],
    ids=str,
)
def test_a_shape_that_differs_is_said_with_its_place(
    space: Any, observation: Any, said: str
) -> None:
    assert shape_mismatch(space, observation) == said


def test_two_arms_counted_from_zero_are_the_fewest() -> None:
    assert number_of_arms(spaces.Discrete(2)) == 2
    for space, said in (
        (spaces.Discrete(1), "it needs two arms, found one"),
        (spaces.Discrete(3, start=1), "counts arms from 0"),
        (spaces.MultiDiscrete([2]), "it needs Discrete actions"),
    ):
        with pytest.raises(UnsupportedSpaceError, match=said):
            number_of_arms(space)


@pytest.mark.parametrize(
    ("space", "found"),
    [
        # Boards of small signed numbers are no images, larger arrays are.
        (spaces.Box(-1, 1, (7, 7, 3), numpy.int8), None),
        (spaces.Box(-1, 1, (8, 8, 3), numpy.int8), ("hwc", 3, 8, 8)),
        (spaces.Box(-1, 1, (3, 8, 7), numpy.int8), None),
        (spaces.Box(0, 1, (7, 7, 3), numpy.float32), ("hwc", 3, 7, 7)),
        (pixels(8, 7), None),
        (pixels(8, 8), ("hw", 1, 8, 8)),
        (pixels(3, 3, 3), ("hwc", 3, 3, 3)),
        (pixels(2, 3, 4), ("chw", 2, 3, 4)),
        (pixels(2, 3, 4, 5), ("shwc", 10, 3, 4)),
        (pixels(1, 2, 3, 4, 5), None),
    ],
    ids=str,
)
def test_images_are_told_from_boards_and_tables_at_their_edges(space: Any, found: Any) -> None:
    image = image_of(space)
    told = None if image is None else (image.layout, image.channels, image.height, image.width)
    assert told == found


def test_masks_are_opened_wherever_they_lie_and_nothing_else_is() -> None:
    seen = {
        "action_mask": numpy.array([0, 1, 0]),
        "other": numpy.zeros(2),
        "inner": {"action_mask": numpy.zeros((2, 2), bool)},
    }
    open_masks(seen)
    assert seen["action_mask"].tolist() == [1, 1, 1]  # type: ignore[attr-defined]
    assert seen["inner"]["action_mask"].all()  # type: ignore[call-overload, index]
    assert seen["other"].tolist() == [0, 0]  # type: ignore[attr-defined]
    nested = {"action_mask": {"action_mask": numpy.zeros(1)}}
    open_masks(nested)
    assert nested["action_mask"]["action_mask"].tolist() == [1]
    open_masks(numpy.zeros(1))


def test_every_kind_of_space_is_described() -> None:
    space = spaces.Dict(
        {
            "a": spaces.MultiDiscrete([2, 3]),
            "b": spaces.MultiBinary(4),
            "c": spaces.Tuple([spaces.Box(0, 1, (2,)), spaces.Discrete(5)]),
            "d": spaces.Text(3, charset="x"),
        }
    )
    assert describe(space) == (
        "Dict of a: MultiDiscrete of [2, 3], b: MultiBinary of shape (4,), "
        "c: Tuple of Box of shape (2,), float32, Discrete with 5 values, "
        f"d: {spaces.Text(3, charset='x')}"
    )


def test_whole_numbers_keep_their_integers_and_name_the_first_that_is_none() -> None:
    booleans = numpy.array([True, False])
    assert whole_numbers(booleans, "action") is booleans
    assert whole_numbers(2.0, "action").tolist() == 2
    with pytest.raises(RunFailedError, match=r"action 1\.5 of row 2 is no whole number"):
        whole_numbers([[1.0, 2.0], [3.0, 4.0], [1.5, 0.5]], "action")
    with pytest.raises(RunFailedError, match=r"action 0\.5 is no whole number"):
        whole_numbers(0.5, "action")


def test_masks_are_found_in_observations_first_then_in_infos_with_rows_that_say_nothing() -> None:
    mask = numpy.array([[1, 0, 1], [0, 1, 1]], numpy.int8)
    other = 1 - mask
    observations = {"seen": numpy.zeros((2, 1)), "action_mask": mask}
    assert find_mask(observations, {"action_mask": other}) is mask
    assert find_mask(numpy.zeros((2, 1)), {}) is None
    # Environments that gave none in this step allow everything.
    rows = numpy.empty(3, object)
    assert find_mask(None, {"action_mask": rows}) is None
    rows[1] = mask[0]
    assert find_mask(None, {"action_mask": rows}).tolist() == [[1, 1, 1], [1, 0, 1], [1, 1, 1]]
    assert find_mask(None, {"action_mask": mask}).tolist() == mask.tolist()
    told = {"action_mask": mask, "_action_mask": numpy.array([True, True])}
    assert find_mask(None, told).tolist() == mask.tolist()
    told["_action_mask"] = numpy.array([True, False])
    assert find_mask(None, told).tolist() == [[1, 0, 1], [1, 1, 1]]
    # What the environments gave is left as it is.
    assert mask.tolist() == [[1, 0, 1], [0, 1, 1]]


@pytest.mark.parametrize(
    ("space", "width"),
    [
        (spaces.Discrete(5, start=2), 5),
        (spaces.MultiDiscrete([2, 3, 4]), 9),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), 14),
        (spaces.MultiBinary([2, 3]), 6),
        (spaces.Box(0, 1, (3,)), None),
    ],
)
def test_a_mask_has_a_value_for_each_choice(space: Any, width: int | None) -> None:
    assert mask_width(space) == width
