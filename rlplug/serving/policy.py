"""A policy from a checkpoint: observations in, actions out."""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy
import torch
from gymnasium import spaces

from rlplug.batch.nested import first_leaf, to_arrays, tree_map
from rlplug.envs.normalization import Normalization
from rlplug.errors import RequestError
from rlplug.logs.encoding import Encoder, Unseen, said_of
from rlplug.logs.files import texts_of
from rlplug.plugin import ActInput, Module
from rlplug.sampling.checks import action_clipper, first_fully_masked
from rlplug.spaces import ACTION_MASK, AnySpace, mask_width, of_present_arms

__all__ = ["ESTIMATING_DRAWS", "Policy"]

ESTIMATING_DRAWS = 200
"""Draws whose shares are the probabilities of a policy that does not tell them."""

_LOG = logging.getLogger("rlplug")

Form = Literal["one", "several", "frame"]


class Policy:
    """Acts as the module did when the checkpoint was written; it needs no environment.

    It takes observations as the environment returns them, and normalises and stacks frames itself.
    Call `reset` at the start of an episode: it clears frames and recurrent state.
    """

    def __init__(
        self,
        module: Module,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        *,
        normalization: Normalization | None = None,
        frame_stack: int = 1,
        step: int = 0,
        run_steps: int = 0,
        path: Path | None = None,
        seed: int = 0,
        encoder: Encoder | None = None,
    ) -> None:
        self.module = module
        """Already in eval mode."""
        self.observation_space = observation_space
        self.action_space = action_space
        self.normalization = normalization
        """The statistics of training; they do not change any more."""
        self.step = step
        """Environment steps of its training so far."""
        self.run_steps = run_steps
        """Those of its whole training, for exploration that ends with it; 0: not known."""
        self.path = path
        """The checkpoint it comes from."""
        self.encoder = encoder or Encoder()
        """How columns become features, and names arms, if it learned from a log."""
        self.unseen: Unseen = Counter()
        """How often columns held levels that it has not learned."""
        self.frame_stack = frame_stack
        """Number of frames that one observation has; 1: no stack."""
        self._frames: Any = None
        self._random = numpy.random.default_rng(seed)
        self._state: Any = None
        self._rows = 0
        self._clip = action_clipper(action_space)

    def __repr__(self) -> str:
        return f"Policy({type(self.module).__name__} of step {self.step:,}, {self.path})"

    def predict(
        self,
        observation: Any,
        deterministic: bool = True,
        *,
        action_mask: Any = None,
        episode_start: Any = None,
        several: bool | None = None,
    ) -> Any:
        """The action for one observation, or the actions for several with a first axis.

        `deterministic=False` explores as in training. `episode_start` resets the recurrent state
        of those rows where it is True; for a single observation, `reset` does the same. `several`
        tells whether there are several; otherwise, their shape does. Features that have names may
        be a mapping or a data frame; arms that have names are returned by name.
        """
        if episode_start is not None and numpy.ndim(episode_start) == 0 and episode_start:
            self.reset()
        rows, single = self._read(observation, several)
        act = self._input(rows, action_mask, single, episode_start)
        choose = self.module.forward_inference if deterministic else self.module.forward_exploration
        with torch.no_grad():
            acted = choose(act)
        self._state = acted.state
        actions = self.encoder.named(self._clip(to_arrays(acted.actions)))
        chosen = tree_map(lambda leaf: leaf[0], actions) if single else actions
        return str(chosen) if isinstance(chosen, numpy.str_) else chosen

    def probabilities(
        self, observations: Any, deterministic: bool = True, *, action_mask: Any = None
    ) -> Any:
        """The probability of each discrete action, (n, actions), for several observations.

        With memory, calls are the steps of n episodes, as those of `predict`.
        """
        space = self.action_space
        if not isinstance(space, spaces.Discrete):
            raise RequestError(
                "probabilities of all actions are those of discrete ones.", "try: log_prob"
            )
        rows, single = self._read(observations)
        act = self._input(rows, action_mask, single, None)
        n = len(first_leaf(rows))
        shares: Any = None
        with torch.no_grad():
            if deterministic:
                acted = self.module.forward_inference(act)
                shares = _shares([acted.actions], n, space)
                self._state = acted.state
            else:
                shares = self.module.action_probabilities(act)
                if shares is None:
                    drawn = [self.module.forward_exploration(act) for _ in range(ESTIMATING_DRAWS)]
                    shares = _shares([one.actions for one in drawn], n, space)
                if self.has_memory:
                    self._state = self.module.forward_exploration(act).state
        return shares[0] if single else shares

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the columns of its context, in order, if they were columns of a log."""
        return self.encoder.names

    @property
    def tells_probabilities(self) -> bool:
        """Whether the module computes them; otherwise, they are shares of draws."""
        return type(self.module).action_probabilities is not Module.action_probabilities

    def log_prob(self, observations: Any, actions: Any, *, action_mask: Any = None) -> Any:
        """The log-probability (the log-density) of one action per observation, as it explores."""
        rows, single = self._read(observations)
        act = self._input(rows, action_mask, single, None)
        with torch.no_grad():
            found = self.module.action_log_prob(act, numpy.asarray(actions))
            if found is not None and self.has_memory:
                self._state = self.module.forward_exploration(act).state
        if found is None:
            raise RequestError(
                f"{type(self.module).__name__} does not tell the probabilities of its actions.",
                "try: a policy of ppo, a2c or bc",
            )
        return found

    def reset(self) -> None:
        """Start new episodes: clear frames and recurrent state."""
        self._state = self._frames = None

    def fork(self, seed: int = 0) -> Policy:
        """A policy with the same weights, and frames and recurrent state of its own."""
        fork = copy.copy(self)
        fork.reset()
        fork._random = numpy.random.default_rng(seed)
        return fork

    def without_names(self) -> Policy:
        """A policy that takes features alone, and returns the numbers of arms."""
        fork = self.fork()
        fork.encoder = Encoder()
        return fork

    @property
    def has_memory(self) -> bool:
        """Whether actions depend on earlier observations of the episode."""
        return self.module.initial_state(1) is not None

    def _read(self, observation: Any, several: bool | None = None) -> tuple[Any, bool]:
        """A batch, and whether it was made of a single observation.

        Single frames are stacked with those before; the first one fills the whole stack.
        """
        forms: set[Form] = set()
        rows = self._part(self.observation_space, observation, "observation", forms)
        if len(forms) != 1:
            raise RequestError(
                "the parts of the observation disagree on how many there are.",
                "give each part one value, or each a first axis of the same length",
            )
        (form,) = forms
        if several is not None and several != (form == "several"):
            raise RequestError(
                f"there {'is one observation' if several else 'are several observations'}.",
                "try: the field observation for one, observations for several",
            )
        if form == "several":
            return rows, False
        if form == "frame":
            rows = self._frames = _shifted(self._frames, rows, self.frame_stack)
        return tree_map(lambda leaf: leaf[None], rows), True

    def _part(
        self, space: AnySpace, given: Any, path: str, forms: set[Form], action_mask: Any = None
    ) -> Any:
        if isinstance(space, spaces.Dict):
            if not isinstance(given, Mapping) or set(given) != set(space.spaces):
                keys = ", ".join(space.spaces)
                raise RequestError(f"{path} must be a mapping with the keys {keys}.")
            masks = {"arms": given.get(ACTION_MASK)}
            return {
                key: self._part(part, given[key], f"{path}[{key!r}]", forms, masks.get(key))
                for key, part in space.spaces.items()
            }
        if isinstance(space, spaces.Tuple):
            if not isinstance(given, tuple | list) or len(given) != len(space.spaces):
                raise RequestError(f"{path} must be a tuple of {len(space.spaces)} parts.")
            return tuple(
                self._part(part, one, f"{path}[{index}]", forms)
                for index, (part, one) in enumerate(zip(space.spaces, given, strict=True))
            )
        if self.features and len(space.shape or ()) == 1:
            given = self._encoded(given, space, path)
        rows = _as_array(given, space, path)
        if rows.dtype.kind == "f" and not numpy.isfinite(of_present_arms(rows, action_mask)).all():
            # Argmax of NaN still returns an action.
            raise RequestError(
                f"{path} holds a number that is not finite.", "give what the policy was trained on"
            )
        forms.add(self._form(rows.shape, space.shape or (), path))
        return rows

    def _encoded(self, given: Any, space: AnySpace, path: str) -> Any:
        """The features of a mapping, of several, or of a table by name; others are in order."""
        if isinstance(given, list) and given and all(isinstance(row, Mapping) for row in given):
            self._refuse_columns(given, path)
            given = {name: [row[name] for row in given] for name in self.features}
        elif not isinstance(given, Mapping) and not hasattr(given, "columns"):
            return given
        else:
            self._refuse_columns([given], path)
        columns, shapes = {}, set()
        for feature in self.encoder.features:
            values = numpy.asarray(given[feature.name], object if feature.is_category else None)
            shapes.add(values.shape)
            if feature.is_category:
                columns[feature.name] = texts_of(values.reshape(-1).tolist())
            else:
                if values.dtype == object:
                    values = numpy.array([numpy.nan if v is None else v for v in values.flat])
                named = f"{path}[{feature.name!r}]"
                columns[feature.name] = _as_array(values.reshape(-1), space, named)
        if len(shapes) > 1 or len(shape := shapes.pop()) > 1:
            raise RequestError(
                f"{path} has features of different lengths.",
                "give each one value, or each a list of the same length",
            )
        before = len(self.unseen)
        matrix = self.encoder.matrix(columns, self.unseen)
        if not before and self.unseen:
            _LOG.warning("rlplug: %s", said_of(self.unseen))
        missing = numpy.argwhere(numpy.isnan(matrix))
        if missing.size:
            raise RequestError(
                f"{path}[{self.encoder.column_of(int(missing[0, 1]))!r}] is missing.",
                "give a value, or train with --set data.missing=zero or mean",
            )
        return matrix if shape else matrix[0]

    def _refuse_columns(self, rows: Sequence[Any], path: str) -> None:
        """Refuse rows with other columns than those of the policy."""
        for row in rows:
            names = list(row.columns if hasattr(row, "columns") else row)
            if set(names) == set(self.features):
                continue
            missing = [name for name in self.features if name not in names]
            others = [name for name in names if name not in self.features]
            said = f"has no {missing[0]!r}" if missing else f"has {others[0]!r}, which is none"
            raise RequestError(
                f"{path} {said} of the features that the policy learned from.",
                f"features: {', '.join(self.features)}",
            )

    def _form(self, shape: tuple[int, ...], wanted: tuple[int, ...], path: str) -> Form:
        if shape == wanted:
            return "one"
        if shape[1:] == wanted and len(shape) == len(wanted) + 1:
            return "several"
        if self.frame_stack > 1 and shape == wanted[1:]:
            return "frame"
        if self.encoder.categories:
            raise RequestError(
                f"{path} has shape {shape}, expected features by name.",
                f"features: {', '.join(self.features)}",
            )
        several = ", ".join(["n", *map(str, wanted)])
        frame = f", or one frame of shape {wanted[1:]}" if self.frame_stack > 1 else ""
        raise RequestError(
            f"{path} has shape {shape}, expected {wanted}, or ({several}) for n of them{frame}."
        )

    def _input(self, rows: Any, action_mask: Any, single: bool, episode_start: Any) -> ActInput:
        return ActInput(
            rows if self.normalization is None else self.normalization.observations(rows),
            action_mask=_mask(self.action_space, rows, action_mask, single),
            state=self._state_of(len(first_leaf(rows)), episode_start),
            timestep=self.step,
            steps=self.run_steps,
            random=self._random,
        )

    def _state_of(self, n: int, episode_start: Any) -> Any:
        initial = self.module.initial_state(n)
        if initial is None:
            return None
        if self._state is None:
            self._rows = n
            return initial
        if self._rows != n:
            raise RequestError(
                f"the policy remembers {self._rows} episodes, and got {n} observations.",
                "call policy.reset() before other episodes begin",
            )
        if episode_start is None:
            return self._state
        starts = numpy.zeros(n, dtype=bool) | numpy.asarray(episode_start, dtype=bool)
        return _with_initial_rows(self._state, initial, starts) if starts.any() else self._state


def _shares(drawn: list[Any], n: int, space: spaces.Discrete) -> Any:
    """How often each action was chosen, (n, actions)."""
    shares = numpy.zeros((n, int(space.n)))
    for actions in drawn:
        chosen = numpy.asarray(to_arrays(actions)).reshape(-1) - int(space.start)
        shares[numpy.arange(n), chosen] += 1 / len(drawn)
    return shares


def _with_initial_rows(state: Mapping[str, Any], initial: Any, rows: Any) -> dict[str, Any]:
    """A copy of the recurrent state in which these rows are reset."""
    copy: dict[str, Any] = {}
    for name, part in state.items():
        if isinstance(part, torch.Tensor):
            index = torch.as_tensor(rows)
            copy[name] = part.clone()
            copy[name][index] = torch.as_tensor(initial[name], device=part.device)[index]
        else:
            copy[name] = numpy.array(part)
            copy[name][rows] = to_arrays(initial[name])[rows]
    return copy


def _mask(space: AnySpace, rows: Any, given: Any, single: bool) -> Any:
    """The mask of several observations: the one given, or else that in the observations."""
    mask = rows.get(ACTION_MASK) if isinstance(rows, dict) else None
    if given is not None:
        width, n = mask_width(space), len(first_leaf(rows))
        if width is None:
            raise RequestError(
                "this policy cannot use an action mask: its actions are numbers within bounds.",
                "leave it out",
            )
        mask = _as_array(given, spaces.MultiBinary(width), "the action mask")
        mask = (mask[None] if single else mask).astype(bool)
        if mask.shape != (n, width):
            wanted = (width,) if single else (n, width)
            raise RequestError(
                f"the action mask has shape {numpy.shape(given)}, expected {wanted}.",
                "give True for each action that may be chosen",
            )
    if mask is not None and first_fully_masked(mask) is not None:
        raise RequestError(
            "the action mask forbids every action.", "allow at least one for each observation"
        )
    return mask


def _as_array(given: Any, space: AnySpace, path: str) -> Any:
    try:
        rows = numpy.asarray(given)
        if rows.dtype.kind in "US":
            raise ValueError("it holds text")
        wanted = rows.astype(space.dtype, copy=False)
        # As integers and bytes, 0.5 or 300 would silently become other observations.
        exact = wanted.dtype.kind == "f" or bool((wanted == rows).all())
        if isinstance(space, spaces.MultiBinary):
            exact = bool(((rows == 0) | (rows == 1)).all())
    except (TypeError, ValueError, OverflowError) as error:
        raise RequestError(f"{path} cannot be read as {space.dtype}: {error}.") from error
    if not exact:
        raise RequestError(f"{path} must be {space.dtype}, got {rows.dtype} that does not fit.")
    return wanted


def _shifted(frames: Any, newest: Any, size: int) -> Any:
    """The stack with the newest frame at the end; a first frame fills all of it."""
    if frames is None:
        return tree_map(lambda part: numpy.stack([part] * size), newest)
    return tree_map(lambda part, stack: numpy.concatenate([stack[1:], part[None]]), newest, frames)
