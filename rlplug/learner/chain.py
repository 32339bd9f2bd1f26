"""From a minibatch to its losses: forward pass and every plugin's terms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from rlplug.learner.losses import Combined, combine, taken_as_known
from rlplug.losses import KnownLoss

Answers: TypeAlias = "list[tuple[str, Any]]"

if TYPE_CHECKING:
    from rlplug.batch import Batch
    from rlplug.hooks.calls import HookCalls
    from rlplug.learner.member import Member
    from rlplug.learner.precision import Precision
    from rlplug.plugin import LearnerView

__all__ = ["added", "answers_of", "losses_of"]


def losses_of(
    member: Member,
    calls: HookCalls,
    learner: LearnerView,
    precision: Precision,
    batch: Batch,
    names: tuple[str, ...],
    *,
    direct: bool = False,
) -> Combined | None:
    """All plugins' losses of a minibatch, added up; None if nobody has one.

    With `direct`, a loss that comes alone and knows its gradients is left without a graph.
    """
    if precision.format is None:
        answers = answers_of(member, calls, learner, batch, names)
    else:
        with precision.around_forward():
            answers = answers_of(member, calls, learner, batch, names)
    return added(answers, member, names, direct=direct)


def answers_of(
    member: Member, calls: HookCalls, learner: LearnerView, batch: Batch, names: tuple[str, ...]
) -> Answers:
    """What all plugins say about a minibatch."""
    module = member.module
    return calls.compute_loss_for_module(
        member.module_id, module, batch, module.forward_train(batch), names, learner
    )


def added(
    answers: Answers, member: Member, names: tuple[str, ...], *, direct: bool
) -> Combined | None:
    """The answers added up, as `losses_of` has them."""
    if not answers:
        return None
    if direct and len(answers) == 1 and isinstance(answers[0][1], KnownLoss):
        return taken_as_known(answers[0][1])
    return combine(answers, member.algorithm, names)
