"""Checks of acting and of log-probabilities: modules that act wrongly, and what is said of them."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from gymnasium import spaces

from rlplug import Acted, ActInput, Batch
from rlplug.testing.algorithms import PolicyGradient, PolicyGradientModule, QLearning
from tests.faulty import failure, passed_by, passes


class Acting(PolicyGradient):
    """Builds a module that acts in another way."""

    Planted: ClassVar[type[Any]] = PolicyGradientModule

    def build(self, observation_space: Any, action_space: Any, config: Any) -> Any:
        inputs, actions = spaces.flatdim(observation_space), spaces.flatdim(action_space)
        return self.Planted(inputs, actions, config.width)


def acting(module: type[Any]) -> type[Any]:
    """A plugin with this module."""
    return type("Mine", (Acting,), {"Planted": module, "__doc__": "Acts."})


# -- actions ---------------------------------------------------------------------------------------


class OfTwoActions(PolicyGradient):
    """Supports no environment of the kit that has masks."""

    def supports(self, observation_space: Any, action_space: Any) -> str | None:
        if not isinstance(action_space, spaces.Discrete) or action_space.n != 2:
            return "two actions"
        return super().supports(observation_space, action_space)


def test_what_acting_has_not_is_passed_by() -> None:
    assert passed_by("masks_are_respected", OfTwoActions) == (
        "it supports no environment with action masks"
    )
    assert passed_by("export_acts_like_inference", PolicyGradient) == (
        "it defines no forward_export: its forward_inference is exported"
    )


class ExportsTheWorst(PolicyGradientModule):
    """Exports another action."""

    def forward_export(self, act: ActInput) -> Acted:
        logits = self.logits(act.observations, act.action_mask)
        if act.action_mask is not None:
            logits = logits.masked_fill(torch.as_tensor(act.action_mask) == 0, 1e9)
        return Acted(logits.argmin(1))


class Exports(PolicyGradientModule):
    """Exports the same action."""

    def forward_export(self, act: ActInput) -> Acted:
        return Acted(self.logits(act.observations, act.action_mask).argmax(1))


class OnTensors(PolicyGradientModule):
    """Acts on tensors, but not as on arrays."""

    acts_on_tensors = True

    def forward_inference(self, act: ActInput) -> Acted:
        logits = self.logits(act.observations, act.action_mask)
        return Acted(logits.argmin(1) if act.in_torch else logits.argmax(1).detach().numpy())


@pytest.mark.parametrize(
    ("module", "method"),
    [(ExportsTheWorst, "forward_export"), (OnTensors, "forward_inference")],
)
def test_other_actions_on_tensors_are_told(module: type[Any], method: str) -> None:
    told = failure("export_acts_like_inference", acting(module))
    assert told.looked_for == (
        f"the same actions by {method} on tensors as by forward_inference on arrays in "
        "'box, discrete'"
    )
    assert told.found.endswith(" of 24 rows")
    assert told.look_at.startswith(f"{module.__name__}.{method} (")


def test_the_same_actions_on_tensors_pass() -> None:
    passes("export_acts_like_inference", acting(Exports))


# -- what acting is given --------------------------------------------------------------------------


# -- draws -----------------------------------------------------------------------------------------


class Probabilities(PolicyGradientModule):
    """Tells log-probabilities and probabilities."""

    sharper: ClassVar[float] = 1.0
    told: ClassVar[float] = 1.0

    @torch.no_grad()
    def forward_exploration(self, act: ActInput) -> Acted:
        acted = super().forward_exploration(act)
        logs = (self.sharper * self.logits(act.observations, act.action_mask)).log_softmax(1)
        chosen = torch.as_tensor(acted.actions)[:, None]
        return Acted(acted.actions, extras={"log_prob": logs.gather(1, chosen)[:, 0].numpy()})

    @torch.no_grad()
    def action_probabilities(self, act: ActInput) -> Any:
        return (self.told * self.logits(act.observations, act.action_mask)).softmax(1)


class TellsOthers(Probabilities):
    """Tells other probabilities than log-probabilities."""

    told: ClassVar[float] = 2.0


def test_probabilities_that_differ_from_log_probabilities_are_told() -> None:
    told = failure("log_probs_are_those_of_actions", acting(TellsOthers))
    assert told.looked_for == (
        "the same probabilities by action_probabilities as by log_prob in 'box, discrete'"
    )
    assert told.found.startswith("log-probabilities of [")
    assert told.look_at.startswith("TellsOthers.action_probabilities (")
    passes("log_probs_are_those_of_actions", acting(Probabilities))
    assert passed_by("log_probs_are_those_of_actions", QLearning) == (
        "it gives no log_prob, and forward_train no log_probs"
    )
    assert passed_by("acting_and_training_agree_on_log_probs", PolicyGradient) == (
        "prepare_batch adds no log_prob"
    )


class IfAsked(Probabilities):
    """Gives log-probabilities only where they are asked for."""

    def forward_exploration(self, act: ActInput) -> Acted:
        acted = super().forward_exploration(act)
        return acted if act.wants_log_prob else Acted(acted.actions)


class Prepares(Acting):
    """Adds the log-probabilities of actions to its batches."""

    Planted: ClassVar[type[Any]] = IfAsked
    factor: ClassVar[float] = 1.0

    def prepare_batch(self, module: Any, config: Any, batch: Batch) -> Any:
        logs = module.forward_train(batch)["log_probs"]
        chosen = logs.gather(1, batch["actions"].long()[:, None])[:, 0]
        prepared = dict(super().prepare_batch(module, config, batch))
        return {**prepared, "log_prob": chosen * self.factor}


class PreparesOthers(Prepares):
    """Adds others than it acts by."""

    factor: ClassVar[float] = 1.1


class PreparesAlone(Prepares):
    """Gives none where it acts."""

    Planted: ClassVar[type[Any]] = PolicyGradientModule


def test_log_probabilities_of_training_that_differ_are_told() -> None:
    passes("acting_and_training_agree_on_log_probs", Prepares)
    told = failure("acting_and_training_agree_on_log_probs", PreparesOthers)
    assert told.looked_for == (
        "the same log-probabilities in acting and in training in 'box, discrete'"
    )
    assert 0.01 < float(told.found.removeprefix("they differ by up to ")) < 0.3
    assert told.look_at.startswith("IfAsked.forward_exploration (")
    assert "), or PreparesOthers.prepare_batch (" in told.look_at
    told = failure("acting_and_training_agree_on_log_probs", PreparesAlone)
    assert told.looked_for == "extras with log_prob where act.wants_log_prob is set"
    assert told.found == "none"
    assert told.look_at.startswith("PolicyGradientModule.forward_exploration (")
