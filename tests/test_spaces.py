"""Spaces are read right: where an image's channels are, which key is a mask, what is valid."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from gymnasium import spaces

from rlplug.errors import RunFailedError
from rlplug.spaces import (
    describe,
    has_images,
    image_of,
    placeholder,
    whole_numbers,
    without_action_mask,
)


def pixels(*shape: int, dtype: Any = numpy.uint8) -> spaces.Box:
    return spaces.Box(0, 255, shape, dtype)


@pytest.mark.parametrize(
    ("space", "layout", "channels"),
    [
        (pixels(84, 84, 3), "hwc", 3),
        (pixels(3, 64, 48), "chw", 3),
        (pixels(4, 84, 84), "chw", 4),
        (pixels(4, 84, 84, 3), "shwc", 12),
        (pixels(20, 30), "hw", 1),
        (pixels(8, 9), "hw", 1),
        (pixels(10, 10, 4, dtype=numpy.float32), "hwc", 4),
    ],
)
def test_channels_are_found_wherever_they_lie(
    space: spaces.Box, layout: str, channels: int
) -> None:
    image = image_of(space)
    assert image is not None
    assert (image.layout, image.channels) == (layout, channels)


@pytest.mark.parametrize(
    "space",
    [pixels(128), pixels(4, 6), spaces.Box(-1, 1, (20, 30)), spaces.Discrete(3)],
)
def test_rows_and_tables_of_numbers_are_no_images(space: Any) -> None:
    assert image_of(space) is None


def test_images_are_found_inside_of_other_spaces() -> None:
    camera = pixels(84, 84, 3)
    assert has_images(camera)
    assert has_images(spaces.Dict({"arm": pixels(6), "eyes": spaces.Tuple([camera, camera])}))
    assert not has_images(spaces.Dict({"arm": pixels(6), "goal": spaces.Discrete(3)}))


def test_the_action_mask_is_no_part_of_what_networks_read() -> None:
    space = spaces.Dict({"action_mask": spaces.MultiBinary(2), "seen": spaces.Discrete(3)})
    assert without_action_mask(space) == spaces.Dict({"seen": spaces.Discrete(3)})
    assert without_action_mask(spaces.Discrete(3)) == spaces.Discrete(3)


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


def test_a_placeholder_of_a_box_is_the_number_in_it_that_is_nearest_to_zero() -> None:
    low, high = numpy.array([-1.0, 2.0, -4.0]), numpy.array([1.0, 3.0, -3.0])
    box = spaces.Box(low, high, dtype=numpy.float64)
    assert placeholder(box, 2).tolist() == [[0.0, 2.0, -3.0]] * 2


def test_spaces_are_described_in_words() -> None:
    space = spaces.Tuple([spaces.Discrete(2), spaces.Box(-numpy.inf, 1, (3,))])
    expected = "Tuple of Discrete with 2 values, Box of shape (3,), float32, without bounds"
    assert describe(space) == expected


def test_whole_numbers_are_integers_whatever_type_they_had() -> None:
    assert whole_numbers([2, 0], "action").tolist() == [2, 0]
    found = whole_numbers(numpy.array([2.0, 0.0], numpy.float32), "action")
    assert (found.dtype, found.tolist()) == (numpy.int64, [2, 0])


@pytest.mark.parametrize(
    ("given", "found"),
    [([0.0, 0.9], "0.9 of row 1"), ([numpy.inf], "inf of row 0"), (["up"], "'up' of row 0")],
)
def test_numbers_that_are_not_whole_are_refused_not_truncated(given: Any, found: str) -> None:
    with pytest.raises(RunFailedError, match=f"action {found} is no whole number"):
        whole_numbers(given, "action")
