"""Checks of acting and of log-probabilities: modules that act wrongly, and what is said of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rlplug import Acted, ActInput, Batch
from rlplug.testing.algorithms import PolicyGradient, PolicyGradientModule, QLearning
from rlplug.testing.cases import CASES
from tests.faulty import failure, passed_by, passes

MASKED = next(one for one in CASES if one.name == "box, masked discrete" and not one.one_step)


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


OF_ONE = "1 actions in Discrete(3) for 1 observations"


class NoActed(PolicyGradientModule):
    """Returns an array."""

    def forward_inference(self, act: ActInput) -> Any:
        return super().forward_inference(act).actions


class NeedsGradients(PolicyGradientModule):
    """Records a graph."""

    def forward_exploration(self, act: ActInput) -> Acted:
        acted = super().forward_exploration(act)
        return Acted(acted.actions, extras={"logit": self.logits(act.observations)[:, 0]})


class FewRows(PolicyGradientModule):
    """Gives an extra of one row."""

    def forward_inference(self, act: ActInput) -> Acted:
        acted = super().forward_inference(act)
        return Acted(acted.actions, extras={"one": numpy.zeros((1, 2))})


class TooHigh(PolicyGradientModule):
    """Counts from 1."""

    def forward_inference(self, act: ActInput) -> Acted:
        return Acted(super().forward_inference(act).actions + 3)


class Floats(PolicyGradientModule):
    """Gives floats for Discrete actions."""

    def forward_exploration(self, act: ActInput) -> Acted:
        return Acted(super().forward_exploration(act).actions.astype(float))


@pytest.mark.parametrize(
    ("module", "looked_for", "found", "method"),
    [
        (NoActed, "an rlplug.Acted", "ndarray", "forward_inference"),
        (
            NeedsGradients,
            "acting without gradients",
            "extras.logit requires one",
            "forward_exploration",
        ),
        (
            FewRows,
            "5 actions in Discrete(3) for 5 observations",
            r"extras\.one of shape \(1, 2\)",
            "forward_inference",
        ),
        (TooHigh, OF_ONE, r"np\.int64\([345]\)", "forward_inference"),
        (Floats, OF_ONE, r"np\.float64\([012]\.0\)", "forward_exploration"),
    ],
)
def test_actions_that_are_none_of_the_space_are_told(
    module: type[Any], looked_for: str, found: str, method: str
) -> None:
    told = failure("actions_are_in_the_action_space", acting(module))
    assert told.looked_for == looked_for
    assert re.fullmatch(found, told.found)
    assert told.look_at.startswith(f"{module.__name__}.{method} (")


class Draws(PolicyGradientModule):
    """Draws from a generator of its own."""

    def forward_exploration(self, act: ActInput) -> Acted:
        act.random = numpy.random.default_rng()
        return super().forward_exploration(act)


class DrawsTheBest(PolicyGradientModule):
    """Draws where it should act greedily, from a generator of its own."""

    def forward_inference(self, act: ActInput) -> Acted:
        act.random = numpy.random.default_rng()
        return super().forward_exploration(act)


class Explores(PolicyGradientModule):
    """Draws where it should act greedily."""

    def forward_inference(self, act: ActInput) -> Acted:
        return super().forward_exploration(act)


class OfTheMean(PolicyGradientModule):
    """Takes the mean over all rows off."""

    def forward_inference(self, act: ActInput) -> Acted:
        logits = self.logits(act.observations, act.action_mask)
        return Acted((logits - logits.mean(0)).argmax(1).cpu().numpy())


class FirstOfAll(PolicyGradientModule):
    """Acts in another way at first."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.acted: list[int] = []

    def forward_inference(self, act: ActInput) -> Acted:
        self.acted.append(1)
        actions = super().forward_inference(act).actions
        return Acted(actions if len(self.acted) > 1 else (actions + 1) % self.actor[2].out_features)


