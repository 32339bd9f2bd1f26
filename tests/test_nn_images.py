"""The encoder of images: which convolutions, on which pictures, in which scale."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from gymnasium import spaces
from torch import nn

from rlplug.errors import UnsupportedSpaceError
from rlplug.nn import ImageEncoder
from rlplug.spaces import image_of

LARGE = [(32, 8, 4), (64, 4, 2), (64, 3, 1)]
SMALL = [(16, 3, 1), (32, 3, 1)]


def encoder(space: spaces.Box, **options: Any) -> ImageEncoder:
    image = image_of(space)
    assert image is not None
    return ImageEncoder(space, image, **options)


def pixels(*shape: int, high: int = 255) -> spaces.Box:
    return spaces.Box(0, high, shape, numpy.uint8)


def convolutions(made: ImageEncoder) -> list[tuple[int, int, int]]:
    """Filters, size and stride of each."""
    layers = [layer for layer in made.convolutions if isinstance(layer, nn.Conv2d)]
    return [(layer.out_channels, layer.kernel_size[0], layer.stride[0]) for layer in layers]


@pytest.mark.parametrize(
    ("shape", "filters", "width"),
    [
        # 84 → 20 → 9 → 7, as in Mnih et al. (2015).
        ((4, 84, 84), LARGE, 64 * 7 * 7),
        # 36 → 8 → 3 → 1.
        ((3, 36, 40), LARGE, 64 * 1 * 1),
        # 35 → 33 → 31, and the other side two more.
        ((3, 35, 37), SMALL, 32 * 31 * 33),
        ((1, 5, 5), SMALL, 32 * 1 * 1),
    ],
    ids=str,
)
def test_the_size_of_a_picture_chooses_its_convolutions(
    shape: tuple[int, ...], filters: list[tuple[int, int, int]], width: int
) -> None:
    made = encoder(pixels(*shape), out_features=7)
    assert convolutions(made) == filters
    assert (made.linear.in_features, made.linear.out_features) == (width, 7)
    assert made.out_features == 7
    first = next(layer for layer in made.convolutions if isinstance(layer, nn.Conv2d))
    assert first.in_channels == shape[0]
    assert made(torch.zeros(2, *shape, dtype=torch.uint8)).shape == (2, 7)


def test_without_options_there_are_512_features() -> None:
    assert encoder(pixels(1, 8, 8)).linear.out_features == 512


def test_a_picture_with_a_side_below_five_pixels_is_refused() -> None:
    image = image_of(pixels(3, 5, 5))
    assert image is not None
    small = pixels(3, 4, 9)
    with pytest.raises(
        UnsupportedSpaceError, match=r"'eye' are too small .* needs 5 pixels"
    ) as one:
        ImageEncoder(small, type(image)(channels=3, height=4, width=9, layout="chw"), " at 'eye'")
    assert one.value.hints[0].startswith("try: gymnasium.wrappers.FlattenObservation")


@pytest.mark.parametrize(
    ("space", "scale"),
    [
        (pixels(3, 8, 8), 1 / 255),
        (pixels(3, 8, 8, high=4), 1 / 4),
        (pixels(3, 8, 8, high=1), 1.0),
        (spaces.Box(0, 255, (3, 8, 8), numpy.float32), 1.0),
    ],
    ids=str,
)
def test_bytes_are_scaled_to_one_and_other_numbers_stay(space: spaces.Box, scale: float) -> None:
    made = encoder(space)
    assert made.scale.item() == pytest.approx(scale)
    assert "scale" not in made.state_dict()
    seen = torch.from_numpy(space.sample()[None])
    expected = torch.relu(made.linear(made.convolutions(seen.float() * scale)))
    torch.testing.assert_close(made(seen), expected)


def test_the_axes_of_a_picture_may_lie_in_any_order() -> None:
    picture = torch.randint(0, 256, (2, 4, 9, 11), dtype=torch.uint8)
    known = encoder(pixels(4, 9, 11), out_features=3)
    # Two frames of two channels are four channels, those of the first frame first.
    stacked = picture.reshape(2, 2, 2, 9, 11).permute(0, 1, 3, 4, 2)
    for layout, seen in (("hwc", picture.permute(0, 2, 3, 1)), ("shwc", stacked)):
        known.layout = layout
        found = known(seen.contiguous())
        known.layout = "chw"
        torch.testing.assert_close(found, known(picture))
    grey = encoder(pixels(9, 11), out_features=3)
    assert grey.layout == "hw"
    one = picture[:, 0]
    scaled = one[:, None].float() / 255
    torch.testing.assert_close(grey(one), torch.relu(grey.linear(grey.convolutions(scaled))))


@pytest.mark.parametrize("orthogonal", [True, False])
def test_weights_are_orthogonal_where_that_is_wanted(orthogonal: bool) -> None:
    torch.manual_seed(0)
    linear = encoder(pixels(1, 8, 8), out_features=4, ortho_init=orthogonal).linear
    product = linear.weight @ linear.weight.T
    # Rows of length √2, the gain of ReLU.
    assert torch.allclose(product, 2 * torch.eye(4), atol=1e-5) == orthogonal
    assert bool((linear.bias == 0).all()) == orthogonal
