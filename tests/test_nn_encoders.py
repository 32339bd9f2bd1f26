"""Every observation space gets an encoder, and what cannot be encoded is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rlplug.batch.nested import to_tensors
from rlplug.errors import RlplugError
from rlplug.nn import (
    Body,
    HiddenLayers,
    ImageEncoder,
    Network,
    NetworkOptions,
    QHead,
    make_encoder,
    no_encoder,
)
from rlplug.spaces import image_of

PICTURE = spaces.Box(0, 255, (3, 40, 36), numpy.uint8)

SPACES: dict[str, Any] = {
    "box": spaces.Box(-1, 1, (3,)),
    "number": spaces.Dict({"one": spaces.Box(-1, 1, ())}),
    "table": spaces.Box(-1, 1, (2, 3)),
    "bytes": spaces.Box(0, 255, (5,), numpy.uint8),
    "discrete": spaces.Discrete(4, start=-2),
    "multidiscrete": spaces.MultiDiscrete([[2, 3], [4, 5]]),
    "multibinary": spaces.MultiBinary((2, 2)),
    "picture": PICTURE,
    "small picture": spaces.Box(0, 1, (10, 10, 4), numpy.float32),
    "frames": spaces.Box(0, 255, (4, 40, 40, 3), numpy.uint8),
    "gray": spaces.Box(0, 255, (36, 36), numpy.uint8),
    "dict": spaces.Dict({"a.b": spaces.Discrete(2), "keys": spaces.Box(-1, 1, (2,))}),
    "nested": spaces.Dict(
        {
            "eyes": spaces.Tuple([PICTURE, PICTURE]),
            "body": spaces.Dict({"speed": spaces.Box(-1, 1, (2,)), "gear": spaces.Discrete(5)}),
            "action_mask": spaces.MultiBinary(2),
        }
    ),
}


def observations_of(space: Any, n: int = 4) -> Any:
    """As a vector of n environments gives them."""
    batched = gymnasium.vector.utils.batch_space(space, n)
    batched.seed(0)
    return batched.sample()


@pytest.mark.parametrize("name", SPACES)
def test_every_space_is_encoded_in_one_row_per_observation_also_in_acting(name: str) -> None:
    network = Network(Body(SPACES[name], NetworkOptions(net_arch=(8,))), QHead(8, 3))
    observations = observations_of(SPACES[name])
    encoder = network.body.encoder
    features = encoder(to_tensors(observations))
    assert features.shape == (4, encoder.out_features)
    assert features.dtype == torch.float32
    assert torch.isfinite(features).all()
    assert not torch.equal(features[0], features[1])
    expected = network(to_tensors(observations)).detach().numpy()
    numpy.testing.assert_allclose(network.act(observations)[0], expected, atol=1e-5)


def test_bytes_become_fractions_and_numbers_stay_as_they_are() -> None:
    encoder = make_encoder(SPACES["bytes"])
    assert encoder(torch.tensor([[0, 51, 255, 0, 0]])).tolist() == [
        pytest.approx([0, 0.2, 1, 0, 0])
    ]
    assert make_encoder(SPACES["box"])(torch.tensor([[7.0, -8.0, 0.5]])).tolist() == [[7, -8, 0.5]]


def test_each_value_of_a_discrete_has_a_row_of_its_own_wherever_it_starts() -> None:
    encoder = make_encoder(spaces.MultiDiscrete([2, 3], start=[5, -1]))
    rows: Any = encoder.weight
    features = encoder(torch.tensor([[6, -1], [5, 1]]))
    assert torch.equal(features[0], torch.cat([rows[1], rows[2]]))
    assert torch.equal(features[1], torch.cat([rows[0], rows[4]]))
    single = make_encoder(spaces.Discrete(3, start=5))
    assert torch.equal(single(torch.tensor([7, 5])), torch.as_tensor(single.weight)[[2, 0]])


class HalfEncoder(nn.Module):
    """A person's own encoder, as they would write it."""

    def __init__(self, space: spaces.Box) -> None:
        super().__init__()
        self.out_features = 2
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, observations: Tensor) -> Tensor:
        return observations[:, :2] * self.scale


class WideEncoder(HalfEncoder):
    """Says it gives two features, and gives three."""

    def forward(self, observations: Tensor) -> Tensor:
        return observations


class BrokenEncoder(HalfEncoder):
    """Fails on its first observation."""

    def forward(self, observations: Tensor) -> Tensor:
        return observations @ torch.zeros(7, 2)


def widthless(space: Any) -> nn.Module:
    """A module that does not say how many features it gives."""
    return nn.Flatten()


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Any:
    """This file, importable under a name as a person's module would be."""
    import sys

    monkeypatch.setitem(sys.modules, "my_encoders", sys.modules[__name__])
    return lambda name: NetworkOptions(encoder=f"my_encoders:{name}", net_arch=(8,))


def test_an_encoder_of_one_s_own_is_found_by_path_and_acts(own: Any) -> None:
    network = Network(Body(SPACES["box"], own("HalfEncoder")), QHead(8, 2))
    observations = numpy.ones((4, 3), numpy.float32)
    expected = network(torch.from_numpy(observations)).detach().numpy()
    numpy.testing.assert_allclose(network.act(observations)[0], expected, atol=1e-6)


UNKNOWN = spaces.Dict({"told": spaces.Tuple([spaces.Discrete(2), spaces.Text(9)])})
SMALL_EYE = spaces.Dict({"eye": spaces.Box(0, 255, (4, 40, 3), numpy.uint8)})

REFUSALS: list[tuple[str, Callable[[], Any]]] = [
    *(
        (subject, lambda path=path: Body(SPACES["box"], NetworkOptions(encoder=path)))
        for path, subject in (
            ("my_encoders:WideEncoder", "gave (2, 3) for 2 observations, and has out_features 2"),
            ("my_encoders:BrokenEncoder", "fails for Box of shape"),
            ("my_encoders:widthless", "has out_features None"),
            ("my_encoders:HalfEncodr", "did you mean 'HalfEncoder'"),
            ("my_encoders:describe_nothing", "has no 'describe_nothing'"),
            ("no_such_module:Encoder", "'no_such_module:Encoder' cannot be imported"),
            ("nothing", "'nothing' cannot be imported"),
        )
    ),
    ("at key 'told' at place 1: Text", lambda: make_encoder(UNKNOWN)),
    ("encoder=module:Class", lambda: make_encoder(UNKNOWN)),
    ("images at key 'eye' are too small", lambda: make_encoder(SMALL_EYE)),
    ("at least 1, got [64, 0]", lambda: NetworkOptions(net_arch=(64, 0))),
    ("got [0]", lambda: HiddenLayers(4, [0])),
]


@pytest.mark.parametrize(("subject", "make"), REFUSALS, ids=[subject for subject, _ in REFUSALS])
def test_what_cannot_be_made_is_refused_by_name(own: Any, subject: str, make: Any) -> None:
    with pytest.raises((RlplugError, ValueError)) as caught:
        make()
    assert subject in str(caught.value)


def test_whether_there_is_an_encoder_can_be_asked_without_making_one() -> None:
    assert no_encoder(SPACES["nested"]) is None
    assert "Text" in str(no_encoder(UNKNOWN))


# -- images ----------------------------------------------------------------------------------------

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
    assert encoder(pixels(*shape)).linear.out_features == 512


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
