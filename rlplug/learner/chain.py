"""From a minibatch to its losses: forward pass and every plugin's terms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlplug.learner.losses import Combined, combine

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
) -> Combined | None:
    """All plugins' losses of a minibatch, added up; None if nobody has one."""
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
    return combine(answers, member.algorithm, names) if answers else None
