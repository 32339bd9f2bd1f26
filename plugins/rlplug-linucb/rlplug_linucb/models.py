"""Which rows a decision is scored with, and which row is learned: joint, disjoint and hybrid."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

from gymnasium import Space

from rlplug.errors import UnsupportedSpaceError
from rlplug_linucb.backend import Array, Backend
from rlplug_linucb.config import LinearOptions
from rlplug_linucb.hybrid import HybridRidges
from rlplug_linucb.layout import Layout, Seen, layout_of
from rlplug_linucb.ridge import Ridges

__all__ = [
    "DisjointModel",
    "HybridModel",
    "JointModel",
    "Model",
    "Rows",
    "make_model",
    "model_name",
    "why_not",
]


class Rows(NamedTuple):
    """Rows of regressions: features, the arm of each row, and the features that arms share."""

    x: Array
    arms: Array | None = None
    z: Array | None = None

    def part(self, rows: slice) -> Rows:
        """Some of the rows."""
        return Rows(*(None if one is None else one[rows] for one in self))


class DisjointModel:
    """A regression per arm on the context (Li et al. 2010, algorithm 1)."""

    def __init__(self, layout: Layout, config: LinearOptions) -> None:
        self.widths = Rows(layout.context_dim, layout.num_arms)
        self.regressions = Ridges(
            layout.num_arms,
            layout.context_dim,
            squared_discount=config.squared_discount,
            **_common(config),
        )
        self.few = _few(config, layout.num_arms, layout.context_dim)

    def score(self, seen: Seen) -> tuple[Array, Array]:
        """Mean and variance of every arm, both (n, arms), or (arms,) for one observation."""
        ridges = self.regressions
        mean, spread = ridges.predict(ridges.own.backend.floats(seen.context))
        return mean[..., 0], spread

    def chosen(self, seen: Seen, actions: Array) -> Rows:
        """The rows of the arms that were chosen."""
        return Rows(self.regressions.backend.array(seen.context), actions)

    def row(self, seen: Seen, arm: int) -> tuple[int, Array]:
        """The regression that learns of this arm, and its row, of one observation."""
        return arm, self.regressions.own.backend.floats(seen.context[0])


class JointModel:
    """One regression for all arms, on features that tell them apart: their own, or one-hot."""

    def __init__(self, layout: Layout, config: LinearOptions) -> None:
        self.layout = layout
        self.interactions = config.use_interaction_features and layout.context_dim > 0
        context, arm = layout.context_dim, layout.arm_dim or layout.num_arms
        width = context + arm if not self.interactions else context * arm + layout.arm_dim
        self.widths = Rows(width)
        self.regressions = Ridges(
            1, width, squared_discount=config.squared_discount, **_common(config)
        )
        self.few = _few(config, 1, width)

    def score(self, seen: Seen) -> tuple[Array, Array]:
        """Mean and variance of every arm, both (n, arms), or (arms,) for one observation."""
        mean, spread = self.regressions.predict(self.design(seen))
        return mean[..., 0], spread

    def design(self, seen: Seen) -> Array:
        """A row for every arm, (n, arms, d)."""
        backend = self.regressions.own.backend
        if seen.arms is None:
            arms = backend.eye(self.layout.num_arms)[None]
        else:
            arms = backend.floats(seen.arms)
        return arms if seen.context is None else self._rows(backend, seen, arms)

    def chosen(self, seen: Seen, actions: Array) -> Rows:
        """The rows of the arms that were chosen."""
        backend = self.regressions.backend
        if self.layout.featured:
            arms = _of_chosen(backend, seen.arms, actions)
        else:
            arms = backend.eye(self.layout.num_arms)[actions]
        return Rows(self._rows(backend, seen, arms))

    def row(self, seen: Seen, arm: int) -> tuple[int, Array]:
        """The regression that learns of this arm, and its row, of one observation."""
        backend = self.regressions.own.backend
        if seen.context is None:
            return 0, backend.floats(seen.arms[0, arm])
        return 0, self.chosen(seen, backend.integers([arm])).x[0]

    def _rows(self, backend: Backend, seen: Seen, arms: Array) -> Array:
        if seen.context is None:
            return arms
        context = backend.floats(seen.context)
        if not self.interactions:
            return _beside(backend, context, arms)
        products = _products(context, arms)
        return _beside(backend, arms, products) if self.layout.featured else products


class HybridModel:
    """A regression per arm on the context, and one that arms share (Li et al. 2010, algorithm 2).

    What they share is weighed by the context for fixed arms, by the arms' features (and their
    products with the context) for featured ones.
    """

    def __init__(self, layout: Layout, config: LinearOptions) -> None:
        self.layout = layout
        self.interactions = config.use_interaction_features
        context, arm = layout.context_dim, layout.arm_dim
        shared = context if not arm else arm + (context * arm if self.interactions else 0)
        self.widths = Rows(context, layout.num_arms, shared)
        self.regressions = HybridRidges(layout.num_arms, context, shared, **_common(config))
        self.few = _few(config, layout.num_arms, context)

    def score(self, seen: Seen) -> tuple[Array, Array]:
        """Mean and variance of every arm, both (n, arms), or (arms,) for one observation."""
        return self.regressions.predict(*self.design(seen))

    def design(self, seen: Seen) -> tuple[Array, Array]:
        """The context (n, d) that each arm weighs anew, and what they share, (n, arms, k)."""
        backend = self.regressions.backend
        context = backend.floats(seen.context)
        if not self.layout.featured:
            return context, context[:, None]
        return context, self._shared(backend, context, backend.floats(seen.arms))

    def chosen(self, seen: Seen, actions: Array) -> Rows:
        """The rows of the arms that were chosen."""
        backend = self.regressions.backend
        context = backend.floats(seen.context)
        if not self.layout.featured:
            return Rows(context, actions, context)
        arms = _of_chosen(backend, seen.arms, actions)
        return Rows(context, actions, self._shared(backend, context, arms))

    def _shared(self, backend: Backend, context: Array, arms: Array) -> Array:
        if not self.interactions:
            return arms
        return _beside(backend, arms, _products(context, arms))


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
        return name
    if name == "disjoint" and layout.featured:
        raise UnsupportedSpaceError(
            "model = 'disjoint' learns each arm apart, but featured arms are others in every "
            "context; try model = 'joint'."
        )
    if not layout.context_dim:
        raise UnsupportedSpaceError(
            f"model = {name!r} learns per arm from a context, and the observations have none; "
            "try model = 'joint'."
        )
    if not config.use_interaction_features and not layout.featured:
        raise UnsupportedSpaceError(
            f"model = {name!r} weighs the context anew for each fixed arm, which is what "
            "interaction features are; try model = 'joint' with use_interaction_features = false."
        )
    return name


def why_not(
    observation_space: Space[Any], action_space: Space[Any], config: LinearOptions
) -> str | None:
    """Why these spaces, or these options with them, cannot be handled; None if they can."""
    try:
        model_name(layout_of(observation_space, action_space, config.arms), config)
    except UnsupportedSpaceError as error:
        return error.message
    return None


def _common(config: LinearOptions) -> dict[str, Any]:
    return {
        "l2_lambda": config.l2_lambda,
        "discount": config.discount,
        "refresh_every": config.refresh_every,
    }


def _few(config: LinearOptions, groups: int, dim: int) -> int:
    """Up to how many rows rank-one updates cost less than solving what the rows touched."""
    return groups * max(1, dim // 16) if config.discount == 1.0 else 1


def _of_chosen(backend: Backend, arms: Array, actions: Array) -> Array:
    arms = backend.array(arms)
    if len(arms) == 1:
        arm = int(actions[0])
        return backend.floats(arms[0, arm : arm + 1])
    return backend.floats(arms[backend.xp.arange(len(arms)), actions])


def _products(context: Array, arms: Array) -> Array:
    """Every context feature times every arm feature, for arms (n, f) or (n, k, f)."""
    context = context[:, None] if arms.ndim == 3 else context
    products = context[..., :, None] * arms[..., None, :]
    width = context.shape[-1] * arms.shape[-1]
    return products.reshape(*products.shape[:-2], width)


def _beside(backend: Backend, left: Array, right: Array) -> Array:
    """The features of both side by side; a row that belongs to all arms is repeated for each."""
    xp = backend.xp
    if left.ndim < right.ndim:
        left = left[:, None]
    shape = xp.broadcast_shapes(left.shape[:-1], right.shape[:-1])
    both = [xp.broadcast_to(one, (*shape, one.shape[-1])) for one in (left, right)]
    return xp.concatenate(both, -1)
