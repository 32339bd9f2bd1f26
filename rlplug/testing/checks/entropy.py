"""Checks of `ent_coef`: a bonus for entropy keeps policies random, in values as in policies."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import numpy
from gymnasium import spaces

from rlplug.feeds import Replay
from rlplug.plugin import ActInput, Module
from rlplug.testing.checks.probes import train
from rlplug.testing.collector import to_array
from rlplug.testing.harness import make_harness
from rlplug.testing.probes import BoxTarget, RewardByAction
from rlplug.testing.probes.entropy import EntropyAhead, NoReward
from rlplug.testing.report import CheckFailed, DoesNotApply, locations
from rlplug.testing.subject import Subject

__all__ = ["check_entropy_bonus_keeps_policies_random", "check_values_include_entropy"]

DRAWS = 2_000
LARGE = 3.0
"""Of `ent_coef`: actions stay random also where advantages are normalized, which takes over 1.5."""
_WHERE = ("compute_loss_for_module", "prepare_batch")


def check_entropy_bonus_keeps_policies_random(subject: Subject) -> None:
    """A large `ent_coef` keeps the policy random; a learned one aims at its entropy."""
    _require_option(subject)
    where = locations(subject.kind, *_WHERE)
    large = {"ent_coef": LARGE}
    applies = False
    if subject.accepts(large) and _supports(subject, RewardByAction):
        applies = True
        actions = _draws(subject, RewardByAction, large, 3_000)
        share = float((actions == 1).mean())
        if not 0.4 < share < 0.95:
            raise CheckFailed(
                f"both actions drawn with ent_coef = {LARGE:g}, where rewards are −1 and 1: action "
                "1 in 66 %",
                f"action 1 in {share:.1%} of {DRAWS:,} draws",
                f"{where}: the entropy in the loss of the policy: its sign, its axis, its gradient",
            )
    if subject.accepts({"ent_coef": 0.2}) and _supports(subject, NoReward):
        applies = True
        actions = _draws(subject, NoReward, {"ent_coef": 0.2}, 4_000)[:, 0]
        spread = float(actions.std())
        bounded = bool((abs(actions - 1) <= 2.001).all())
        at_bounds = float((abs(actions - 1) > 1.96).mean()) if bounded else 0.0
        if spread < 0.4 or at_bounds > 0.3:
            raise CheckFailed(
                "actions all over the space without rewards and with ent_coef = 0.2",
                f"a standard deviation of {spread:.2f}, {at_bounds:.0%} at the bounds −1 and 3",
                f"{where}: the sign of the entropy, and the log-density of squashed actions: minus "
                "log(1 − tanh²)",
            )
    if subject.accepts({"ent_coef": "auto"}) and _supports(subject, BoxTarget):
        applies = True
        actions = _draws(subject, BoxTarget, {"ent_coef": "auto"}, 8_000)[:, 0]
        spread = float(actions.std())
        if not 0.02 < spread < 0.7:
            raise CheckFailed(
                "a standard deviation near 0.18 with ent_coef = 'auto', whose target entropy is −1 "
                "for one action scaled to [−1, 1]",
                f"{spread:.2f} after 8,000 steps",
                f"{where}: the loss of the temperature: log α · (entropy − target entropy)",
            )
    if not applies:
        raise DoesNotApply("it takes no number for ent_coef, or supports none of the spaces")


def check_learned_temperature_keeps_choices_open(subject: Subject) -> None:
    """With `ent_coef` = "auto", the better of two actions is likelier, but not certain."""
    _require_option(subject)
    if not subject.accepts({"ent_coef": "auto"}) or not _supports(subject, RewardByAction):
        raise DoesNotApply("it learns no ent_coef, or supports no Discrete actions")
    share = float((_draws(subject, RewardByAction, {"ent_coef": "auto"}, 4_000) == 1).mean())
    if not 0.52 < share < 0.98:
        raise CheckFailed(
            "both actions drawn with ent_coef = 'auto', action 1, which is rewarded, more often",
            f"action 1 in {share:.1%} of {DRAWS:,} draws after 4,000 steps",
            locations(subject.kind, *_WHERE)
            + ": the loss of the temperature, log α · (entropy − target entropy), and the target "
            "of Discrete actions",
        )


def check_entropy_bonus_keeps_imitation_random(subject: Subject) -> None:
    """Learning from logs, a large `ent_coef` leads to a higher metric `entropy` than none."""
    if not subject.learns_from_logs:
        raise DoesNotApply("it learns from environments: a check of its own trains it there")
    if not subject.accepts({"ent_coef": 0.0}) or not subject.accepts({"ent_coef": LARGE}):
        raise DoesNotApply("it takes no number for ent_coef")
    first, found = 0.0, []
    for coefficient in (0.0, LARGE):
        config = subject.changed({"ent_coef": coefficient})
        harness = make_harness(subject, config=config)
        batch = harness.collect(16)["default"]
        results = [harness.update(batch)["default"] for _ in range(100)]
        if "entropy" not in results[-1]:
            raise DoesNotApply("it reports no metric entropy")
        first = float(results[0]["entropy"])
        found.append(float(results[-1]["entropy"]))
    # Without a bonus it falls as the policy fits the batch; with a large one it hardly does.
    if not found[1] > (first + found[0]) / 2:
        raise CheckFailed(
            f"an entropy that hardly falls in 100 updates with ent_coef = {LARGE:g}",
            f"{found[1]:.3g} after {first:.3g} at first; {found[0]:.3g} with ent_coef = 0",
            locations(subject.kind, *_WHERE)
            + ": the entropy in the loss: its sign, its axis, its gradient",
        )


def check_values_include_entropy(subject: Subject) -> None:
    """Learning from a replay buffer, values include the entropy of the policy ahead (SAC)."""
    _require_option(subject)
    if not isinstance(subject.participant().plugin.feed(), Replay):
        raise DoesNotApply("it is not off-policy: its values are those of rewards alone")
    applies = False
    for continuous in (True, False):
        make = partial(EntropyAhead, continuous=continuous)
        if not _supports(subject, make) or not subject.accepts({"ent_coef": 0.5}):
            continue
        applies = True
        actions = _draws(subject, make, {"ent_coef": 0.5, "gamma": 0.95}, 8_000)
        mean = float(((actions + 1) / 4).mean()) if continuous else float(actions.mean())
        if mean < 0.62:
            raise CheckFailed(
                "first actions that lead to more steps, each worth its entropy",
                f"a chance of {mean:.2f} to go on, 0.5 if entropy does not count",
                locations(subject.kind, *_WHERE)
                + ": targets with α · entropy of the next state, with a plus",
            )
    if not applies:
        raise DoesNotApply("it supports none of the spaces")


def check_values_include_entropy_of_squashed_actions(subject: Subject) -> None:
    """That entropy is the one of actions between their bounds, which a higher reward outweighs."""
    _require_option(subject)
    if not isinstance(subject.participant().plugin.feed(), Replay):
        raise DoesNotApply("it is not off-policy: its values are those of rewards alone")
    # Ten steps of uniform actions in [−1, 1] are worth 0.5 · log 2 each, 2.6 in all at first.
    make = partial(EntropyAhead, continuous=True, high=1.0, reward=3.8)
    if not _supports(subject, make) or not subject.accepts({"ent_coef": 0.5}):
        raise DoesNotApply("it supports none of the spaces")
    actions = _draws(subject, make, {"ent_coef": 0.5, "gamma": 0.95}, 8_000)
    mean = float(((actions + 1) / 2).mean())
    if mean > 0.5:
        raise CheckFailed(
            "first actions that end an episode, for a reward that is worth more than the "
            "entropy of ten steps",
            f"a chance of {mean:.2f} to go on",
            locations(subject.kind, *_WHERE)
            + ": targets with the entropy of squashed actions: minus log(1 − tanh²)",
        )


def _require_option(subject: Subject) -> None:
    if not any(field.name == "ent_coef" for field in attrs.fields(subject.kind.Config)):
        raise DoesNotApply("it has no option ent_coef")
    if subject.learns_from_logs:
        raise DoesNotApply("it learns from logs, not from environments")


def _supports(subject: Subject, make: Callable[[], Any]) -> bool:
    environment, plugin = make(), subject.participant().plugin
    return plugin.supports(environment.observation_space, environment.action_space) is None


def _draws(subject: Subject, make: Callable[[], Any], changes: dict[str, Any], steps: int) -> Any:
    """Actions drawn at the start of an episode, after a training."""
    known = {field.name for field in attrs.fields(subject.kind.Config)}
    changes = {name: value for name, value in changes.items() if name in known}
    module: Module = train(subject, make, steps=steps, config=subject.changed(changes))
    environment = make()
    observation, _ = environment.reset(seed=0)
    act = ActInput(
        numpy.repeat(observation[None], DRAWS, axis=0),
        None,
        module.initial_state(DRAWS),
        10**6,
        numpy.random.default_rng(0),
        10**6,
    )
    actions = to_array(module.forward_exploration(act).actions)
    return actions if isinstance(environment.action_space, spaces.Box) else actions.reshape(-1)
