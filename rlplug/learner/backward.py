"""From a minibatch to gradients: the losses of one module, and the ways back through them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlplug.learner.chain import losses_of
from rlplug.learner.compiled import CompiledChain, Found
from rlplug.learner.gradients import (
    add_terms,
    check_terms,
    deliver,
    laid_out,
    take_by_term,
    take_separately,
    take_whole,
)
from rlplug.learner.known import KnownGradients
from rlplug.learner.shown import show_gradients
from rlplug.optim.balance import balanced, summed

if TYPE_CHECKING:
    from rlplug.batch import Batch
    from rlplug.learner.losses import Combined
    from rlplug.learner.member import Member
    from rlplug.learner.optimizers import Registered
    from rlplug.learner.owned import Owned

__all__ = ["EVENLY", "Backward"]


class Backward:
    """Leaves the gradients of one module's losses in its parameters.

    `keeps_window`: minibatches may be gone through again, which needs their graphs.
    """

    def __init__(self, member: Member, learner: Owned, *, keeps_window: bool) -> None:
        section = learner.learning
        self._member = member
        self._learner = learner
        self._calls = learner.calls
        self._precision = learner.precision
        self._balance = section.balance_grad_norms
        self._limit = section.max_grad_norm
        self._hooked = learner.calls.implements("postprocess_gradients")
        self._by_term = self._balance or learner.calls.wants(
            "postprocess_gradients", "term_gradients"
        )
        self._direct = (
            len(member.optimizers) == 1
            and not self._by_term
            and not member.shared
            and self._precision.scaler is None
            and not keeps_window
        )
        """Whether gradients that a plugin knows can be taken as they are."""
        self.known = KnownGradients(member, copies=self._hooked)
        self.is_plain = (
            self._direct
            and not self._hooked
            and not learner.compute.compile
            and self._precision.format is None
        )
        """Whether nothing is done with gradients that a plugin knows but to step by them."""
        self._seen_once = not self._direct
        """Whether it is known that there is something to compile."""
        self._compiled: CompiledChain | None = None
        if learner.compute.compile and not self._by_term:
            self._compiled = CompiledChain(member, learner)
        self._own = [p for p in member.named.values() if id(p) not in member.shared]
        self._shared = [p for p in member.named.values() if id(p) in member.shared]
        self._terms: dict[str, dict[str, Tensor]] = {}
        self._checked = not self._by_term

    @property
    def is_compiled(self) -> bool:
        """Whether forward pass and gradients run as one compiled graph."""
        return self._compiled is not None and self._compiled.works

    def start(self) -> None:
        """Forget the gradients of the last step."""
        for param in self._own:
            param.grad = None
        self._terms = {}
        self.known.together = None

    def losses(self, batch: Batch, names: tuple[str, ...]) -> tuple[Combined | None, Found | None]:
        """What plugins say of a minibatch, and the gradients where one graph gives both."""
        compiled = self._compiled
        if compiled is not None and compiled.works and self._seen_once:
            return compiled(batch, names)
        self._seen_once = True
        return self.losses_once_more(batch, names, direct=self._direct), None

    def losses_once_more(
        self, batch: Batch, names: tuple[str, ...], *, direct: bool = False
    ) -> Combined | None:
        """The same with graphs to go back through, unless they come alone and bring gradients."""
        learner = self._learner
        return losses_of(
            self._member, self._calls, learner, self._precision, batch, names, direct=direct
        )

    def leave_graphs(self) -> None:
        """Compile nothing more: the only loss brings its gradients."""
        if self.is_compiled and self._compiled is not None:
            self._compiled.leave("its gradients are known in closed form, which is faster")

    def take(
        self,
        combined: Combined,
        gradients: Found | None,
        acting: list[Registered],
        weight: float,
        *,
        whole: bool,
    ) -> None:
        """Add the gradients of a minibatch to those of the step; `whole`: every optimizer acts."""
        if gradients is not None:
            for params, found in gradients:
                deliver(params, found, weight)
        elif combined.known is not None:
            self.known.take(combined.known.find(EVENLY), weight)
        elif self._by_term:
            self._take_by_term(combined, acting, weight)
        elif combined.named or not whole:
            take_separately(combined, acting, self._shared, self._precision, weight)
        else:
            take_whole(combined.total, self._precision, weight)

    def finish(
        self,
        acting: list[Registered],
        metrics: dict[str, Any],
        total_weight: float,
        unscaling: Callable[[], float],
    ) -> None:
        """Average over the minibatches of the step and let plugins change the result."""
        gradients = [param.grad for one in acting for param in one.params if param.grad is not None]
        if total_weight != 1.0 and gradients:
            torch._foreach_mul_(gradients, 1.0 / total_weight)
        if self._by_term:
            # Asked only here, for a device is waited for.
            self._use_terms(unscaling() / total_weight, metrics)
        if self._hooked:
            show_gradients(self._calls, self._member, acting, self._terms, metrics, self._learner)

    def _take_by_term(self, combined: Combined, acting: list[Registered], weight: float) -> None:
        if not self._checked:
            check_terms(combined, self._member)
            self._checked = True
        terms = take_by_term(combined, acting, self._member, self._precision)
        add_terms(self._terms, terms, weight)
        total = summed(list(terms.values()))
        named = self._member.named
        deliver([named[name] for name in total], list(total.values()), weight)

    def _use_terms(self, factor: float, metrics: dict[str, Any]) -> None:
        terms = {
            term: {name: gradient * factor for name, gradient in gradients.items()}
            for term, gradients in self._terms.items()
        }
        self._terms = terms
        if self._balance and terms:
            total, norms = balanced(terms, self._limit)
            for name, gradient in total.items():
                param = self._member.named[name]
                param.grad = laid_out(gradient, param)
            for term, norm in norms.items():
                metrics[f"grad_norm_of/{term}"] = norm


EVENLY: Mapping[str, float] = {}
"""Every term of a loss with weight 1."""
