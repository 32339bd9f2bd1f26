"""The rows that arms are scored with and learned by: disjoint, joint and hybrid models.

Fixed arms are the same in every context; featured arms come with features of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import attrs
import numpy
from gymnasium import Space, spaces

from rlplug.errors import RunFailedError, UnsupportedSpaceError
from rlplug.spaces import number_of_arms
from rlplug_linucb.config import LinearOptions
from rlplug_linucb.ridge import Estimates, Floats, Ridge

__all__ = ["MODELS", "Disjoint", "Hybrid", "Joint", "Layout", "Model", "Seen", "layout_of"]

Rows: TypeAlias = tuple[Any, Any, Any]
"""The group of each row, its features x (n, d) and its targets r (n, t)."""


class Seen(NamedTuple):
    """The parts of n observations."""

    context: Any
    """(n, d); ones (n, 1) where neither contexts nor arms have features; else None."""
    arms: Any = None
    """(n, arms, f), or None."""
    mask: Any = None
    """(n, arms), true where an arm may be chosen, or None."""

    def part(self, rows: slice) -> Seen:
        """Some of the rows."""
        context, arms = (None if column is None else column[rows] for column in self[:2])
        return Seen(context, arms)


@attrs.frozen(kw_only=True)
class Layout:
    """Number of arms, and number of features of contexts and arms."""

    num_arms: int
    context_dim: int = 0
    """0 without a context."""
    arm_dim: int = 0
    """0 for fixed arms, which have no features."""
    arm_names: tuple[str, ...] = ()
    """The name of each arm, by which rewards can be credited; empty: they have numbers only."""

    def index_of(self, arm: int | str) -> int:
        """The index of an arm, given by its name or by the index itself."""
        names: Any = self.arm_names if isinstance(arm, str) else range(self.num_arms)
        if arm not in names:
            known = ", ".join(self.arm_names) or f"0 to {self.num_arms - 1}"
            raise RunFailedError(f"rlplug-linucb: there is no arm {arm!r}.", f"try: {known}")
        return int(names.index(arm))

    def parts(self, observations: Any, mask: Any) -> tuple[Any, Any, Any]:
        """Context, arms and mask; the one that is given takes precedence."""
        if isinstance(observations, Mapping):
            mask = observations.get("action_mask") if mask is None else mask
            return observations.get("context"), observations.get("arms"), mask
        if self.arm_dim and not self.context_dim:
            return None, observations, mask
        return observations, None, mask


class Disjoint(Ridge):
    """A regression per arm on the context (Li et al. 2010, algorithm 1), or on the number 1."""

    def __init__(self, layout: Layout, options: LinearOptions) -> None:
        super().__init__(layout.num_arms, layout.context_dim or 1, options)

    def predict(self, seen: Seen) -> tuple[Floats, Floats]:
        """Mean and variance of every arm, both (n, arms)."""
        mean, variance = self.predict_all(seen.context.astype(float, copy=False))
        return mean[..., 0], variance

    def draw(self, seen: Seen, random: Any, times: int) -> Floats:
        """Deviations from the mean (n, arms, times), drawn for each arm by itself."""
        return _draw_each(self.predict(seen)[1], random, times)

    def rows(self, seen: Seen, arms: Any, rewards: Any) -> Rows:
        """The rows of the chosen arms."""
        return arms, seen.context, rewards[:, None]

    def mean(self, context: Any, arms: Any, xp: Any) -> Any:
        """The mean of every arm, (n, arms), in torch alone."""
        return context @ self.coefficients()[:, 0].T


class Joint(Ridge):
    """One regression for all arms, on their own features or on their one-hot index."""

    def __init__(self, layout: Layout, options: LinearOptions) -> None:
        context, arm = layout.context_dim, layout.arm_dim or layout.num_arms
        interact = options.use_interaction_features
        width = context * arm + layout.arm_dim if context and interact else context + arm
        super().__init__(1, width, options)
        self.layout, self.interactions = layout, interact

    def predict(self, seen: Seen) -> tuple[Floats, Floats]:
        """Mean and variance of every arm, both (n, arms)."""
        return self.predict_rows(self.design(*_doubles(seen)))

    def draw(self, seen: Seen, random: Any, times: int) -> Floats:
        """Deviations from the mean (n, arms, times) by draws of the coefficients."""
        return _draw_shared(self, self.design(*_doubles(seen)), random, times)

    def design(self, context: Any, arms: Any, xp: Any = numpy) -> Any:
        """The row of every arm, (n, arms, d)."""
        if arms is None:
            one_hot = xp.eye(self.layout.num_arms, dtype=xp.float64)
            arms = xp.broadcast_to(one_hot, (context.shape[0], *one_hot.shape))
        return arm_features(self.layout, self.interactions, context, arms, xp)

    def rows(self, seen: Seen, arms: Any, rewards: Any) -> Rows:
        """The rows of the chosen arms."""
        one_hot = numpy.eye(self.layout.num_arms)
        chosen = one_hot[arms] if seen.arms is None else _chosen(seen, arms)
        x = arm_features(self.layout, self.interactions, seen.context, chosen)
        return numpy.zeros_like(arms), x, rewards[:, None]

    def estimates(self) -> Estimates:
        """A, b, A⁻¹ and theta of the only regression."""
        return Estimates(*(array[0] for array in super().estimates()))

    def rearrange(self, kept: Sequence[int], added: int) -> None:
        """Featured arms have nothing of their own; fixed arms are refused."""
        if not self.layout.arm_dim:
            raise RunFailedError(
                "rlplug-linucb: a joint model has one regression for all fixed arms.",
                "try: model = 'disjoint' or 'hybrid'",
            )

    def mean(self, context: Any, arms: Any, xp: Any) -> Any:
        """The mean of every arm, (n, arms), in torch alone."""
        return self.design(context, arms, xp) @ self.coefficients()[0, 0]


class Hybrid(Ridge):
    """A regression per arm on the context, and one that arms share (Li et al. 2010, algorithm 2).

    The shared one is on features z: the context for fixed arms; the arms' features, and their
    products with the context, for featured ones. Each arm regresses the reward and z on the
    context x; the shared regression is on what that leaves of z.
    """

    def __init__(self, layout: Layout, options: LinearOptions) -> None:
        x, arm = layout.context_dim or 1, layout.arm_dim
        z = arm + (layout.context_dim * arm if options.use_interaction_features else 0) or x
        super().__init__(layout.num_arms, x, options, targets=1 + z)
        self.layout, self.shared = layout, Ridge(1, z, options)

    def predict(self, seen: Seen) -> tuple[Floats, Floats]:
        """Mean and variance of every arm, both (n, arms)."""
        mean, variance, z = self.predict_arms(seen)
        shared_mean, shared_variance = self.shared.predict_rows(z)
        return mean + shared_mean, variance + shared_variance

    def draw(self, seen: Seen, random: Any, times: int) -> Floats:
        """Deviations (n, arms, times): given the shared coefficients, arms are independent."""
        _, variance, z = self.predict_arms(seen)
        deviations = _draw_shared(self.shared, z, random, times)
        return deviations + _draw_each(variance, random, times)

    def predict_arms(self, seen: Seen) -> tuple[Floats, Floats, Floats]:
        """Means and variances (n, arms) of the arms' own regressions, and what they leave of z."""
        if self.is_stale or self.shared.is_stale:
            self.refresh()
        x, z = self.design(*_doubles(seen))
        means, variance = self.predict_all(x)
        return means[..., 0], variance, (z[:, None] if z.ndim == 2 else z) - means[..., 1:]

    def design(self, context: Any, arms: Any, xp: Any = numpy) -> tuple[Any, Any]:
        """The context x, and the features z that all arms share: of arms (n, k, f) or (n, f)."""
        if arms is None:
            return context, context
        x = xp.ones((len(arms), 1), dtype=xp.float64) if context is None else context
        if not self.options.use_interaction_features:
            return x, arms
        return x, arm_features(self.layout, True, context, arms, xp)

    def rows(self, seen: Seen, arms: Any, rewards: Any) -> Rows:
        """The rows of the chosen arms; the reward is followed by z."""
        chosen = None if seen.arms is None else _chosen(seen, arms)
        x, z = self.design(seen.context, chosen)
        return arms, x, numpy.concatenate([rewards[:, None], z], 1)

    def mean(self, context: Any, arms: Any, xp: Any) -> Any:
        """The mean of every arm, (n, arms), in torch alone."""
        x, z = self.design(context, arms, xp)
        theta, beta = self.coefficients(), self.shared.coefficients()[0, 0]
        shared, own = z @ beta, x @ (theta[:, 0] - beta @ theta[:, 1:]).T
        return own + (shared[:, None] if arms is None else shared)

    def learn(self, group: int, x: Floats, r: Floats, w: float = 1.0) -> None:
        """Learn one row x (d,) of an arm; r is the reward, followed by z."""
        self.add(group, x, r, w)
        self.shared.add(0, r[1:], r[:1], w)
        if not self.is_stale:
            left = self.sherman_morrison(group, x, r, w)
            if left is not None:
                error, variance = left
                self.shared.sherman_morrison(0, error[1:], error[:1], w / (1.0 + w * variance))
        if self.is_stale or self.shared.is_stale:
            # The shared block is solved from all arms' blocks, which must then be exact.
            self.invalidate()

    def refresh(self) -> None:
        """Solve what is due."""
        if self.is_stale or self.shared.is_stale:
            super().refresh()
            self.shared.solve([0], *self._explained(slice(None)))
            self.solutions[:] += self.shared.solutions
            self.shared.solutions[:] = 0

    def _explained(self, arms: Any) -> tuple[Floats, Floats]:
        """What these arms' regressions explain of the shared A and b: Bᵀ A⁻¹ B and Bᵀ A⁻¹ b."""
        explained = numpy.tensordot(self.theta[arms], self.b[arms, 1:], ([0, 2], [0, 2]))
        return (explained[1:] + explained[1:].T) / 2, explained[:1]

    def sums(self) -> list[Floats]:
        """A and b of the arms, then of the shared regression."""
        return [*super().sums(), *self.shared.sums()]

    def add_rows(self, sums: Sequence[Floats], groups: Any, x: Any, r: Any, w: Any) -> None:
        """Add rows to such sums."""
        super().add_rows(sums[:2], groups, x, r, w)
        self.shared.add_rows(sums[2:], None, r[:, 1:], r[:, :1], w)

    def absorb(self, sums: Sequence[Floats], rows: int) -> None:
        """Add the sums of so many rows."""
        super().absorb(sums[:2], rows)
        self.shared.absorb(sums[2:], rows)

    def discount_(self, gamma: float) -> None:
        """Multiply the sums by `gamma`; the penalty stays."""
        super().discount_(gamma)
        self.shared.discount_(gamma)

    def rearrange(self, kept: Sequence[int], added: int) -> None:
        """Keep some of the arms, and add others without data.

        What the coefficients of those that leave explain leaves the shared sums.
        """
        self.refresh()
        gone = sorted(set(range(len(self.A))) - set(kept))
        for total, explained in zip(self.shared.sums(), self._explained(gone), strict=True):
            total -= explained
        super().rearrange(kept, added)
        self.invalidate()

    def estimates(self) -> Estimates:
        """A, b, A⁻¹ and theta of every arm, given the shared coefficients."""
        estimates, beta = super().estimates(), self.shared.theta[0, 0]
        return estimates._replace(theta=self.theta[:, 0] - beta @ self.theta[:, 1:])


