"""From a minibatch to its losses: forward pass and every plugin's terms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlplug.learner.losses import Combined, combine, taken_as_known
from rlplug.losses import KnownLoss

if TYPE_CHECKING:
    from rlplug.batch import Batch
    from rlplug.hooks.calls import HookCalls
    from rlplug.learner.member import Member
    from rlplug.learner.precision import Precision
    from rlplug.plugin import LearnerView

__all__ = ["losses_of"]


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
    module = member.module
    if precision.format is None:
        fwd_out = module.forward_train(batch)
        answers = calls.compute_loss_for_module(
            member.module_id, module, batch, fwd_out, names, learner
        )
    else:
        with precision.around_forward():
            fwd_out = module.forward_train(batch)
            answers = calls.compute_loss_for_module(
                member.module_id, module, batch, fwd_out, names, learner
            )
    if not answers:
        return None
    if direct and len(answers) == 1 and isinstance(answers[0][1], KnownLoss):
        return taken_as_known(answers[0][1])
    return combine(answers, member.algorithm, names)
