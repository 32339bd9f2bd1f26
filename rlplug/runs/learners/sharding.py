"""Whether the training state of a run can be sharded over its learners, and what shards it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import optim

from rlplug.config.sections import RunConfig
from rlplug.errors import RequestError, did_you_mean
from rlplug.learner import Learner
from rlplug.learner.member import Member
from rlplug.learner.sharding import matching_parts
from rlplug.plugin import Module
from rlplug.scale.ranks import Ranks

__all__ = ["refuse_unshardable", "sharding"]

_ELEMENTWISE = (
    optim.SGD,
    optim.Adam,
    optim.AdamW,
    optim.RMSprop,
    optim.Adagrad,
    optim.Adadelta,
    optim.Adamax,
    optim.NAdam,
    optim.RAdam,
    optim.ASGD,
    optim.Rprop,
)
"""Optimizers that step each number by itself: a shard as they would step it in the whole."""

_DDP = "try: --set scale.parallel=ddp"

Problems = Iterator[tuple[str, str]]


def sharding(learner: Learner, config: RunConfig, ranks: Ranks) -> Callable[[], None] | None:
    """What shards the training state once it is loaded, if it is to be; refused if it cannot be."""
    scale = config.scale
    if scale.parallel != "fsdp":
        return None
    refuse_unshardable(learner, config)
    # The others answer the first learner while it saves.
    call = partial(ranks.tell, ("optimizer", None)) if ranks.is_first else None
    return partial(learner.shard, scale.fsdp_parts, reshard=scale.fsdp_reshard, call=call)


def refuse_unshardable(learner: Learner, config: RunConfig) -> None:
    """Refuse what FSDP2 cannot do, all at once."""
    problems = [*_of_options(config), *_of_learner(learner, config.scale.fsdp_parts)]
    if problems:
        *first, (message, hint) = problems
        above = [f"{said}\n  {advice}" for said, advice in first]
        lines = "\n".join([*above, message])
        raise RequestError(f"a run with scale.parallel = 'fsdp': {lines}", hint)


def _of_options(config: RunConfig) -> Problems:
    learning, compute = config.learner, config.compute
    if compute.compile:
        yield "compute.compile does not trace it.", "try: --set compute.compile=false"
    if compute.precision == "fp16":
        yield (
            "the scaler of fp16 sees the shards of one learner alone.",
            "try: --set compute.precision=bf16",
        )
    if learning.accumulate > 1:
        yield (
            f"learner.accumulate = {learning.accumulate}: each minibatch is averaged by itself.",
            "try: --set learner.accumulate=1, with a larger batch_size",
        )
    if learning.nonfinite == "stop":
        yield (
            "learner.nonfinite = 'stop' looks for the loss term that is not finite, with whole "
            "weights.",
            "try: --set learner.nonfinite=skip",
        )
    if learning.balance_grad_norms:
        yield (
            "learner.balance_grad_norms needs the gradients of each loss term.",
            "try: --set learner.balance_grad_norms=false",
        )


def _of_learner(learner: Learner, parts: Sequence[str]) -> Problems:
    for one in learner.calls.implementations("postprocess_gradients"):
        yield (
            f"{one.participant.label} changes gradients, of which each learner has a shard.",
            f"try: without {one.name!r}, or --set scale.parallel=ddp",
        )
    if learner.device.type == "cuda" and not _has_nccl():
        yield "it needs a GPU for each learner.", "try: fewer learners, or compute.device=cpu"
    if not _is_known_to_torch():
        yield (
            f"it needs torch 2.8 or later, this is {torch.__version__}.",
            f"{_DDP}, or: pip install -U torch",
        )
    if len(learner.members) > 1:
        yield f"it is for one module, here are {len(learner.members)}.", _DDP
        return
    (member,) = learner.members.values()
    label = learner.calls.algorithm.label
    for message, hint in (*_of_module(member), *_of_optimizers(member)):
        yield f"{label}: {message}", hint
    if member.is_torch:
        for pattern, found in matching_parts(member.module, parts).items():
            if not found:
                names = [name for name, _ in member.module.named_modules() if name]
                guess = did_you_mean(pattern, names, sentence=True)
                yield (
                    f"scale.fsdp_parts: the module has no part {pattern!r}. {guess}".rstrip(),
                    f"there are: {', '.join(names)}",
                )


def _of_module(member: Member) -> Problems:
    if not member.is_torch or not member.optimizers:
        yield "it learns without gradients: there is no optimizer to shard.", _DDP
        return
    if type(member.module).forward_train is Module.forward_train:
        yield "it computes its loss outside of forward_train.", _DDP
    for name, param in member.module.named_parameters():
        if not param.dim():
            yield f"its parameter {name!r} is a single number, which has no shards.", _DDP


def _of_optimizers(member: Member) -> Problems:
    names = [one.name for one in member.optimizers]
    if len(names) > 1:
        yield (
            f"there are {len(names)} optimizers ({', '.join(names)}), and FSDP2 reduces the "
            "gradients of one backward pass.",
            _DDP,
        )
        return
    held = set(map(id, member.module.parameters())) if member.is_torch else set()
    for one in member.optimizers:
        kind = type(one.optimizer)
        if kind not in _ELEMENTWISE:
            yield (
                f"its optimizer is {kind.__name__}, which does not step each number by itself.",
                "try: another one, such as Adam, or --set scale.parallel=ddp",
            )
        if any(id(param) not in held for param in one.params):
            yield "its optimizer holds parameters that are not in the module.", _DDP


def _has_nccl() -> bool:
    return "nccl" in str(dist.get_backend_config())


def _is_known_to_torch() -> bool:
    if not dist.is_available():
        return False
    from torch.distributed import fsdp

    # Without them, messages of the dead would be waited for.
    return hasattr(getattr(fsdp, "FSDPModule", None), "set_custom_reduce_scatter")
