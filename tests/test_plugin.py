"""What plugin authors touch: defaults, and what is said where a method is missing."""

from __future__ import annotations

import dataclasses
from typing import Any

import attrs
import numpy
import pytest
import torch
from gymnasium import spaces

from rlplug import Acted, ActInput, AddOn, Algorithm, Batch, Loss, Module, option
from rlplug.errors import PluginError


def fields(kind: Any) -> dict[str, Any]:
    """The fields that can be given, with their defaults; … where one must be given."""
    return {
        one.name: (
            one.default_factory()
            if one.default_factory is not dataclasses.MISSING
            else (... if one.default is dataclasses.MISSING else one.default)
        )
        for one in dataclasses.fields(kind)
        if one.init
    }


def test_what_a_module_is_given_to_act_has_these_fields_and_defaults() -> None:
    assert fields(ActInput) == {
        "observations": ...,
        "action_mask": None,
        "state": None,
        "timestep": 0,
        "random": None,
        "steps": 0,
        "wants_log_prob": False,
        "in_torch": False,
    }
    assert fields(Acted) == {"actions": ..., "state": None, "extras": {}}
    # What was drawn in advance is nobody's business.
    assert repr(ActInput([1])) == (
        "ActInput(observations=[1], action_mask=None, state=None, timestep=0, random=None, "
        "steps=0, wants_log_prob=False, in_torch=False)"
    )


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


def test_an_algorithm_says_nothing_about_what_it_does_not_set() -> None:
    class Bare(Algorithm):
        def build(self) -> Module:
            return Module()

    one = Bare()
    assert (one.default_env, one.default_steps) == ("", 100_000)
    assert (one.defaults, one.presets, one.variants, one.untested_options) == ({}, {}, (), {})
    assert (one.reference, AddOn.neutral) == ("", None)
    assert attrs.asdict(one.config) == {}
    assert one.supports(spaces.Discrete(2), spaces.Discrete(2)) is None
    with pytest.raises(PluginError) as raised:
        one.feed()
    assert str(raised.value) == (
        "algorithm class 'Bare' has no 'feed'.\n"
        "  define Bare.feed: it says how experience is collected"
    )


def test_a_plugin_has_the_options_it_was_made_with_or_the_defaults() -> None:
    @attrs.frozen(kw_only=True)
    class Options:
        rate: float = option(0.5, "A number.")

    class Bare(AddOn):
        Config = Options

    assert Bare().config == Options(rate=0.5)
    assert Bare(Options(rate=0.25)).config.rate == 0.25


def test_a_loss_needs_a_value_alone() -> None:
    assert fields(Loss) == {"value": ..., "metrics": {}, "terms": {}, "rows": {}, "stop": None}
