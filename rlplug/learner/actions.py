"""Refuse actions of a batch that are none of the module's action space."""

from __future__ import annotations

from typing import Any

import numpy
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from rlplug.batch import Batch
from rlplug.errors import RequestError
from rlplug.spaces import AnySpace, describe, whole_numbers

__all__ = ["DiscreteActions", "discrete_actions"]


class DiscreteActions:
    """The actions of a discrete space, and whether those of a batch are among them.

    Of others a loss would be that of another action, or fail without a word of the row.
    """

    def __init__(self, space: AnySpace, least: Any, most: Any) -> None:
        self.space = space
        self._is_single = isinstance(space, spaces.Discrete)
        self._least, self._most = numpy.asarray(least), numpy.asarray(most)
        """The first and the last action, or those of each choice."""
        self._rows = self._least.reshape(-1, 1), self._most.reshape(-1, 1)
        self._fits_all = int(self._least.max()), int(self._most.min())

    def check(
        self, module_id: str, batch: Batch, training_space: AnySpace | None, *, in_range: bool
    ) -> None:
        """Refuse actions that are no whole numbers or, with `in_range`, beyond the space.

        With `in_range` several per row are refused as well, where the space has one.
        In a batch of a team 0 also stands for the actions of agents who are absent. What is on a
        GPU may be beyond the space: to look at it, the learner would have to wait.
        """
        actions = batch.columns["actions"]
        several = in_range and self._is_single and getattr(actions, "ndim", 1) > 1
        if several and not _is_team(training_space):
            raise self._several_per_row(module_id, actions)
        if type(actions) is not numpy.ndarray or actions.dtype.kind not in "iub":
            column = batch["actions"]
            if column.is_floating_point():
                actions = whole_numbers(column, "action")
            elif _is_numpys(column):
                actions = column.numpy()
            else:
                return
        if not in_range:
            return
        # Two reductions take half as long as two comparisons.
        least, most = self._fits_all
        if int(_minimum(actions, None)) < least or int(_maximum(actions, None)) > most:
            self._look_at_choices(module_id, actions, _is_team(training_space))

    def _several_per_row(self, module_id: str, actions: Any) -> RequestError:
        shape = tuple(actions.shape)
        return RequestError(
            f"'actions' of the batch for module {module_id!r} has shape {shape}, where "
            f"{describe(self.space)} takes ({shape[0]},).",
            "try: actions[:, 0]" if shape[1:] == (1,) else "give one action per row",
        )

    def _look_at_choices(self, module_id: str, actions: NDArray[Any], team: bool) -> None:
        least, most = self._least, self._most
        if least.ndim:
            if actions.shape[-least.ndim :] != least.shape:
                # The loss says what it makes of actions of another shape.
                return
            # A row per choice: rows of few choices are compared one by one.
            choices = numpy.ascontiguousarray(actions.reshape(-1, least.size).T)
            below, above = choices < self._rows[0], choices > self._rows[1]
            if not (below.any() or above.any()):
                return
        outside = (actions < least) | (actions > most)
        if team:
            outside &= actions != 0
            if not outside.any():
                return
        row, *others = first = tuple(numpy.argwhere(outside)[0].tolist())
        place = f", column {', '.join(map(str, others))}" if others else ""
        lowest, highest = (numpy.broadcast_to(one, actions.shape)[first] for one in (least, most))
        raise RequestError(
            f"'actions' of the batch for module {module_id!r} has {actions[first]} in row "
            f"{row}{place}, where {describe(self.space)} takes {lowest} to {highest}.",
            "nothing was changed; give actions as the environment takes them, or leave such rows "
            "out",
        )


def discrete_actions(space: AnySpace) -> DiscreteActions | None:
    """The actions of a space with numbered ones; None of other spaces."""
    if isinstance(space, spaces.Discrete):
        return DiscreteActions(space, space.start, space.start + space.n - 1)
    if isinstance(space, spaces.MultiDiscrete):
        return DiscreteActions(space, space.start, space.start + space.nvec - 1)
    return DiscreteActions(space, 0, 1) if isinstance(space, spaces.MultiBinary) else None


def _is_numpys(column: Tensor) -> bool:
    """Whether it can be read without waiting for a device."""
    return column.is_cpu


def _is_team(training_space: AnySpace | None) -> bool:
    return isinstance(training_space, spaces.Dict) and "present" in training_space.spaces


_minimum, _maximum = numpy.minimum.reduce, numpy.maximum.reduce