@pytest.mark.parametrize(
    ("check", "module", "looked_for", "found", "look_at"),
    [
        (
            "acting_is_repeatable",
            Draws,
            "the same explored actions from generators of the same seed",
            ": something else than act.random was drawn from",
            "forward_exploration (",
        ),
        (
            "acting_is_repeatable",
            DrawsTheBest,
            "the same best actions for the same observations",
            "",
            "forward_inference (",
        ),
        (
            "acting_is_repeatable",
            FirstOfAll,
            "the same best actions for the same observations",
            "",
            "forward_inference (",
        ),
        (
            "inference_is_not_random",
            Explores,
            "the same best actions whatever act.random draws in 'box, discrete'",
            "",
            "): it explores",
        ),
        (
            "inference_is_not_random",
            OfTheMean,
            "the same best action for an observation alone and beside others in 'box, discrete'",
            " among 12",
            "): means over the batch, or axes that are mixed up",
        ),
    ],
)
def test_actions_of_chance_and_of_other_rows_are_told(
    check: str, module: type[Any], looked_for: str, found: str, look_at: str
) -> None:
    told = failure(check, acting(module))
    assert told.looked_for == looked_for
    assert " alone, " in told.found if found == " among 12" else told.found.startswith("actions ")
    assert told.found.endswith(found)
    assert told.look_at.startswith(f"{module.__name__}.forward_")
    assert look_at in told.look_at


class Alone(PolicyGradientModule):
    """Forgets masks of one row."""

    def forward_inference(self, act: ActInput) -> Acted:
        if len(act.observations) == 1:
            act.action_mask = None
        return super().forward_inference(act)


class ForgetsMasks(PolicyGradientModule):
    """Forgets masks where it explores."""

    def forward_exploration(self, act: ActInput) -> Acted:
        act.action_mask = None
        return super().forward_exploration(act)


def test_masks_that_are_forgotten_are_told() -> None:
    told = failure("masks_are_respected", acting(ForgetsMasks))
    assert told.looked_for == "no action that act.action_mask forbids"
    words = told.found.split(" under the mask ")
    action, mask = int(words[0].removeprefix("action ")), words[1].strip("[]").split(", ")
    assert mask[action] == "0"
    assert told.look_at.startswith("ForgetsMasks.forward_exploration (")
    told = failure("inference_is_not_random", acting(Alone))
    assert told.looked_for == (
        "the same best action for an observation alone and beside others in 'box, masked discrete'"
    )
    passes("masks_are_respected", PolicyGradient)


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


class Sharper(Probabilities):
    """Tells sharper log-probabilities than it draws by."""

    sharper: ClassVar[float] = 30.0


class TellsOthers(Probabilities):
    """Tells other probabilities than log-probabilities."""

    told: ClassVar[float] = 2.0


class TrainsSharper(PolicyGradientModule):
    """Trains sharper log-probabilities than it draws by."""

    def forward_train(self, batch: Batch) -> Mapping[str, Tensor]:
        out = super().forward_train(batch)
        return {**out, "log_probs": (30 * out["log_probs"]).log_softmax(1)}


@pytest.mark.parametrize(
    ("module", "method"),
    [(Sharper, "forward_exploration"), (TrainsSharper, "forward_exploration")],
)
def test_draws_that_are_not_as_likely_as_they_are_told_are_told(
    module: type[Any], method: str
) -> None:
    told = failure("log_probs_are_those_of_actions", acting(module))
    assert told.looked_for == "actions as likely as their log-probabilities say in 'box, discrete'"
    assert " draws, by its log-probability " in told.found
    assert told.look_at.startswith((f"{module.__name__}.{method} (", f"{module.__name__}."))
    assert told.look_at.endswith(
        "): masks, the log-determinant of a squashing function, sums over dimensions"
    )


class OnBoth(Probabilities):
    """Acts on tensors as well."""

    acts_on_tensors = True
    on_tensors: ClassVar[float] = 1.0

    @torch.no_grad()
    def forward_exploration(self, act: ActInput) -> Acted:
        if not act.in_torch:
            return super().forward_exploration(act)
        logits = self.logits(act.observations, act.action_mask)
        actions = torch.multinomial(logits.softmax(1), 1, generator=act.random)
        logs = (self.on_tensors * logits).log_softmax(1).gather(1, actions)
        return Acted(actions[:, 0], extras={"log_prob": logs[:, 0]})


class SharperOnTensors(OnBoth):
    """Tells sharper log-probabilities there."""

    on_tensors: ClassVar[float] = 30.0


def test_draws_on_tensors_are_as_likely_as_they_are_told() -> None:
    passes("log_probs_are_those_of_actions", acting(OnBoth))
    told = failure("log_probs_are_those_of_actions", acting(SharperOnTensors))
    assert told.looked_for == (
        "actions as likely as their log-probabilities say in 'box, discrete' on tensors"
    )


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
