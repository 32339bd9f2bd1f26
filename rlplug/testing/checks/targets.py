"""Checks of target networks: frozen copies of trained networks, in modules and in extras."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from rlplug.batch import Batch
from rlplug.testing.check import check
from rlplug.testing.comparison import first_difference
from rlplug.testing.harness import Harness, make_harness
from rlplug.testing.report import DoesNotApply
from rlplug.testing.subject import Subject
from rlplug.testing.trial import Trial, Update, each_trial

_RATES = {"tau": False, "polyak": True, "ema_decay": True, "decay": True}
"""Options that say how fast copies follow; True where the number is what is kept of the old."""
_MOVES = 4
_NO_COPY = "it keeps no frozen copy of a trained network, or values no next state"
_WHERE = ("additional_update", "build", "build_extra")


@attrs.frozen
class FrozenCopy:
    """A frozen network with the shapes of trained ones, which it may be a copy of."""

    name: str
    network: nn.Module
    sources: Sequence[nn.Module]
    """The trained networks that it equals at the start."""


@check()
def targets_follow(subject: Subject) -> None:
    """Target networks move toward the network that they are a copy of, and that one not to them."""
    applies = False
    for setting in ({}, *subject.worth_training):
        case = subject.case_for(setting)
        if case is None:
            continue
        harness = make_harness(subject, case, config=subject.changed(setting), steps=2)
        copies = frozen_copies(harness)
        moves: dict[str, list[float]] = {one.name: [] for one in copies}
        applies = applies or bool(copies)
        for _ in range(100):
            before = [(_flat(one.network), [*map(_flat, one.sources)]) for one in copies]
            if all(len(shares) >= _MOVES for shares in moves.values()):
                break
            harness.train(1)
            for one, (old, sources) in zip(copies, before, strict=True):
                if not torch.equal(_flat(one.network), old):
                    moves[one.name].append(_share(subject, harness.note, one, old, sources))
        for name, shares in moves.items():
            if not shares:
                looked_for = f"target networks that follow what is trained {harness.note}"
                found = f"{name!r} is still as it was built after 100 updates"
                raise subject.failure(looked_for, found, "", *_WHERE)
            _require_rate(subject, harness, name, shares)
    if not applies:
        raise DoesNotApply(_NO_COPY)


def _share(
    subject: Subject, note: str, one: FrozenCopy, old: Tensor, before: Sequence[Tensor]
) -> float:
    """The fraction of the way to what it follows by which a target moved, and not aside."""
    step = _flat(one.network) - old
    aside, fraction = math.inf, 0.0
    for source in [*map(_flat, one.sources), *before]:
        way = source - old
        if length := float(way @ way):
            share = float(step @ way) / length
            rest = float((step - share * way).norm()) / float(step.norm())
            aside, fraction = min((aside, fraction), (rest, share))
    if aside > 0.05 or not 0 < fraction < 1.001:
        raise subject.failure(
            f"a target network {one.name!r} that moves toward what it is a copy of {note}",
            f"it moved by {fraction:.3g} of the way to it, and by {aside:.2g} of its step aside",
            "target = (1 - tau) * target + tau * network, for each with its own",
            *_WHERE,
        )
    return fraction


def _require_rate(subject: Subject, harness: Harness, name: str, shares: list[float]) -> None:
    """Targets move as fast as the option for it says, at a constant rate; not while it rises."""
    *_, early, late = (0.0, *shares)
    if late > 0.999 or abs(early - late) > 0.002 * late:
        return
    for option, is_kept in _RATES.items():
        value = getattr(harness.config, option, None)
        if isinstance(value, float) and 0 < value < 1:
            expected = 1 - value if is_kept else value
            if abs(late - expected) > 0.2 * expected:
                looked_for = f"steps of {expected:.3g} of the way for {option} = {value}"
                found = f"{name!r} moves by {late:.3g} of the way"
                raise subject.failure(f"{looked_for} {harness.note}", found, "", *_WHERE)


@check("algorithm")
def targets_are_used(subject: Subject) -> None:
    """The values of next states come from target networks: other weights there, other updates."""
    kinds = {type(one.action_space): [one] for one in reversed(subject.cases)}
    first = type(subject.cases[0].action_space) if subject.cases else None
    applies = False
    # Next actions of another kind are chosen in another way.
    for kind, cases in [(first, None), *((key, one) for key, one in kinds.items() if key != first)]:
        try:
            trials = list(each_trial(subject, lambda trial: trial.has_next, _NO_COPY, cases=cases))
        except DoesNotApply:
            continue
        for trial in trials if kind is first else trials[:1]:
            applies = _require_use(trial) or applies
    if not applies:
        raise DoesNotApply(_NO_COPY)


def _require_use(trial: Trial) -> bool:
    """Whether it has target networks; raises if an update does without one of them."""
    fresh = make_harness(trial.subject, trial.case, config=trial.harness.config)
    parts, copies = _parts(trial.harness), frozen_copies(fresh)
    batch = trial.with_ends()
    usual = trial.after(batch) if copies else None
    for name in [one.name for one in copies]:
        network = parts[name]
        random = torch.Generator().manual_seed(5)
        noise = [torch.randn(one.shape, generator=random) for one in network.parameters()]
        changes = [("read", dict(zip(network.parameters(), noise, strict=True)))]
        last = _last_layers(network)
        biases: list[Any] = [part.bias for part in last if _has_bias(part)]
        if biases:
            changes.append(("value", {bias: _higher(bias, trial) for bias in biases}))
        for what, change in changes:
            if _same(usual, _with_change(trial, batch, change)):
                raise trial.failure(
                    f"next states valued by the target network {name!r} in {trial.case.name!r}",
                    "the same update for other weights: nothing reads it"
                    if what == "read"
                    else "the same update where all its values are higher: it only chooses actions",
                    "double Q-learning chooses with the trained network, the target values",
                    *("prepare_batch", "compute_loss_for_module"),
                )
        for layer in _twins(last, trial):
            low, lower, high, higher = (
                _with_change(trial, batch, {layer.bias: torch.full_like(layer.bias, shift)})
                for shift in (-3.0, -3.5, 3.0, 3.5)
            )
            if low.gradients and _same(low, lower) and not _same(high, higher):
                raise trial.failure(
                    f"next states valued by the lower of the values of {name!r}",
                    "by the higher one: what a lower one says makes no difference",
                    "torch.minimum of both; the higher one overestimates",
                    *("prepare_batch", "compute_loss_for_module"),
                )
    return bool(copies)


def _with_change(trial: Trial, batch: Batch, change: Mapping[Any, Tensor]) -> Update:
    """An update with other parameters."""
    with _added(change):
        return trial.after(batch)


@contextmanager
def _added(change: Mapping[Any, Tensor]) -> Iterator[None]:
    kept = [param.detach().clone() for param in change]
    with torch.no_grad():
        for param, more in change.items():
            param.add_(more.to(param.dtype))
    yield
    with torch.no_grad():
        for param, values in zip(change, kept, strict=True):
            param.copy_(values)


def _same(one: Update | None, other: Update) -> bool:
    assert one is not None
    if one.gradients:
        return not one.difference_of_gradients(other)
    return first_difference(one.rows, other.rows) is None and one.equals(other)


def _twins(last: Sequence[nn.Module], trial: Trial) -> list[Any]:
    """Last layers of equal shapes that give one value, or one for each action."""
    last = [part for part in last if _has_bias(part)]
    shapes = [(part.in_features, part.out_features) for part in last]
    several = {one for one in shapes if shapes.count(one) > 1 and one[1] in (1, trial.num_actions)}
    return [part for part, shape in zip(last, shapes, strict=True) if shape in several]


def _has_bias(part: nn.Module) -> bool:
    return isinstance(getattr(part, "bias", None), nn.Parameter)


def _higher(bias: Tensor, trial: Trial) -> Tensor:
    """What to add to all values alike; for distributions, more to the outcomes further up."""
    count = trial.num_actions or 1
    atoms = bias.numel() // count if bias.numel() % count == 0 else bias.numel()
    if atoms == 1 or bias.numel() == 1:
        return torch.ones_like(bias)
    return torch.linspace(0.0, 3.0, atoms, dtype=bias.dtype).repeat(bias.numel() // atoms)


def _last_layers(network: nn.Module) -> list[nn.Module]:
    """Linear layers whose outputs are no other layer's inputs: they give the network's values."""
    layers = [part for part in network.modules() if hasattr(part, "out_features")]
    inputs = {getattr(part, "in_features", None) for part in layers}
    return [part for part in layers if part.out_features not in inputs]


@check("algorithm")
def targets_get_no_gradient(subject: Subject) -> None:
    """No gradient flows through the values of next states into what is trained."""
    reason = "its loss reads no next observations of floats that bootstrapping goes by"
    cases = [case for case in subject.cases if not case.one_step]
    for trial in each_trial(subject, _reads_next_in_its_loss, reason, cases=cases):
        going, ended = (
            _flow(trial, trial.with_ends(terminated=terminated)) for terminated in (False, True)
        )
        marked = trial.ends()
        # What is learned of observations themselves does not end with the episode.
        if bool(going[marked].any()) and not bool(ended[marked].any()):
            raise trial.failure(
                "targets that are constants",
                "a gradient flows through a trained network at next observations",
                "compute targets in prepare_batch, or under torch.no_grad()",
                *("compute_loss_for_module", "prepare_batch"),
            )


def _reads_next_in_its_loss(trial: Trial) -> bool:
    following = trial.batch.get("next_observations")
    is_column = isinstance(following, Tensor) and following.is_floating_point()
    return is_column and trial.harness.has_optimizers


def _flow(trial: Trial, batch: Batch) -> Tensor:
    """The gradient of the loss by next observations, through networks that are trained alone."""

    def cut(part: nn.Module, inputs: Any, output: Any) -> Any:
        return output.detach() if isinstance(output, Tensor) else output

    with trial.harness.undone() as harness, ExitStack() as hooks:
        for part in harness.module.modules():
            own = [param.requires_grad for param in part.parameters()]
            if own and not any(own):
                hooks.callback(part.register_forward_hook(cut).remove)
        prepared = harness.prepare(batch)
        following = prepared["next_observations"].clone().requires_grad_()
        loss = harness.loss(prepared.with_columns({"next_observations": following}))
        flow = None
        if loss is not None and loss.requires_grad:
            (flow,) = torch.autograd.grad(loss, following, allow_unused=True)
        return (torch.zeros_like(following) if flow is None else flow).flatten(1).abs().sum(1)


def frozen_copies(harness: Harness) -> list[FrozenCopy]:
    """Frozen submodules, of modules and extras, that equal trained ones: before any update."""
    parts = {name: part for name, part in _parts(harness).items() if [*part.parameters()]}
    trained = [part for part in parts.values() if all(p.requires_grad for p in part.parameters())]
    copies: list[FrozenCopy] = []
    held: set[int] = set()
    # The largest first: layers of a copy may look like layers of other networks.
    for name, part in sorted(parts.items(), key=lambda pair: -len(_flat(pair[1]))):
        own = {id(param) for param in part.parameters()}
        # One that differs from the start is no copy: RND's fixed network, for one.
        sources = [source for source in trained if _is_copy(part, source)]
        if sources and not any(p.requires_grad for p in part.parameters()):
            copies += [] if own & held else [FrozenCopy(name, part, sources)]
            held |= own
    return copies


def _is_copy(part: nn.Module, other: nn.Module) -> bool:
    own, others = dict(part.named_parameters()), dict(other.named_parameters())
    return own.keys() == others.keys() and all(torch.equal(own[name], others[name]) for name in own)


def _parts(harness: Harness) -> dict[str, nn.Module]:
    """All submodules of modules and extras by name."""
    return {
        name.removeprefix(f"{harness.module_id}."): part
        for root, module in harness.parts().items()
        for name, part in module.named_modules(prefix=root)
    }


def _flat(network: nn.Module) -> Tensor:
    return torch.cat([param.detach().double().reshape(-1) for param in network.parameters()])
