"""Joint, disjoint and hybrid models: the rows that arms are scored with and learned by."""

from __future__ import annotations

import math
import sys
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy
import torch
from gymnasium import Space
from torch import Tensor

from rlplug.errors import UnsupportedSpaceError
from rlplug_linucb.arrays import Array, BufferViews, Estimates, namespace
from rlplug_linucb.config import LinearOptions
from rlplug_linucb.hybrid import HybridRegressions
from rlplug_linucb.layout import Layout, ParsedObservations, layout_of
from rlplug_linucb.linucb import RidgeRegressions

__all__ = [
    "DisjointModel",
    "HybridModel",
    "JointModel",
    "Model",
    "Rows",
    "make_model",
    "model_name",
    "unsupported_reason",
]


_FREE = -1
"""Where a regression belongs to no arm."""


class Rows(NamedTuple):
    """Rows of regressions: features, the arm of each row, and features with shared coefficients."""

    x: Array
    arms: Array | None = None
    z: Array | None = None


class DisjointModel:
    """A regression per arm on the context (Li et al. 2010, algorithm 1), or on the number 1."""

    def __init__(self, layout: Layout, config: LinearOptions) -> None:
        self.arm_ids = _arm_ids(layout)
        self.regressions = RidgeRegressions(
            _groups(layout),
            layout.context_dim or 1,
            squared_discount=config.squared_discount,
            **_options(config),
        )
        self.fit(layout)

    def fit(self, layout: Layout) -> None:
        """Expect rows of this layout."""
        self.widths = Rows(self.regressions.dim, _bound_of_arms(layout))
        self.max_rank_one = _max_rank_one(self.regressions, layout)

    def predict(self, parsed: ParsedObservations) -> tuple[Array, Array]:
        """Mean and variance of every arm, both (n, arms)."""
        regressions = self.regressions
        context = regressions.to_array(parsed.context)
        if self.arm_ids is None:
            mean, variance = regressions.predict(context)
        else:
            mean, variance = regressions.predict_by(self.arm_ids.groups(parsed.ids), context)
        return mean[..., 0], variance

    def mean(self, context: Tensor, arms: Tensor | None) -> Tensor:
        """The mean of every arm, (n, arms), in torch alone."""
        return context @ self.regressions.coefficients()[:, 0].T

    def rows(self, parsed: ParsedObservations, actions: Array) -> Rows:
        """The rows of the chosen arms."""
        return Rows(self.regressions.to_array(parsed.context, None), actions)

    def estimates(self) -> Estimates:
        """The estimates of every arm."""
        return self.regressions.estimates()


class JointModel:
    """One regression for all arms, on their own features or on their one-hot index."""

    def __init__(self, layout: Layout, config: LinearOptions) -> None:
        self.arm_ids = None
        self.interactions = config.use_interaction_features and layout.context_dim > 0
        context, arm = layout.context_dim, layout.arm_dim or layout.num_arms
        width = context + arm if not self.interactions else context * arm + layout.arm_dim
        self.widths = Rows(width)
        self.regressions = RidgeRegressions(
            1, width, squared_discount=config.squared_discount, **_options(config)
        )
        self.max_rank_one = _max_rank_one(self.regressions, layout)
        self.fit(layout)

    def fit(self, layout: Layout) -> None:
        """Expect rows of this layout."""
        self.layout = layout

    def predict(self, parsed: ParsedObservations) -> tuple[Array, Array]:
        """Mean and variance of every arm, both (n, arms)."""
        mean, variance = self.regressions.predict(self.design(parsed))
        return mean[..., 0], variance

    def design(self, parsed: ParsedObservations) -> Array:
        """The row of every arm, (n, arms, d)."""
        if parsed.arms is None:
            one_hot = self._one_hot()
            rows = (parsed.rows, *one_hot.shape)
            return self._with_context(parsed, namespace(one_hot).broadcast_to(one_hot, rows))
        return self._with_context(parsed, self.regressions.to_array(parsed.arms))

    def mean(self, context: Tensor, arms: Tensor | None) -> Tensor:
        """The mean of every arm, (n, arms), in torch alone."""
        if arms is None:
            one_hot = torch.eye(self.layout.num_arms, dtype=context.dtype)
            arms = one_hot.expand(context.shape[0], -1, -1)
        mean: Tensor = self._joined(context, arms) @ self.regressions.coefficients()[0, 0]
        return mean

    def rows(self, parsed: ParsedObservations, actions: Array) -> Rows:
        """The rows of the chosen arms."""
        if self.layout.featured:
            arms = _chosen(self, parsed.arms, actions)
        else:
            arms = self._one_hot()[actions]
        return Rows(self._with_context(parsed, arms))

    def _with_context(self, parsed: ParsedObservations, arms: Array) -> Array:
        if not self.layout.context_dim:
            return arms
        return self._joined(self.regressions.to_array(parsed.context), arms)

    def _joined(self, context: Array, arms: Array) -> Array:
        if not self.layout.context_dim:
            return arms
        if not self.interactions:
            return _concatenate(context, arms)
        products = _products(context, arms)
        return _concatenate(arms, products) if self.layout.featured else products

    def _one_hot(self) -> Array:
        return self.regressions.to_array(numpy.eye(self.layout.num_arms))

    def estimates(self) -> Estimates:
        """The estimates of the only regression."""
        return Estimates(*(one[0] for one in self.regressions.estimates()))


