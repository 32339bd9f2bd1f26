"""What plugin authors touch: defaults, and what is said where a method is missing."""

from __future__ import annotations

import attrs
import numpy
import pytest
import torch

from rlplug import Acted, ActInput, AddOn, Batch, Module, option


def test_chances_are_the_numbers_of_the_generator_in_order_64_at_a_time() -> None:
    act = ActInput(numpy.zeros((1, 2)), random=numpy.random.default_rng(3))
    other = numpy.random.default_rng(3)
    drawn = [act.chance() for _ in range(64)]
    assert drawn == other.random(64).tolist()
    # All are given away: the generators are at the same place.
    assert act.random.bit_generator.state == other.bit_generator.state
    assert act.chance() == other.random(64)[0]


def test_a_module_without_a_method_says_which() -> None:
    class Silent(Module):
        pass

    act = ActInput(numpy.zeros((1, 2)))
    with pytest.raises(TypeError, match=r"^Silent must define forward_exploration$"):
        Silent().forward_exploration(act)
    for method in (Silent().forward_inference, Silent().forward_export):
        with pytest.raises(TypeError, match=r"^Silent must define forward_inference$"):
            method(act)
    assert Silent().forward_train(Batch({"rewards": torch.zeros(2)})) == {}
    assert Silent().acts_on_tensors is False


def test_a_module_is_exported_as_it_infers_unless_it_says_otherwise() -> None:
    class Constant(Module):
        def forward_inference(self, act: ActInput) -> Acted:
            return Acted(act.observations + 1)

    assert Constant().forward_export(ActInput(torch.tensor([1, 2]))).actions.tolist() == [2, 3]


def test_a_plugin_has_the_options_it_was_made_with_or_the_defaults() -> None:
    @attrs.frozen(kw_only=True)
    class Options:
        rate: float = option(0.5, "A number.")

    class Bare(AddOn):
        Config = Options

    assert Bare().config == Options(rate=0.5)
    assert Bare(Options(rate=0.25)).config.rate == 0.25
