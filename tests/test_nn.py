"""Encoders, heads, memories and target networks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn, tensor

from rlplug.batch.nested import to_tensors
from rlplug.errors import RequestError, RlplugError
from rlplug.nn import (
    ActorCritic,
    ActorCriticOptions,
    Body,
    ContinuousQHead,
    DistributionalHead,
    FixedTarget,
    Fragments,
    HiddenLayers,
    ImageEncoder,
    Memory,
    Network,
    NetworkOptions,
    PolicyHead,
    PolyakTarget,
    QHead,
    QuantileHead,
    Streams,
    TargetNetwork,
    make_distribution,
    make_encoder,
    no_encoder,
    project,
)
from rlplug.spaces import image_of

# -- nn encoders -----------------------------------------------------------------------------------


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


# -- nn heads --------------------------------------------------------------------------------------


def set_constant(stream: Any, values: list[float]) -> None:
    with torch.no_grad():
        stream[-1].weight.zero_()
        stream[-1].bias.copy_(tensor(values))


def test_a_dueling_head_adds_what_an_action_has_above_the_mean() -> None:
    head = QHead(2, 3, Streams(dueling=True))
    set_constant(head.advantage, [1.0, 2.0, 6.0])
    set_constant(head.value, [10.0])
    assert head(torch.zeros(1, 2)).tolist() == [[8.0, 9.0, 13.0]]


def test_a_dueling_head_of_distributions_compares_atom_by_atom() -> None:
    head = DistributionalHead(2, 2, Streams(dueling=True), atoms=2, v_min=0, v_max=1)
    set_constant(head.advantage, [1.0, 0.0, 3.0, 0.0])
    set_constant(head.value, [5.0, 7.0])
    assert head(torch.zeros(1, 2)).tolist() == [[[4.0, 7.0], [6.0, 7.0]]]


def test_the_value_of_a_distribution_is_its_mean() -> None:
    head = DistributionalHead(2, 1, atoms=3, v_min=-1, v_max=1)
    logits = tensor([0.25, 0.25, 0.5]).log()[None, None]
    assert head.values(logits).tolist() == [[0.25]]


def test_the_value_of_quantiles_is_their_mean_and_their_fractions_lie_in_the_middle() -> None:
    head = QuantileHead(2, 1, atoms=4)
    assert head.values(tensor([[[1.0, 2.0, 3.0, 6.0]]])).tolist() == [[3.0]]
    assert head.fractions.tolist() == [0.125, 0.375, 0.625, 0.875]


def test_a_continuous_value_depends_on_the_action() -> None:
    head = ContinuousQHead(2, 3)
    features = torch.zeros(1, 2)
    one, other = head(features, torch.zeros(1, 3)), head(features, torch.ones(1, 3))
    assert one.shape == (1,)
    assert one.item() != other.item()


def test_standard_deviations_are_numbers_of_their_own_or_outputs() -> None:
    box = make_distribution(spaces.Box(-1, 1, (2,)))
    free = PolicyHead(3, box, std_init=0.5)
    assert free(torch.randn(4, 3))[:, 2:].exp().tolist() == [pytest.approx([0.5, 0.5])] * 4
    assert [name for name, _ in free.named_parameters()] == [
        "log_std",
        "linear.weight",
        "linear.bias",
    ]
    dependent = PolicyHead(3, box, state_dependent_std=True, std_init=0.5)
    assert dependent(torch.zeros(1, 3))[0, 2:].exp().tolist() == pytest.approx([0.5, 0.5])
    assert dependent(torch.randn(2, 3))[:, 2:].unique().numel() == 4


@pytest.mark.parametrize(
    ("mass", "positions", "projected"),
    [
        # On an atom it stays, between two it goes to both.
        ([0.5, 0.25, 0.25], [1.0, 2.25, 3.0], [0.0, 0.5, 0.1875, 0.3125]),
        # Beyond an end it goes to the end.
        ([0.25, 0.75], [-7.0, 9.0], [0.25, 0, 0, 0.75]),
        # What does not move stays as it is.
        ([0.1, 0.2, 0.3, 0.4], [0.0, 1.0, 2.0, 3.0], [0.1, 0.2, 0.3, 0.4]),
        # A terminated row has all of it at its reward.
        ([0.25] * 4, [1.5] * 4, [0, 0.5, 0.5, 0]),
    ],
)
def test_mass_goes_to_its_neighbours(
    mass: list[float], positions: list[float], projected: list[float]
) -> None:
    support = tensor([0.0, 1.0, 2.0, 3.0])
    assert project(tensor([mass]), tensor([positions]), support).tolist() == [
        pytest.approx(projected)
    ]


@given(
    reward=st.floats(-30, 30),
    gamma=st.floats(0, 1),
    atoms=st.integers(2, 51),
    seed=st.integers(0, 1000),
)
def test_projection_keeps_all_mass_and_the_mean_where_nothing_is_clamped(
    reward: float, gamma: float, atoms: int, seed: int
) -> None:
    support = torch.linspace(-10, 10, atoms, dtype=torch.float64)
    draw = torch.Generator().manual_seed(seed)
    probabilities = torch.rand(3, atoms, generator=draw, dtype=torch.float64)
    probabilities /= probabilities.sum(1, keepdim=True)
    positions: Tensor = (reward + gamma * support).expand(3, atoms)
    projected = project(probabilities, positions, support)
    assert (projected >= 0).all()
    torch.testing.assert_close(projected.sum(1), torch.ones(3, dtype=torch.float64))
    mean = (projected * support).sum(1)
    clamped = (probabilities * positions.clamp(-10, 10)).sum(1)
    torch.testing.assert_close(mean, clamped, atol=1e-9, rtol=0)


# -- nn memory -------------------------------------------------------------------------------------


BOX = spaces.Box(-1, 1, (3,))

START = torch.tensor([0, 4, 5])
STOP = torch.tensor([4, 5, 11])


def stepped(memory: Memory, features: Tensor, fragments: Fragments) -> tuple[Tensor, Any]:
    """The same by hand: every fragment on its own, one row after the other."""
    rows, last = [], []
    for index in range(len(fragments.start)):
        state = None
        if fragments.state is not None:
            state = {name: part[index : index + 1] for name, part in fragments.state.items()}
        for row in range(int(fragments.start[index]), int(fragments.stop[index])):
            out, state = memory.step(features[row : row + 1], state)
            rows.append(out)
        assert state is not None
        last.append(state)
    return torch.cat(rows), {name: torch.cat([state[name] for state in last]) for name in last[0]}


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize("begun", [True, False])
def test_one_pass_over_fragments_and_its_gradients_equal_those_of_stepping(
    kind: Any, begun: bool
) -> None:
    torch.manual_seed(0)
    memory = Memory(3, 5, kind)
    rows, weights = torch.randn(11, 3), torch.randn(11, 5)
    found: list[Any] = []
    for forward in (memory, lambda *given: stepped(memory, *given)):
        features = rows.clone().requires_grad_()
        state = {name: torch.full((3, 5), 0.3, requires_grad=True) for name in ("hidden", "cell")}
        wanted = [features, *memory.parameters(), *([state["hidden"]] if begun else [])]
        out, after = forward(features, Fragments(START, STOP, state if begun else None))
        loss = (out * weights).sum() + after["hidden"].square().sum()
        found.append((out, after, torch.autograd.grad(loss, wanted)))
    torch.testing.assert_close(*found)


def test_nothing_is_remembered_across_a_border() -> None:
    memory = Memory(3, 5)
    features = torch.randn(11, 3)
    changed = features.clone()
    changed[:4] += 1
    one, other = (memory(rows, Fragments(START, STOP))[0] for rows in (features, changed))
    assert not torch.equal(one[:4], other[:4])
    assert torch.equal(one[4:], other[4:])


@pytest.mark.parametrize("memory", ["lstm", "gru"])
@pytest.mark.parametrize(("shared", "size"), [(True, 6), (False, 6), (True, 96)])
def test_acting_step_by_step_equals_training_on_the_fragment(
    memory: Any, shared: bool, size: int
) -> None:
    torch.manual_seed(0)
    options = ActorCriticOptions(memory=memory, memory_size=size, shared_encoder=shared)
    network = ActorCritic(BOX, spaces.Discrete(2), options)
    observations = torch.randn(4, 5, 3)
    state: Any = network.initial_state(4)
    in_numpy, in_torch, torch_state = [], [], state
    for step in range(5):
        parameters, state = network.act(observations[:, step].numpy(), state)
        in_numpy.append(torch.from_numpy(parameters))
        expected, torch_state = network.act_on_tensors(observations[:, step], torch_state)
        in_torch.append(expected)
    fragments = Fragments(torch.arange(4) * 5, torch.arange(1, 5) * 5, network.initial_state(4))
    trained, values = network(observations.flatten(0, 1), fragments)
    for acted in (in_numpy, in_torch):
        torch.testing.assert_close(torch.stack(acted, 1).flatten(0, 1), trained, atol=1e-5, rtol=0)
    for name, part in state.items():
        numpy.testing.assert_allclose(part, torch_state[name], atol=1e-5)
    # The states that acting left behind continue both networks where they were.
    carried = {name: torch.from_numpy(part) for name, part in state.items()}
    more = torch.randn(4, 3)
    both = torch.cat([observations, more[:, None]], 1).flatten(0, 1)
    longer = Fragments(torch.arange(4) * 6, torch.arange(1, 5) * 6)
    ones = Fragments(torch.arange(4), torch.arange(1, 5), carried)
    torch.testing.assert_close(network.values(more, ones), network.values(both, longer)[5::6])
    torch.testing.assert_close(values, network.values(observations.flatten(0, 1), fragments))


def test_fresh_episodes_begin_at_zero_with_a_row_for_each_environment() -> None:
    state = Body(BOX, NetworkOptions(memory="lstm", memory_size=2)).initial_state(3)
    assert state is not None
    assert {name: part.tolist() for name, part in state.items()} == {
        "hidden": [[0, 0]] * 3,
        "cell": [[0, 0]] * 3,
    }
    assert Body(BOX).initial_state(3) is None
    network = Network(Body(BOX, NetworkOptions(memory="gru")), QHead(64, 2))
    observations = numpy.ones((2, 3), numpy.float32)
    fresh: Any = network.initial_state(2)
    assert network.act(observations)[0].tolist() == network.act(observations, fresh)[0].tolist()


@pytest.mark.parametrize("stop", [[3, 10], [5, 10]])
def test_fragments_that_do_not_hold_every_row_once_are_refused(stop: list[int]) -> None:
    with pytest.raises(RequestError, match="do not hold the 10 rows"):
        Memory(3, 5)(torch.zeros(10, 3), Fragments(torch.tensor([0, 4]), torch.tensor(stop)))
    with pytest.raises(RequestError, match="rows without fragments"):
        Body(BOX, NetworkOptions(memory="lstm"))(torch.zeros(2, 3))


def test_passes_that_are_alive_at_once_do_not_disturb_each_other() -> None:
    torch.manual_seed(0)
    memory = Memory(3, 5)
    weight: Any = memory.layer.weight_hh_l0
    fragments = Fragments(START, STOP)
    inputs = [torch.randn(11, 3) for _ in range(3)]
    alone = [torch.autograd.grad(memory(rows, fragments)[0].sum(), weight)[0] for rows in inputs]
    outputs = [memory(rows, fragments)[0].sum() for rows in inputs]
    with torch.no_grad():
        memory(inputs[0], fragments)
    for out, expected in zip(outputs, alone, strict=True):
        for _ in range(2):
            gradient = torch.autograd.grad(out, weight, retain_graph=True)[0]
            torch.testing.assert_close(gradient, expected)


# -- nn targets ------------------------------------------------------------------------------------


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))


def change(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1
    model(torch.randn(8, 2))


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_a_fixed_target_is_copied_exactly_at_its_interval_buffers_included() -> None:
    model = network()
    target = FixedTarget(3).init(model)
    first = state(model)
    for update in range(1, 8):
        change(model)
        assert target.update() is (update % 3 == 0)
        if update % 3 == 0:
            first = state(model)
        assert same(state(target.model), first)
    assert state(target.model)["1.num_batches_tracked"].item() == 6


def test_a_fixed_target_in_steps_is_copied_by_the_first_update_beyond_each_multiple() -> None:
    target = FixedTarget(10, "step").init(network())
    assert [target.update(step) for step in (4, 8, 12, 16, 20, 45, 48)] == [
        False,
        False,
        True,
        False,
        True,
        True,
        False,
    ]


def test_a_polyak_target_moves_by_its_rate_and_copies_buffers() -> None:
    model = network()
    target = PolyakTarget(0.25).init(model)
    before = state(target.model)
    change(model)
    target.update()
    expected = 0.75 * before["0.weight"] + 0.25 * model.state_dict()["0.weight"]
    torch.testing.assert_close(state(target.model)["0.weight"], expected)
    for buffer in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
        assert torch.equal(state(target.model)[buffer], model.state_dict()[buffer])
    copied = PolyakTarget(1.0, update_frequency=2).init(model)
    change(model)
    assert [copied.update() for _ in range(4)] == [False, True, False, True]
    assert same(state(copied.model), state(model))


@pytest.mark.parametrize("target", [FixedTarget(2), PolyakTarget(0.1)])
def test_a_target_has_no_gradients_and_is_not_trained(target: TargetNetwork) -> None:
    target.init(nn.Linear(2, 2))
    assert not target(torch.ones(1, 2)).requires_grad
    assert not any(parameter.requires_grad for parameter in target.parameters())


class Pair(nn.Module):
    """A network and its target in one module, as a plugin has them."""

    def __init__(self) -> None:
        super().__init__()
        self.q = network()
        self.target = FixedTarget(3).init(self.q)


def test_the_network_is_saved_once_and_the_target_and_its_clock_with_it() -> None:
    names = set(Pair().state_dict())
    assert {"q.0.weight", "target.model.0.weight", "target.clock"} <= names
    assert not any("source" in name for name in names)


def test_a_resumed_target_copies_when_it_would_have() -> None:
    pair, resumed = Pair(), Pair()
    pair.target.update()
    pair.target.update()
    resumed.target.update()
    resumed.load_state_dict(pair.state_dict())
    assert resumed.target.update() is True
    assert same(state(resumed.target.model), state(resumed.q))


def test_a_copy_of_a_module_has_a_target_that_follows_the_copy() -> None:
    pair = Pair()
    other = copy.deepcopy(pair)
    change(other.q)
    other.target.copy()
    assert same(state(other.target.model), state(other.q))
    assert not same(state(pair.target.model), state(other.q))


def test_a_target_in_steps_is_not_updated_without_a_timestep() -> None:
    with pytest.raises(RequestError, match="without a timestep"):
        FixedTarget(1, "step").init(network()).update()