class HybridModel:
    """A regression per arm on the context, and one that arms share (Li et al. 2010, algorithm 2).

    The shared one is on the context for fixed arms, on the arms' features (and their products with
    the context) for featured ones.
    """

    def __init__(self, layout: Layout, config: LinearOptions) -> None:
        self.arm_ids = _arm_ids(layout)
        self.interactions = config.use_interaction_features and layout.context_dim > 0
        context, arm = layout.context_dim or 1, layout.arm_dim
        shared = context if not arm else arm + (context * arm if self.interactions else 0)
        self.regressions = HybridRegressions(_groups(layout), context, shared, **_options(config))
        self.fit(layout)

    def fit(self, layout: Layout) -> None:
        """Expect rows of this layout."""
        self.layout = layout
        dims = self.regressions.arms.dim, self.regressions.shared.dim
        self.widths = Rows(dims[0], _bound_of_arms(layout), dims[1])
        self.max_rank_one = _max_rank_one(self.regressions.arms, layout)

    def predict(self, parsed: ParsedObservations) -> tuple[Array, Array]:
        """Mean and variance of every arm, both (n, arms)."""
        return self.regressions.predict(*self.design(parsed))

    def design(self, parsed: ParsedObservations) -> tuple[Array, Array, Array | None]:
        """The context x (n, d); for every arm the features z (n, arms, k) it shares; its group."""
        context = self._context(parsed)
        groups = None if self.arm_ids is None else self.arm_ids.groups(parsed.ids)
        if not self.layout.featured:
            return context, context[:, None], groups
        return context, self._shared(context, self.regressions.to_array(parsed.arms)), groups

    def mean(self, context: Tensor, arms: Tensor | None) -> Tensor:
        """The mean of every arm, (n, arms), in torch alone."""
        own, shared = self.regressions.coefficients()
        z = context[:, None] if arms is None else self._shared(context, arms)
        return context @ own.T + z @ shared

    def rows(self, parsed: ParsedObservations, actions: Array) -> Rows:
        """The rows of the chosen arms."""
        context = self._context(parsed)
        if not self.layout.featured:
            return Rows(context, actions, context)
        return Rows(context, actions, self._shared(context, _chosen(self, parsed.arms, actions)))

    def _context(self, parsed: ParsedObservations) -> Array:
        context = parsed.context
        return self.regressions.to_array(
            numpy.ones((parsed.rows, 1)) if context is None else context
        )

    def _shared(self, context: Array, arms: Array) -> Array:
        return _concatenate(arms, _products(context, arms)) if self.interactions else arms

    def estimates(self) -> Estimates:
        """The estimates of every arm's own regression."""
        return self.regressions.estimates()


Model: TypeAlias = DisjointModel | JointModel | HybridModel


def make_model(layout: Layout, config: LinearOptions) -> Model:
    """The model that the options ask for."""
    name = model_name(layout, config)
    if name == "joint":
        return JointModel(layout, config)
    return DisjointModel(layout, config) if name == "disjoint" else HybridModel(layout, config)


def model_name(layout: Layout, config: LinearOptions) -> Literal["joint", "disjoint", "hybrid"]:
    """Which model the options mean; a combination that makes no sense is refused."""
    name = config.model
    if name == "auto":
        name = "joint" if layout.featured else "disjoint"
    if name == "joint":
        if layout.max_arms and not layout.featured:
            raise UnsupportedSpaceError(
                "model = 'joint' knows fixed arms by their index, and the observations have "
                "arm_ids; try model = 'disjoint'."
            )
        return name
    if name == "disjoint" and layout.featured:
        raise UnsupportedSpaceError(
            "model = 'disjoint' learns each arm apart, but featured arms are others in every "
            "context; try model = 'joint'."
        )
    if not config.use_interaction_features and not layout.featured:
        raise UnsupportedSpaceError(
            f"model = {name!r} weighs the context anew for each fixed arm, which is what "
            "interaction features are; try model = 'joint' with use_interaction_features = false."
        )
    return name


