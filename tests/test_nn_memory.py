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
