"""Every observation space gets an encoder, and what cannot be encoded is refused by name."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rlplug.batch.nested import to_tensors
from rlplug.errors import RequestError, RlplugError, UnsupportedSpaceError
from rlplug.nn import Body, Network, NetworkOptions, QHead, make_encoder

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
def test_every_space_is_encoded_in_one_row_per_observation(name: str) -> None:
    encoder = make_encoder(SPACES[name])
    features = encoder(to_tensors(observations_of(SPACES[name])))
    assert features.shape == (4, encoder.out_features)
    assert features.dtype == torch.float32
    assert torch.isfinite(features).all()
    assert not torch.equal(features[0], features[1])


@pytest.mark.parametrize("name", SPACES)
def test_a_network_acts_on_every_space_as_torch_computes_it(name: str) -> None:
    network = Network(Body(SPACES[name], NetworkOptions(net_arch=(8,))), QHead(8, 3))
    observations = observations_of(SPACES[name])
    acted, _ = network.act(observations)
    expected = network(to_tensors(observations))
    numpy.testing.assert_allclose(acted, expected.detach().numpy(), atol=1e-5)


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


@pytest.mark.parametrize(
    ("space", "rows", "width", "features"),
    [
        (spaces.Discrete(2), 2, 2, 2),
        (spaces.Discrete(64), 64, 64, 64),
        (spaces.Discrete(65), 65, 64, 64),
        (spaces.MultiDiscrete([2, 3]), 5, 3, 6),
        (spaces.MultiDiscrete([[1, 500], [2, 3]]), 506, 64, 256),
    ],
)
def test_rows_of_an_embedding_are_as_wide_as_there_are_values_and_64_at_most(
    space: Any, rows: int, width: int, features: int
) -> None:
    torch.manual_seed(0)
    encoder = make_encoder(space)
    assert torch.as_tensor(encoder.weight).shape == (rows, width)
    assert encoder.out_features == features
    assert encoder(torch.as_tensor(space.sample())[None]).shape == (1, features)
    lengths = torch.as_tensor(encoder.weight).norm(dim=1)
    assert lengths.mean().item() == pytest.approx(1, abs=0.5)


def test_the_order_of_an_image_s_axes_makes_no_difference() -> None:
    torch.manual_seed(0)
    first = make_encoder(spaces.Box(0, 255, (3, 40, 40), numpy.uint8))
    last = make_encoder(spaces.Box(0, 255, (40, 40, 3), numpy.uint8))
    last.load_state_dict(first.state_dict())
    image = torch.randint(0, 256, (2, 3, 40, 40), dtype=torch.uint8)
    torch.testing.assert_close(first(image), last(image.permute(0, 2, 3, 1)))


def test_the_action_mask_changes_no_feature() -> None:
    space = spaces.Dict({"seen": spaces.Box(-1, 1, (2,)), "action_mask": spaces.MultiBinary(2)})
    network = Network(Body(space), QHead(64, 2))
    seen = numpy.ones((1, 2), numpy.float32)
    masks = numpy.array([[0, 1]]), numpy.array([[1, 0]])
    one, other = (network.act({"seen": seen, "action_mask": mask})[0] for mask in masks)
    assert one.tolist() == other.tolist()


def test_hidden_layers_are_orthogonal_with_the_gain_of_the_square_root_of_two() -> None:
    weight: Any = Body(SPACES["box"], NetworkOptions(net_arch=(8, 8))).hidden[2].weight
    torch.testing.assert_close(weight @ weight.T, 2 * torch.eye(8))


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


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("WideEncoder", r"gave \(2, 3\) for 2 observations, and has out_features 2"),
        ("BrokenEncoder", "fails for Box of shape"),
        ("widthless", "has out_features None"),
        ("HalfEncodr", "did you mean 'HalfEncoder'"),
        ("describe_nothing", "has no 'describe_nothing'"),
    ],
)
def test_an_encoder_that_does_not_keep_its_word_is_refused(
    own: Any, name: str, message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        Body(SPACES["box"], own(name))


def test_an_encoder_that_cannot_be_imported_is_refused() -> None:
    for path in ("no_such_module:Encoder", "nothing"):
        with pytest.raises(RequestError, match=f"encoder '{path}'"):
            Body(SPACES["box"], NetworkOptions(encoder=path))


def test_a_space_that_nobody_can_encode_is_named_with_its_place() -> None:
    space = spaces.Dict({"told": spaces.Tuple([spaces.Discrete(2), spaces.Text(9)])})
    with pytest.raises(UnsupportedSpaceError, match="at key 'told' at place 1: Text") as caught:
        make_encoder(space)
    assert "encoder=module:Class" in str(caught.value)


def test_an_image_too_small_for_convolutions_is_refused() -> None:
    with pytest.raises(UnsupportedSpaceError, match="a side needs 5 pixels"):
        make_encoder(spaces.Box(0, 255, (4, 40, 3), numpy.uint8))


def test_layers_without_width_are_refused() -> None:
    with pytest.raises(ValueError, match=r"at least 1, got \[64, 0\]"):
        NetworkOptions(net_arch=(64, 0))
    from rlplug.nn import HiddenLayers

    with pytest.raises(RlplugError, match=r"net_arch must be .* got \[0\]"):
        HiddenLayers(4, [0])


def test_on_the_meta_device_nothing_is_drawn() -> None:
    # Algorithms ask in this way whether there is an encoder, before every run.
    drawn: list[str] = []

    class Calls(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            drawn.append(func.__name__)
            return func(*args, **(kwargs or {}))

    def made(device: str) -> list[str]:
        drawn.clear()
        with torch.device(device), Calls():
            make_encoder(spaces.Discrete(5))
        return [name for name in drawn if name in ("randn", "normal_")]

    assert made("cpu")
    assert not made("meta")
