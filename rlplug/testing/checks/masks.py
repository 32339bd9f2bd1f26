"""Checks of action masks in updates: those of this action, and those of the next one."""

from __future__ import annotations

import torch

from rlplug.testing.checks.values import gradients_of_outputs
from rlplug.testing.report import CheckFailed, DoesNotApply, location
from rlplug.testing.subject import Subject
from rlplug.testing.trial import named, trials

__all__ = ["check_masked_actions_are_not_learned", "check_masks_of_next_actions_are_used"]

_WHERE = ("prepare_batch", "compute_loss_for_module", "additional_update")


def check_masked_actions_are_not_learned(subject: Subject) -> None:
    """Outputs of `forward_train` for masked actions get no gradient: no loss depends on them."""
    applies = False
    masked = tuple(one for one in subject.cases if one.masked)
    for trial in trials(subject, masked):
        if "action_mask" not in trial.batch or not hasattr(trial.case.action_space, "n"):
            continue
        prepared = trial.prepare(trial.batch)
        forbidden = prepared["action_mask"] == 0
        for name, gradient in gradients_of_outputs(trial, prepared, forbidden.shape).items():
            applies = True
            wrong = float(gradient[forbidden].abs().max())
            if wrong > 1e-4 * float(gradient.abs().max()):
                raise CheckFailed(
                    f"a loss that does not depend on {name!r} of masked actions"
                    + named(trial.setting),
                    f"a gradient of up to {wrong:.2g}, of others up to "
                    f"{float(gradient[~forbidden].abs().max()):.2g}",
                    location(subject.kind, "compute_loss_for_module")
                    + ': log-probabilities and entropies under batch["action_mask"]',
                )
    if not applies:
        raise DoesNotApply("its batches have no action_mask, or forward_train gives nothing of it")


def check_masks_of_next_actions_are_used(subject: Subject) -> None:
    """Values of next states are those of actions that `next_action_mask` allows."""
    applies = False
    masked = tuple(one for one in subject.cases if one.masked and not one.one_step)
    for trial in trials(subject, masked):
        batch = trial.batch
        if "next_action_mask" not in batch:
            continue
        applies = True
        going = trial.with_ends(terminated=False, truncated=False)
        count = batch["next_action_mask"].shape[1]
        only = []
        for action in range(count):
            mask = torch.zeros_like(batch["next_action_mask"])
            mask[:, action] = 1
            only.append(trial.after(going.with_columns({"next_action_mask": mask})))
        every = torch.ones_like(batch["next_action_mask"])
        free = trial.after(going.with_columns({"next_action_mask": every}))
        differing = sum(not one.equals(free) for one in only)
        if differing < count - 1 or only[0].equals(only[1]):
            raise CheckFailed(
                "another update where next_action_mask allows a single action"
                + named(trial.setting),
                "the same one",
                location(subject.kind, *_WHERE)
                + ': mask the values of next actions with batch["next_action_mask"]',
            )
    if not applies:
        raise DoesNotApply("its feed gives no next_action_mask")
