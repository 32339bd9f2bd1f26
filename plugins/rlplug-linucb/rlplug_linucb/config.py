"""Options of LinUCB and LinTS."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import attrs

from rlplug.config import above, at_least, at_most, option
from rlplug.config.schedule import resolve
from rlplug.errors import RequestError

__all__ = ["LinTSConfig", "LinUCBConfig", "LinearOptions", "config_of"]

_Config = TypeVar("_Config")


def config_of(kind: type[_Config], given: Any) -> _Config:
    """The options that a module is made with, at step 0; None: their defaults."""
    config = kind() if given is None else given
    if not isinstance(config, kind):
        raise RequestError(
            f"rlplug-linucb: the config of this module must be a {kind.__name__}, found "
            f"{config!r}.",
            f"try: {kind.__name__}()",
        )
    return resolve(config, 0)


@attrs.frozen(kw_only=True)
class LinearOptions:
    """Options of the regressions, shared by LinUCB and LinTS."""

    l2_lambda: float = option(
        1.0,
        "Ridge penalty; it is not discounted. 0: least squares by pseudo-inverse, at the cost of "
        "one per update; directions without data then count as certain.",
        at_least(0),
    )
    discount: float = option(
        1.0,
        "Discount of all earlier data per learned row; 1 disables forgetting. "
        "Below 1, every update costs a matrix inversion per arm.",
        above(0),
        at_most(1),
    )
    squared_discount: bool = option(
        False,
        "Estimate deviations with a second matrix discounted by the square, as D-LinUCB does; "
        "needs a discount below 1 and a joint or disjoint model.",
    )
    arms: Literal["auto", "fixed", "featured"] = option(
        "auto",
        "'fixed': the same arms in every context, without features; 'featured': each context "
        "brings its own arms, with features; 'auto': as in the observation space.",
    )
    model: Literal["auto", "joint", "disjoint", "hybrid"] = option(
        "auto",
        "'disjoint': a regression per arm (fixed arms only); 'joint': one for all arms; 'hybrid': "
        "a shared one plus one per arm (featured arms must then keep their index in every "
        "context); 'auto': disjoint for fixed arms, joint for featured ones.",
    )
    use_interaction_features: bool = option(
        True,
        "Use products of context and arm features in the regression that arms share; false: "
        "concatenate them (joint), or use arm features alone (hybrid, featured arms only).",
    )
    max_arms: int = option(
        200,
        "Most arms remembered where observations have arm_ids; beyond, the arm that was learned "
        "least recently is forgotten.",
        at_least(2),
    )
    refresh_every: int = option(
        1000,
        "Rank-one updates of an inverse before it is recomputed from the sums.",
        at_least(1),
    )
    update_every: int = option(1, "Steps of the (vector) environment per update.", at_least(1))

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
        "Width of the confidence bound in standard deviations; 0 is greedy.",
        at_least(0),
        schedulable=True,
    )


@attrs.frozen(kw_only=True)
class LinTSConfig(LinearOptions):
    """Options of LinTS."""

    v: float = option(
        0.25,
        "Scale of the posterior's standard deviations; 0 is greedy.",
        at_least(0),
        schedulable=True,
    )
