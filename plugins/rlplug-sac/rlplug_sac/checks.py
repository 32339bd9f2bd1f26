"""What `rlplug plugins check` looks for beside its own checks: the entropy of policies."""

from __future__ import annotations

from functools import partial
from math import inf

from rlplug.testing import DoesNotApply, Subject
from rlplug.testing.checks.probes import drawn
from rlplug.testing.probes import box_target, entropy_ahead, no_reward, reward_by_action


def entropy_keeps_policies_random(subject: Subject) -> None:
    """A large `ent_coef` keeps the policy random; a learned one aims at its entropy."""
    applies = False
    for make, coefficient, steps, low, high, what in (
        # By the softmax, 66 %.
        (reward_by_action, 3.0, 3_000, 0.4, 0.95, "the share of the better of two actions"),
        (no_reward, 0.2, 4_000, 0.4, inf, "the spread of actions in [−1, 3] without rewards"),
        (box_target, "auto", 8_000, 0.02, 0.7, "the spread of actions around the best one"),
    ):
        actions = drawn(subject, make, steps, ent_coef=coefficient)
        if actions is None:
            continue
        applies = True
        found = actions.mean() if make is reward_by_action else actions.std()
        # Wrong densities of squashed actions push them to the bounds.
        at_bounds = (abs(actions - 1) > 1.96).mean()
        if not low < found < high or at_bounds > 0.3:
            raise subject.failure(
                f"{what} between {low:g} and {high:g} with ent_coef = {coefficient!r}",
                f"{found:.2f}, and {at_bounds:.0%} at the bounds",
                "the entropy in the loss of the policy: its sign, its gradient, its target",
            )
    if not applies:
        raise DoesNotApply("it accepts none of the coefficients, or supports none of the spaces")


def values_include_entropy(subject: Subject) -> None:
    """Values include the entropy of the policy ahead: it chooses more steps."""
    for continuous in (True, False):
        make = partial(entropy_ahead, continuous=continuous)
        actions = drawn(subject, make, 8_000, ent_coef=0.5, gamma=0.95)
        if actions is None:
            continue
        chance = float(((actions + 1) / 4.0 if continuous else actions).mean())
        if not chance >= 0.62:
            raise subject.failure(
                "a chance of at least 0.62 to go on, 0.5 if entropy does not count",
                f"{chance:.2f}",
                "targets with α · entropy of the next state",
            )


CHECKS = (entropy_keeps_policies_random, values_include_entropy)
