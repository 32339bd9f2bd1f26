"""A memory passes over fragments at once as it would step by step, and forgets at borders."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rlplug.errors import RequestError
from rlplug.nn import ActorCritic, ActorCriticOptions, Fragments, Memory, Network, QHead
from rlplug.nn.network import Body, NetworkOptions

KINDS = ["lstm", "gru"]
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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("begun", [True, False])
def test_fragments_in_one_pass_equal_one_step_after_the_other(kind: Any, begun: bool) -> None:
    torch.manual_seed(0)
    memory = Memory(3, 5, kind)
    state = {name: torch.randn(3, 5) for name in ("hidden", "cell")} if begun else None
    features = torch.randn(11, 3)
    fragments = Fragments(START, STOP, state)
    for one, other in zip(
        memory(features, fragments), stepped(memory, features, fragments), strict=True
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_one_pass_equal_those_of_stepping(kind: Any) -> None:
    torch.manual_seed(0)
    memory = Memory(3, 5, kind)
    weights = torch.randn(11, 5)
    gradients = []
    for forward in (memory, lambda *given: stepped(memory, *given)):
        features = torch.randn(11, 3, generator=torch.Generator().manual_seed(1))
        features.requires_grad_()
        state = {name: torch.full((3, 5), 0.3, requires_grad=True) for name in ("hidden", "cell")}
        wanted = [features, state["hidden"], *memory.parameters()]
        out, after = forward(features, Fragments(START, STOP, state))
        loss = (out * weights).sum() + after["hidden"].square().sum()
        gradients.append(torch.autograd.grad(loss, wanted))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_gradients_of_the_two_biases_can_be_changed_apart() -> None:
    memory = Memory(3, 5)
    out, _ = memory(torch.randn(11, 3), Fragments(START, STOP))
    layer = memory.layer
    one, other = torch.autograd.grad(out.sum(), [layer.bias_ih_l0, layer.bias_hh_l0])
    before = other.clone()
    one.zero_()
    assert torch.equal(other, before)
    assert before.count_nonzero() > 0


def test_nothing_is_remembered_across_a_border() -> None:
    memory = Memory(3, 5)
    features = torch.randn(11, 3)
    changed = features.clone()
    changed[:4] += 1
    one, other = (memory(rows, Fragments(START, STOP))[0] for rows in (features, changed))
    assert not torch.equal(one[:4], other[:4])
    assert torch.equal(one[4:], other[4:])


def test_a_rollout_cut_in_two_gives_the_same_with_the_state_carried_over() -> None:
    memory = Memory(3, 5)
    features = torch.randn(6, 3)
    whole, _ = memory(features, Fragments(torch.tensor([0]), torch.tensor([6])))
    first, state = memory(features[:2], Fragments(torch.tensor([0]), torch.tensor([2])))
    second, _ = memory(features[2:], Fragments(torch.tensor([0]), torch.tensor([4]), state))
    torch.testing.assert_close(torch.cat([first, second]), whole)


@pytest.mark.parametrize("memory", KINDS)
@pytest.mark.parametrize("shared", [True, False])
def test_acting_step_by_step_equals_training_on_the_fragment(memory: Any, shared: bool) -> None:
    torch.manual_seed(0)
    options = ActorCriticOptions(memory=memory, memory_size=6, shared_encoder=shared)
    network = ActorCritic(BOX, spaces.Discrete(2), options)
    observations = torch.randn(4, 5, 3)
    state: Any = network.initial_state(4)
    in_numpy, in_torch, torch_state = [], [], state
    assert network._look(False) is not None
    for step in range(5):
        parameters, state = network.act(observations[:, step].numpy(), state)
        in_numpy.append(torch.from_numpy(parameters))
        parameters, torch_state = network._act_in_torch(observations[:, step], torch_state, False)
        in_torch.append(torch.from_numpy(parameters))
    fragments = Fragments(torch.arange(4) * 5, torch.arange(1, 5) * 5, network.initial_state(4))
    trained, values = network(observations.flatten(0, 1), fragments)
    torch.testing.assert_close(torch.stack(in_numpy, 1).flatten(0, 1), trained, atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.stack(in_torch, 1).flatten(0, 1), trained, atol=1e-5, rtol=0)
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


def test_the_first_state_is_zero_with_a_row_for_each_environment() -> None:
    state = Body(BOX, NetworkOptions(memory="lstm", memory_size=2)).initial_state(3)
    assert state is not None
    assert {name: part.tolist() for name, part in state.items()} == {
        "hidden": [[0, 0]] * 3,
        "cell": [[0, 0]] * 3,
    }
    assert Body(BOX).initial_state(3) is None


def test_acting_without_a_state_begins_a_fresh_episode() -> None:
    network = Network(Body(BOX, NetworkOptions(memory="gru")), QHead(64, 2))
    observations = numpy.ones((2, 3), numpy.float32)
    fresh: Any = network.initial_state(2)
    assert network.act(observations)[0].tolist() == network.act(observations, fresh)[0].tolist()


@pytest.mark.parametrize("stop", [[3, 10], [5, 10]])
def test_fragments_that_do_not_hold_every_row_once_are_refused(stop: list[int]) -> None:
    with pytest.raises(RequestError, match="do not hold the 10 rows"):
        Memory(3, 5)(torch.zeros(10, 3), Fragments(torch.tensor([0, 4]), torch.tensor(stop)))


def test_rows_without_fragments_are_refused() -> None:
    with pytest.raises(RequestError, match="rows without fragments"):
        Body(BOX, NetworkOptions(memory="lstm"))(torch.zeros(2, 3))


def test_passes_that_are_alive_at_once_do_not_disturb_each_other() -> None:
    torch.manual_seed(0)
    memory = Memory(3, 5)
    fragments = Fragments(START, STOP)
    inputs = [torch.randn(11, 3) for _ in range(3)]
    alone = [
        torch.autograd.grad(memory(one, fragments)[0].sum(), memory.layer.weight_hh_l0)[0]
        for one in inputs
    ]
    outputs = [memory(one, fragments)[0].sum() for one in inputs]
    with torch.no_grad():
        memory(inputs[0], fragments)
    for out, expected in zip(outputs, alone, strict=True):
        for _ in range(2):
            found = torch.autograd.grad(out, memory.layer.weight_hh_l0, retain_graph=True)[0]
            torch.testing.assert_close(found, expected)


def test_features_changed_before_the_backward_pass_are_refused() -> None:
    memory = Memory(3, 5)
    features = torch.randn(11, 3)
    out, _ = memory(features, Fragments(START, STOP))
    features += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_a_large_memory_acts_in_numpy_as_in_torch() -> None:
    network = Network(Body(BOX, NetworkOptions(memory="lstm", memory_size=96)), QHead(96, 2))
    observations = numpy.random.default_rng(0).standard_normal((5, 3)).astype(numpy.float32)
    state = torch_state = None
    for _ in range(3):
        values, state = network.act(observations, state)
        expected, torch_state = network._act_in_torch(observations, torch_state, False)
        numpy.testing.assert_allclose(values, expected, atol=1e-5)
