"""The section `[learner]`: how gradients become steps."""

from __future__ import annotations

import attrs

from rlplug.config.option import above, at_least, one_of, option

__all__ = ["LearnerSection"]


@attrs.frozen(kw_only=True)
class LearnerSection:
    """Clipping, the answer to non-finite numbers, balance and accumulation of gradients."""

    max_grad_norm: float = option(
        0.0, "Largest gradient norm (or value, see clip_by); 0 leaves gradients alone.", at_least(0)
    )
    clip_by: str = option(
        "global_norm",
        "What max_grad_norm bounds: the norm of all gradients together, each tensor's, or values.",
        one_of(("global_norm", "norm", "value")),
    )
    clip_over: str = option(
        "optimizer",
        "Whose gradients global_norm takes together: each optimizer's, or those of the module.",
        one_of(("optimizer", "module")),
    )
    norm_type: float = option(
        2.0, "The p of the norms; inf for the largest value.", above(0), infinite=True
    )
    nonfinite: str = option(
        "skip",
        "On NaN or inf in gradients: skip the step, zero those numbers, or stop and name the loss.",
        one_of(("skip", "zero", "stop")),
    )
    balance_grad_norms: bool = option(
        False, "Scale each loss term's gradient to the same norm: one backward pass per term."
    )
    accumulate: int = option(
        1, "Minibatches whose gradients are averaged before the optimizers step.", at_least(1)
    )
    join_from: int = option(
        4,
        "Update modules together from this many alike ones on; 0 updates one by one.",
        at_least(0),
    )