Model: TypeAlias = Disjoint | Joint | Hybrid


MODELS: dict[str, type[Model]] = {"disjoint": Disjoint, "joint": Joint, "hybrid": Hybrid}


def model_name(layout: Layout, options: LinearOptions) -> str:
    """Which model the options mean; a combination that makes no sense is refused."""
    featured, name = layout.arm_dim > 0, options.model
    if name == "auto":
        name = "joint" if featured else "disjoint"
    if name == "disjoint" and featured:
        raise UnsupportedSpaceError(
            "model = 'disjoint' learns each arm apart, but featured arms are others in every "
            "context; try model = 'joint'."
        )
    if name != "joint" and not options.use_interaction_features and not featured:
        raise UnsupportedSpaceError(
            f"model = {name!r} weighs the context anew for each fixed arm, which is what "
            "interaction features are; try model = 'joint' with use_interaction_features = false."
        )
    return name


def layout_of(observation_space: Space[Any], action_space: Space[Any]) -> Layout:
    """The layout of an environment; raises UnsupportedSpaceError for spaces not of a bandit."""
    num_arms = number_of_arms(action_space)
    parts: Mapping[str, Space[Any]] = {"context": observation_space}
    if isinstance(observation_space, spaces.Dict):
        parts = observation_space.spaces
    elif observation_space.shape == (0,) or observation_space == spaces.Discrete(1):
        return Layout(num_arms=num_arms)
    if unknown := ", ".join(sorted(set(parts) - {"context", "arms", "action_mask"})):
        raise UnsupportedSpaceError(
            "a linear bandit reads the observation keys context, arms and action_mask; "
            f"found {unknown}."
        )
    return Layout(
        num_arms=num_arms,
        context_dim=_length(parts.get("context"), "context"),
        arm_dim=_length(parts.get("arms"), "arms", num_arms),
    )


