"""Training state sharded over the learners by FSDP2: gradients, optimizer, weights in training."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rlplug.batch import Batch
from rlplug.errors import PluginError, RunFailedError
from rlplug.learner.collectives import wait_for
from rlplug.learner.device import Precision
from rlplug.learner.losses import LossHooks, MinibatchLoss
from rlplug.learner.member import Member
from rlplug.learner.module_update import ModuleUpdate, Prepare
from rlplug.learner.optimizers import RegisteredOptimizer
from rlplug.learner.process_group import ProcessGroup
from rlplug.nn.targets import TargetNetwork

__all__ = ["ShardedEngine", "Sharding", "matching_parts"]

_TORCH: Any = dist
_ALL_GATHER = getattr(_TORCH, "all_gather_single", None) or _TORCH.all_gather_into_tensor
_REDUCE_SCATTER = getattr(_TORCH, "reduce_scatter_single", None) or _TORCH.reduce_scatter_tensor
"""Their names since torch 2.13."""


class Sharding:
    """One module whose training state is sharded over the learners.

    The module of the learner stays whole: it acts, is evaluated and saved, and hooks get it. A copy
    that has its buffers in common with it is sharded by FSDP2; there losses and gradients are
    computed. The optimizer steps this learner's shards, from which `gather` renews the whole.
    """

    def __init__(
        self,
        update: ModuleUpdate,
        group: ProcessGroup,
        *,
        parts: Sequence[str],
        reshard: bool,
        call: Callable[[], object] | None,
    ) -> None:
        self._whole = update.member.module
        self._group = group
        self._call = call
        """Tells the others of a state that is about to be gathered, where they do not know."""
        # Buffers are small, and hooks write into them: the two modules have the same ones.
        memo = {id(buffer): buffer for buffer in self._whole.buffers()}
        self.module: Any = copy.deepcopy(self._whole, memo)
        """The sharded copy."""
        _fully_shard(self.module, parts, group, reshard=reshard)
        self._params = dict(self._whole.named_parameters())
        self._shards: dict[str, Any] = dict(self.module.named_parameters())
        with torch.no_grad():
            self._locals: dict[str, Tensor] = {
                name: shard.to_local() for name, shard in self._shards.items()
            }
        self.trained: list[tuple[nn.Parameter, Any]] = []
        """This learner's shard of each parameter that the optimizer holds, and FSDP2's of it."""
        self._update = update
        (self._registered,) = update.member.optimizers
        self._take_over(self._registered)
        update.targets = [one for one in self.module.modules() if isinstance(one, TargetNetwork)]
        update.combine = self.combined
        self._versions = {name: param._version for name, param in self._params.items()}

    def _take_over(self, one: RegisteredOptimizer) -> None:
        """Give the optimizer this learner's shards in place of whole parameters and states."""
        names = {id(param): name for name, param in self._params.items()}
        state = one.optimizer.state
        for group in one.optimizer.param_groups:
            for index, whole in enumerate(group["params"]):
                name = names[id(whole)]
                local = nn.Parameter(self._locals[name])
                group["params"][index] = self._locals[name] = local
                self.trained.append((local, self._shards[name]))
                if whole in state:
                    state[local] = {
                        key: self._shard_of(value) if _is_like(value, whole) else value
                        for key, value in state.pop(whole).items()
                    }
        one.params = [local for local, _ in self.trained]

    def _shard_of(self, whole: Tensor) -> Tensor:
        rows = -(-len(whole) // self._group.size)
        start = min(dist.get_rank(self._group.group) * rows, len(whole))
        return whole[start : start + rows].clone()

    # -- after an update -------------------------------------------------------------------------

    def gather(self) -> None:
        """Renew the whole module from the shards of all learners."""
        self._refuse_changed()
        moved, self._update.targets_moved = self._update.targets_moved, False
        for name, param in self._params.items():
            local = self._locals[name]
            if moved or isinstance(local, nn.Parameter):
                self._gather_into(param.detach(), local.detach())
                self._versions[name] = param._version

    def _refuse_changed(self) -> None:
        """Refuse a plugin that changes weights by itself, or puts another buffer in place of one.

        Neither would reach the shards.
        """
        for name, param in self._params.items():
            if param._version != self._versions[name]:
                raise PluginError(
                    f"a plugin changes the parameter {name!r} by itself: with scale.parallel = "
                    "'fsdp', only the optimizer and target networks of rlplug.nn reach the shards "
                    "of all learners.",
                    "try: --set scale.parallel=ddp",
                )
        sharded = dict(self.module.named_buffers())
        for name, buffer in self._whole.named_buffers():
            if sharded.get(name) is not buffer:
                raise PluginError(
                    f"a plugin puts another tensor in place of the buffer {name!r}: with "
                    "scale.parallel = 'fsdp', it is one of two modules that have it in common.",
                    "write into it (copy_, mul_), or try: --set scale.parallel=ddp",
                )

    def _gather_into(self, whole: Tensor, local: Tensor) -> None:
        """Join the shards of all learners: the first rows are the first learner's."""
        size = self._group.size
        rows = -(-len(whole) // size)
        fits = rows * size == len(whole) and whole.is_contiguous()
        joined = whole if fits else whole.new_empty(rows * size, *whole.shape[1:])
        if len(local) < rows:
            local = torch.cat([local, local.new_zeros(rows - len(local), *local.shape[1:])])
        group = self._group.group
        work = _ALL_GATHER(joined, local.contiguous(), group=group, async_op=True)
        wait_for(work, self._group.check if joined.device.type == "cpu" else None)
        if not fits:
            whole.copy_(joined[: len(whole)])

    # -- norms and states of all shards ----------------------------------------------------------

    def combined(self, norms: Tensor, norm_type: float) -> Tensor:
        """The norm of each gradient, from the norms of its shards."""
        if norm_type == float("inf"):
            # The largest of several is not always one that is no number.
            whole = torch.where(norms.isnan(), float("inf"), norms)
            return self._group.all_reduce([whole], "max")[0]
        powers = self._group.all_reduce([norms.to(torch.float64) ** norm_type])[0]
        return (powers ** (1 / norm_type)).to(norms.dtype)

    def optimizer_state(self) -> dict[str, Any]:
        """What `state_dict` of the optimizer would give without sharding, on one learner alone."""
        if self._call is not None:
            self._call()
        found: dict[str, Any] = self._registered.optimizer.state_dict()
        states: dict[int, dict[str, Any]] = {
            index: dict(state) for index, state in found["state"].items()
        }
        for index, key, whole in self._whole_states():
            states[index][key] = whole
        return {**found, "state": states}

    def join_optimizer_state(self) -> None:
        """Take part where another learner asks for it."""
        for _ in self._whole_states():
            pass

    def _whole_states(self) -> Iterator[tuple[int, str, Tensor]]:
        """Parameter, name and whole of each tensor of the optimizer that is sharded."""
        for index, (local, shard) in enumerate(self.trained):
            for key, value in self._registered.optimizer.state.get(local, {}).items():
                if _is_like(value, local):
                    whole = value.new_empty(shard.shape)
                    self._gather_into(whole, value)
                    yield index, key, whole


class ShardedEngine:
    """Losses and gradients of a sharded module, averaged by FSDP2 while they are computed.

    Every forward and backward pass is one of all learners: a learner without a minibatch, or whose
    loss counts nothing, joins with gradients of zero.
    """

    name = "sharded"

    def __init__(
        self,
        sharding: Sharding,
        losses: LossHooks,
        member: Member,
        precision: Precision,
        group: ProcessGroup,
    ) -> None:
        self._sharding = sharding
        self._losses = losses
        self._precision = precision
        self._group = group
        self._member = copy.copy(member)
        self._member.module = sharding.module
        self._last: Batch | None = None

    def prepare(self, prepare: Prepare, batch: Batch) -> Batch:
        """Run `prepare_batch` on tensors."""
        return prepare(batch)

    def gradients(self, group: Sequence[ModuleUpdate]) -> None:
        """Leave this learner's shards of the averaged gradients in the optimizer's parameters."""
        (update,) = group
        for local, _ in self._sharding.trained:
            local.grad = None
        batch, is_own = self._last, bool(update.minibatches)
        if is_own:
            (batch,) = update.minibatches
            self._last = batch
        if batch is None:
            raise RunFailedError(
                "a learner has no minibatch to begin with: with scale.parallel = 'fsdp', each "
                "needs one.",
                "try: longer rollouts, or --set scale.parallel=ddp",
            )
        with self._precision.autocast():
            with warnings.catch_warnings():
                # It warns of outputs that are views; a hook that gets lost is noticed below.
                warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
                out = self._member.module.forward_train(batch)
            loss = self._losses(self._member, batch, update.ready_names, fwd_out=out)
        counts = is_own and update.note(
            loss, None if loss is None else loss.total.detach(), batch, 1.0
        )
        flags = torch.tensor([counts, update.stopped], dtype=torch.int64)
        learners, stops = self._group.all_reduce([flags])[0].tolist()
        is_step = learners > 0 and not stops
        # FSDP2 divides by all learners, of which some may have no loss.
        self._backward(loss, out, self._group.size / learners if counts and is_step else 0.0)
        for local, shard in self._sharding.trained:
            gradient, shard.grad = shard.grad, None
            local.grad = gradient.to_local() if is_step and gradient is not None else None
        if not is_step:
            update.stopped = bool(stops)
            update.weight = 0.0
        elif not counts:
            update.metrics = {}
            update.weight = 1.0

    def _backward(self, loss: MinibatchLoss | None, out: Mapping[str, Any], share: float) -> None:
        values = [one for one in out.values() if isinstance(one, Tensor) and one.requires_grad]
        if loss is not None:
            values = [loss.total]
        torch.autograd.backward(values, [torch.full_like(one, share) for one in values])
        if all(shard.grad is None for _, shard in self._sharding.trained):
            raise PluginError(
                "FSDP2 found no gradient: the loss is not computed from what forward_train "
                "returned as a dict of tensors.",
                "try: --set scale.parallel=ddp",
            )


def matching_parts(module: nn.Module, patterns: Sequence[str]) -> dict[str, list[str]]:
    """Pattern → the names of the submodules that it matches."""
    names = [name for name, _ in module.named_modules() if name]
    return {pattern: [name for name in names if fnmatchcase(name, pattern)] for pattern in patterns}


def _fully_shard(
    module: nn.Module, patterns: Sequence[str], group: ProcessGroup, *, reshard: bool
) -> None:
    # It takes half a second to import.
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    device = next(module.parameters()).device
    ranks: Any = group.group if group.group is not None else dist.group.WORLD
    mesh = DeviceMesh.from_group(ranks, device.type)
    found = matching_parts(module, patterns)
    chosen = {name for names in found.values() for name in names}
    # Inner parts first: what is in none of them belongs to the outer one.
    for name, part in reversed(list(module.named_modules())):
        # A target network that no loss runs is never gathered if it is apart.
        if name and (name in chosen or isinstance(part, TargetNetwork)):
            fully_shard(part, mesh=mesh, reshard_after_forward=reshard)
    # Losses may look at what is in no part, such as a log standard deviation.
    fully_shard(module, mesh=mesh, reshard_after_forward=False)
    register_fsdp_forward_method(module, "forward_train")
    for part in module.modules():
        _watch(part, group, device)


def _watch(part: Any, group: ProcessGroup, device: torch.device) -> None:
    """On the CPU, wait for messages as for all others: not for those of the dead."""
    from torch.distributed.fsdp import FSDPModule

    if isinstance(part, FSDPModule) and device.type == "cpu":
        comm: Any = part
        comm.set_custom_all_gather(_AllGather(group))
        comm.set_custom_reduce_scatter(_ReduceScatter(group))


class _Watched:
    def __init__(self, group: ProcessGroup) -> None:
        self._group = group

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for a message."""
        return torch.empty(*size, dtype=dtype, device=device)


class _AllGather(_Watched):
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False
    ) -> None:
        work = _ALL_GATHER(output_tensor, input_tensor, group=group, async_op=True)
        wait_for(work, self._group.check)


class _ReduceScatter(_Watched):
    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: Any,
        op: Any,
        async_op: bool = False,
    ) -> None:
        work = _REDUCE_SCATTER(output_tensor, input_tensor, group=group, async_op=True)
        wait_for(work, self._group.check)
        # gloo does not average.
        if op == dist.ReduceOp.AVG:
            output_tensor.div_(self._group.size)


def _is_like(value: Any, param: Tensor) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0 and value.shape == param.shape
