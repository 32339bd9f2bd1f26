"""The options of RND."""

from __future__ import annotations

import attrs

from rlplug import option
from rlplug.config import at_least, not_empty

__all__ = ["RNDConfig"]


@attrs.frozen(kw_only=True)
class RNDConfig:
    """Options of RND."""

    coef: float = option(
        0.1,
        "Coefficient of the bonus; 0 only measures it, as the metric `bonus`.",
        at_least(0),
        schedulable=True,
    )
    learning_rate: float = option(
        0.001, "Adam learning rate of the predictor.", at_least(0), schedulable=True
    )
    net_arch: tuple[int, ...] = option(
        (64, 64), "Sizes of the hidden layers of both networks.", not_empty
    )
    out_features: int = option(32, "Outputs of both networks.", at_least(1))
