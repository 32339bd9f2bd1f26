"""Checks of target networks: frozen copies of trained networks, in modules and in extras."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rlplug.testing.cases import Case
from rlplug.testing.comparison import cloned, first_difference
from rlplug.testing.harness import Harness, make_harness
from rlplug.testing.report import CheckFailed, DoesNotApply, location, locations
from rlplug.testing.subject import Subject
from rlplug.testing.trial import Trial, named, trials

__all__ = ["check_policy_is_delayed", "check_targets_are_used", "check_targets_follow"]

_RATES = {"tau": False, "polyak": True, "ema_decay": True, "decay": True}
"""Options that say how fast copies follow; True where the number is what is kept of the old."""
_MOVES = 4
_DELAY = 3


@attrs.frozen
class FrozenCopy:
    """A frozen network with the shapes of trained ones, which it may be a copy of."""

    name: str
    network: nn.Module
    sources: Mapping[str, nn.Module]
    """The trained networks that it equals at the start."""


def check_targets_follow(subject: Subject) -> None:
    """Target networks move toward the network that they are a copy of, and that one not to them."""
    applies = False
    for setting in ({}, *subject.worth_training):
        case = subject.case_for(setting)
        if case is None:
            continue
        harness = make_harness(subject, case, config=subject.changed(setting))
        copies = frozen_copies(harness)
        if not copies:
            continue
        applies = True
        moves: dict[str, list[float]] = {one.name: [] for one in copies}
        for _ in range(100):
            before = [_flat(one.network) for one in copies]
            sources_before = [_all(one.sources) for one in copies]
            harness.train(1, steps=2)
            for one, old, sources in zip(copies, before, sources_before, strict=True):
                if not torch.equal(_flat(one.network), old):
                    moves[one.name].append(_share(subject, setting, one, old, sources))
            if all(len(shares) >= _MOVES for shares in moves.values()):
                break
        for name, shares in moves.items():
            if not shares:
                raise CheckFailed(
                    "target networks that follow what is trained within 100 updates"
                    + named(setting),
                    f"{name!r} is still as it was built",
                    location(subject.kind, "additional_update", "build", "build_extra"),
                )
            _check_rate(subject, setting, name, shares)
    if not applies:
        raise DoesNotApply("it keeps no frozen copy of a trained network")


def check_targets_are_used(subject: Subject) -> None:
    """The values of next states come from target networks: other weights there, other updates."""
    applies = False
    where = locations(subject.kind, "prepare_batch", "compute_loss_for_module")
    for trial in (*trials(subject), *_of_other_action_spaces(subject)):
        config = trial.harness.algorithm.config
        fresh = make_harness(subject, trial.case, config=config)
        parts = _named_parts(trial.harness)
        copies = [
            attrs.evolve(one, network=parts[one.name], sources={}) for one in frozen_copies(fresh)
        ]
        if not copies or not trial.has_next:
            continue
        beside = f" in {trial.case.name!r}{named(trial.setting)}"
        batch = trial.with_ends(terminated=False, truncated=False)
        usual = trial.after(batch)
        for one in copies:
            applies = True
            if not _changes_update(trial, batch, one, everywhere=True, usual=usual):
                raise CheckFailed(
                    f"another update for other weights of the target network {one.name!r}" + beside,
                    "the same one: nothing reads it",
                    where + ": value next states with the target network",
                )
            last = _last_layers(one.network)
            if last and not _changes_update(trial, batch, one, everywhere=False, usual=usual):
                raise CheckFailed(
                    f"next states valued by the target network {one.name!r}" + beside,
                    "the same update where all its values are higher: it only chooses actions",
                    where + ": double Q-learning chooses with the trained network, and values with "
                    "the target network",
                )
            for layer in _twins(one.network, trial.case):
                if _takes_the_higher(trial, batch, layer):
                    raise CheckFailed(
                        f"next states valued by the lower of the values that {one.name!r} gives"
                        + beside,
                        "by the higher one: what a lower one says makes no difference",
                        where + ": torch.minimum of both; the higher one overestimates",
                    )
    if not applies:
        raise DoesNotApply("it keeps no frozen copy of a trained network, or values no next state")


def check_policy_is_delayed(subject: Subject) -> None:
    """With `policy_delay`, some parameters move in every so many updates, and rest in others."""
    config = subject.changed({"policy_delay": _DELAY})
    if config is None or not hasattr(config, "policy_delay"):
        raise DoesNotApply("it has no option policy_delay")
    harness = make_harness(subject, config=config)
    moved: dict[str, list[bool]] = {name: [] for name in harness.parameters()}
    for _ in range(2 * _DELAY):
        before = cloned(harness.parameters())
        harness.train(1, steps=2)
        for name, param in harness.parameters().items():
            moved[name].append(not torch.equal(param, before[name]))
    delayed = [name for name, when in moved.items() if sum(when) == 2]
    if not delayed:
        raise CheckFailed(
            f"parameters that move in 2 of {2 * _DELAY} updates with policy_delay = {_DELAY}",
            "all that are trained move in other ones",
            location(subject.kind, "compute_loss_for_module")
            + ": leave the actor's loss out in the other updates, not only the targets",
        )


def _of_other_action_spaces(subject: Subject) -> Iterator[Trial]:
    """A trial for each kind of action space after the first: next actions are chosen otherwise."""
    tried = {type(one.action_space) for one in (subject.case_for({}),) if one is not None}
    for case in subject.cases:
        kind = type(case.action_space)
        if kind not in tried and frozen_copies(make_harness(subject, case)):
            yield Trial(subject, {}, case)
        tried.add(kind)


def frozen_copies(harness: Harness) -> list[FrozenCopy]:
    """Frozen submodules, of modules and extras, that equal trained ones: before any update."""
    shapes: dict[tuple[Any, ...], list[tuple[str, nn.Module]]] = {}
    for name, part in _named_parts(harness).items():
        own = tuple((path, tuple(param.shape)) for path, param in part.named_parameters())
        if own:
            shapes.setdefault(own, []).append((name, part))
    found: list[FrozenCopy] = []
    for same in shapes.values():
        trained = {
            name: part for name, part in same if all(p.requires_grad for p in part.parameters())
        }
        for name, part in same:
            equal = {key: one for key, one in trained.items() if _same(part, one)}
            # One that differs from the start is no copy: RND's fixed network, for one.
            if equal and not any(p.requires_grad for p in part.parameters()):
                found.append(FrozenCopy(name, part, equal))
    copies: list[FrozenCopy] = []
    # The largest first: layers of a copy may look like layers of other networks.
    for one in sorted(found, key=lambda copy: -len(_flat(copy.network))):
        if not _is_same_part(one.network, copies):
            copies.append(one)
    return copies


def _named_parts(harness: Harness) -> dict[str, nn.Module]:
    """All submodules of modules and extras by name."""
    parts: dict[str, nn.Module] = {}
    for member in harness.learner.members.values():
        roots = {"": member.module, **{f"{name}.": part for name, part in member.extras.items()}}
        for prefix, root in roots.items():
            parts.update((prefix + name, part) for name, part in root.named_modules())
    return parts


def _is_same_part(part: nn.Module, copies: list[FrozenCopy]) -> bool:
    """Whether it is inside of a copy that was found already, or holds one."""
    own = {id(param) for param in part.parameters()}
    return any(own & {id(param) for param in one.network.parameters()} for one in copies)


def _share(
    subject: Subject,
    setting: Mapping[str, Any],
    one: FrozenCopy,
    old: Tensor,
    sources_before: Mapping[str, Tensor],
) -> float:
    """The fraction of the way to what it follows by which a target moved, and not aside."""
    new = _flat(one.network)
    where = location(subject.kind, "additional_update", "build", "build_extra")
    best, fraction = math.inf, 0.0
    for source in [*_all(one.sources).values(), *sources_before.values()]:
        way = source - old
        length = float(way @ way)
        if not length:
            continue
        share = float((new - old) @ way) / length
        rest = float((new - old - share * way).norm()) / float((new - old).norm())
        if rest < best:
            best, fraction = rest, share
    if best > 0.05 or not 0 < fraction < 1.001:
        raise CheckFailed(
            f"a target network {one.name!r} that moves toward what it is a copy of"
            + named(setting),
            f"it moved by {fraction:.3g} of the way to it, and by {best:.2g} of its step aside",
            where + ": target = (1 - tau) * target + tau * network, for each with its own",
        )
    return fraction


def _check_rate(
    subject: Subject, setting: Mapping[str, Any], name: str, shares: list[float]
) -> None:
    """Targets move as fast as the option for it says, at a constant rate; not while it rises."""
    *_, early, late = (0.0, *shares)
    if late > 0.999 or abs(early - late) > 0.002 * late:
        return
    config = subject.changed(setting)
    for option, is_kept in _RATES.items():
        value = getattr(config, option, None)
        if not isinstance(value, float) or not 0 < value < 1:
            continue
        expected = 1 - value if is_kept else value
        if abs(late - expected) > 0.2 * expected:
            raise CheckFailed(
                f"steps of {expected:.3g} of the way for {option} = {value}" + named(setting),
                f"{name!r} moves by {late:.3g} of the way",
                location(subject.kind, "additional_update", "build", "build_extra"),
            )


def _changes_update(
    trial: Trial, batch: Any, one: FrozenCopy, *, everywhere: bool, usual: Any
) -> bool:
    """Whether an update differs where the copy has other weights, or higher values."""
    params = list(one.network.parameters())
    if not everywhere:
        biases = (getattr(part, "bias", None) for part in _last_layers(one.network))
        params = [bias for bias in biases if isinstance(bias, nn.Parameter)]
        if not params:
            return True
    kept = cloned(params)
    random = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for param in params:
            noise = torch.randn(param.shape, generator=random, dtype=param.dtype)
            param.add_(0.5 * noise if everywhere else _higher(param, trial.case))
    try:
        changed = trial.after(batch)
    finally:
        with torch.no_grad():
            for param, values in zip(params, kept, strict=True):
                param.copy_(values)
    if usual.gradients:
        return bool(usual.difference_of_gradients(changed))
    return first_difference(usual.rows, changed.rows) is not None or not usual.equals(changed)


def _twins(network: nn.Module, case: Case) -> list[nn.Module]:
    """Last layers of equal shapes that give one value, or one for each action."""
    space = case.action_space
    counts = (1, int(space.n)) if isinstance(space, spaces.Discrete) else (1,)
    last = [part for part in _last_layers(network) if getattr(part, "out_features", 0) in counts]
    shapes = [(part.in_features, part.out_features) for part in last]
    twins = [part for part, shape in zip(last, shapes, strict=True) if shapes.count(shape) > 1]
    return [part for part in twins if isinstance(getattr(part, "bias", None), nn.Parameter)]


def _takes_the_higher(trial: Trial, batch: Any, layer: nn.Module) -> bool:
    """Whether an update notices how high a value is above others, and not how low below them."""
    found = []
    bias: Any = layer.bias
    kept = bias.detach().clone()
    for shift in (-3.0, -3.5, 3.0, 3.5):
        with torch.no_grad():
            bias.copy_(kept + shift)
        try:
            found.append(trial.after(batch))
        finally:
            with torch.no_grad():
                bias.copy_(kept)
    low, lower, high, higher = found
    if not low.gradients:
        return False
    return not low.difference_of_gradients(lower) and bool(high.difference_of_gradients(higher))


def _higher(bias: Tensor, case: Case) -> Tensor:
    """What to add to all values alike; for distributions, more to the outcomes further up."""
    space = case.action_space
    count = int(space.n) if isinstance(space, spaces.Discrete) else 1
    atoms = bias.numel() // count if bias.numel() % count == 0 else bias.numel()
    if atoms == 1 or bias.numel() == 1:
        return torch.ones_like(bias)
    return torch.linspace(0.0, 3.0, atoms, dtype=bias.dtype).repeat(bias.numel() // atoms)


def _last_layers(network: nn.Module) -> list[nn.Module]:
    """Linear layers whose outputs are no other layer's inputs: they give the network's values."""
    layers = [part for part in network.modules() if hasattr(part, "out_features")]
    inputs = {getattr(part, "in_features", None) for part in layers}
    return [part for part in layers if part.out_features not in inputs]


def _flat(network: nn.Module) -> Tensor:
    return torch.cat([param.detach().double().reshape(-1) for param in network.parameters()])


def _all(networks: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    return {name: _flat(network) for name, network in networks.items()}


def _same(one: nn.Module, other: nn.Module) -> bool:
    return torch.equal(_flat(one), _flat(other))