def _length(space: Space[Any] | None, name: str, *before: int) -> int:
    if space is None:
        return 0
    shape = space.shape or ()
    if isinstance(space, spaces.Box) and shape[:-1] == before and shape and shape[-1]:
        return shape[-1]
    wanted = ", ".join([*map(str, before), "features"])
    raise UnsupportedSpaceError(
        f"a linear bandit needs {name} as a Box of shape ({wanted}), found {space}."
    )


def arm_features(
    layout: Layout, interactions: bool, context: Any, arms: Any, xp: Any = numpy
) -> Any:
    """Of arms (n, k, f) or (n, f): their features and products with the context, side by side.

    Without interactions, the context and their features; one-hot arms have products alone. `xp`
    is numpy or, for programs, torch.
    """
    if not layout.context_dim:
        return arms
    context = context[:, None] if arms.ndim == 3 else context
    lead, width = arms.shape[:-1], context.shape[-1]
    if not interactions:
        return xp.concatenate([xp.broadcast_to(context, (*lead, width)), arms], -1)
    products = context[..., :, None] * arms[..., None, :]
    products = products.reshape(*lead, width * arms.shape[-1])
    return xp.concatenate([arms, products], -1) if layout.arm_dim else products


def _doubles(seen: Seen) -> Sequence[Any]:
    """Context and arms in double precision."""
    return [None if part is None else part.astype(float, copy=False) for part in seen[:2]]


def _chosen(seen: Seen, arms: Any) -> Any:
    """The features (n, f) of the chosen arms."""
    return seen.arms[numpy.arange(len(arms)), arms].astype(float, copy=False)


def _draw_each(variance: Floats, random: Any, times: int) -> Floats:
    """Deviations of predictions (n, arms) by separate regressions: independent normal draws."""
    noise: Floats = random.standard_normal((*variance.shape, times))
    return numpy.sqrt(variance)[..., None] * noise


def _draw_shared(ridge: Ridge, rows: Floats, random: Any, times: int) -> Floats:
    """Deviations of predictions of rows (n, arms, d) by draws of coefficients for each n."""
    noise: Floats = random.standard_normal((len(rows), times, ridge.dim))
    return rows @ (noise @ ridge.root().T).swapaxes(1, 2)
