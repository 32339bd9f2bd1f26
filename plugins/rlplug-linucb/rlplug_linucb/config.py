"""The options of LinUCB, and those that cannot be had together."""

from __future__ import annotations

from typing import Literal

import attrs

from rlplug.config import above, at_least, at_most, option

__all__ = ["LinUCBConfig", "LinearOptions"]


@attrs.frozen(kw_only=True)
class LinearOptions:
    """What a person can choose about the regressions, however arms are chosen by them."""

    l2_lambda: float = option(
        1.0, "Ridge penalty of every regression; it is never discounted.", above(0)
    )
    discount: float = option(
        1.0,
        "Weight that what was learned keeps with every further row; 1 forgets nothing, "
        "less costs a matrix inversion per arm and update.",
        above(0),
        at_most(1),
    )
    squared_discount: bool = option(
        False,
        "Take deviations from a second matrix discounted twice, as D-LinUCB does; "
        "for a discount below 1 and a joint or disjoint model.",
    )
    arms: Literal["auto", "fixed", "featured"] = option(
        "auto",
        "'fixed': arms that mean the same in every context and have no features; 'featured': "
        "each context brings its own arms with features; 'auto': as the observations are.",
    )
    model: Literal["auto", "joint", "disjoint", "hybrid"] = option(
        "auto",
        "'disjoint': a regression per arm (fixed arms only); 'joint': one for all arms; 'hybrid': "
        "a shared one plus one per arm (with featured arms, arm i must then be the same one in "
        "every context); 'auto': disjoint for fixed arms, joint for featured ones.",
    )
    use_interaction_features: bool = option(
        True,
        "Give shared regressions the products of context and arm features; false leaves "
        "them to a joint model, or a hybrid one of featured arms, side by side.",
    )
    refresh_every: int = option(
        1000,
        "Rank-one updates of an inverse before it is computed anew from the exact sums.",
        at_least(1),
    )
    update_every: int = option(
        1, "Steps of the (vector) environment that are learned from together.", at_least(1)
    )

    def __attrs_post_init__(self) -> None:
        if self.squared_discount and self.discount == 1.0:
            raise ValueError(
                "squared_discount has no effect at discount = 1: lower discount, or leave it off"
            )
        if self.squared_discount and self.model == "hybrid":
            raise ValueError(
                "squared_discount needs one matrix per regression, a hybrid model shares two: "
                "set model to 'joint' or 'disjoint'"
            )


@attrs.frozen(kw_only=True)
class LinUCBConfig(LinearOptions):
    """Options of LinUCB."""

    alpha: float = option(
        1.0,
        "Width of the confidence bound in standard deviations; 0 chooses by the mean alone.",
        at_least(0),
        schedulable=True,
    )