def unsupported_reason(
    observation_space: Space[Any], action_space: Space[Any], config: LinearOptions
) -> str | None:
    """Why these spaces are not supported with these options; None if they are."""
    try:
        model_name(layout_of(observation_space, action_space, config.arms, config.max_arms), config)
    except UnsupportedSpaceError as error:
        return error.message
    return None


def _options(config: LinearOptions) -> dict[str, Any]:
    return {
        "l2_lambda": config.l2_lambda,
        "discount": config.discount,
        "refresh_every": config.refresh_every,
    }


def _arm_ids(layout: Layout) -> ArmIds | None:
    return ArmIds(layout.max_arms) if layout.max_arms else None


def _groups(layout: Layout) -> int:
    """The number of regressions: with ids, the last is for arms that were never learned."""
    return layout.max_arms + 1 if layout.max_arms else layout.num_arms


def _bound_of_arms(layout: Layout) -> int:
    """What the arms of rows are below: any id may come where arms have ids."""
    return sys.maxsize if layout.max_arms else layout.num_arms


def _max_rank_one(regressions: RidgeRegressions, layout: Layout) -> float:
    """Up to how many rows rank-one updates cost less than solving for the groups of the rows."""
    if layout.max_arms:
        # An arm that is learned may take the regression of another: rows have their order.
        return math.inf
    return regressions.groups * max(1, regressions.dim // 16) if regressions.discount == 1.0 else 1


def _chosen(model: JointModel | HybridModel, arms: Any, actions: Array) -> Array:
    """The features (n, f) of the chosen arms, of (n, arms, f)."""
    to_array = model.regressions.to_array
    if len(arms) == 1:
        return to_array(arms[:, int(actions[0])])
    arms = to_array(arms, None)
    return to_array(arms[namespace(arms).arange(len(arms)), actions])


def _products(context: Array, arms: Array) -> Array:
    """Every context feature times every arm feature, for arms (n, f) or (n, k, f)."""
    context = context[:, None] if arms.ndim == 3 else context
    products = context[..., :, None] * arms[..., None, :]
    width = context.shape[-1] * arms.shape[-1]
    return products.reshape(*products.shape[:-2], width)


def _concatenate(left: Array, right: Array) -> Array:
    """Features side by side; a context (n, d) is repeated for each arm of (n, k, f)."""
    xp = namespace(left)
    if left.ndim < right.ndim:
        left = left[:, None]
    shape = xp.broadcast_shapes(left.shape[:-1], right.shape[:-1])
    both = [xp.broadcast_to(part, (*shape, part.shape[-1])) for part in (left, right)]
    return xp.concatenate(both, -1)


class ArmIds(BufferViews):
    """Regressions of the arms learned most recently, `size` of them, and one more without data.

    An arm gets a regression when it is first learned. If none is free, it takes that of the arm
    learned least recently. The tensors keep their shapes: the state can be saved and loaded.
    """

    ids: Tensor
    """The id of the arm that has each regression; -1 where none has it."""
    learned: Tensor
    """The row, counted from 1, that each regression learned last; 0 for a free one."""
    _groups: dict[int, int]
    rows: Tensor
    """Number of rows learned."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("ids", torch.full((size,), _FREE, dtype=torch.int64))
        self.register_buffer("learned", torch.zeros(size, dtype=torch.int64))
        self.register_buffer("rows", torch.zeros((), dtype=torch.int64))
        self.renew_views()

    def make_views(self) -> dict[str, Any]:
        """The regression of each id."""
        places = enumerate(self.ids.tolist())
        return {"_groups": {arm: group for group, arm in places if arm != _FREE}}

    def groups(self, ids: Any) -> Any:
        """The regression of each arm; for those never learned, the one without data."""
        known, size = self._groups, self.size
        found = [known.get(arm, size) for arm in ids.ravel().tolist()]
        return numpy.array(found, numpy.int64).reshape(ids.shape)

    def learn(self, arm: int) -> tuple[int, bool]:
        """The regression that learns a row of this arm, and whether another arm had it before."""
        group = self._groups.get(arm)
        taken = False
        if group is None:
            group = int(self.learned.argmin())
            taken = self.forget(int(self.ids[group])) is not None
            self.ids[group] = arm
            self._groups[arm] = group
        self.rows += 1
        self.learned[group] = self.rows
        return group, taken

    def forget(self, arm: int) -> int | None:
        """Free the regression of an arm; returns it, or None if the arm has none."""
        group = self._groups.pop(arm, None)
        if group is not None:
            self.ids[group], self.learned[group] = _FREE, 0
        return group
