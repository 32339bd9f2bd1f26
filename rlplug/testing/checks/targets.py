"""Checks of target networks: frozen copies of trained networks, in modules and in extras."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from rlplug.batch import Batch
from rlplug.testing.check import check
from rlplug.testing.subject import Subject
from rlplug.testing.trial import Trial, Update, each_trial, needed

_RATES = {"tau": False, "polyak": True, "ema_decay": True, "decay": True}
"""Options that say how fast copies follow; True where the number is what is kept of the old."""
_MOVES = 4
_NO_COPY = "it keeps no frozen copy of a trained network, or values no next state"
_FOLLOWING = ("additional_update", "build", "build_extra")
_VALUING = ("prepare_batch", "compute_loss_for_module")


@check()
def targets_follow(subject: Subject) -> None:
    """Target networks move toward the network that they are a copy of, and that one not to them."""
    places = subject.places(subject.worth_training)
    trials = (Trial(subject, case, setting, steps=2) for setting, case in places)
    for trial in needed(filter(frozen_copies, trials), _NO_COPY):
        copies = frozen_copies(trial)
        moves: dict[str, list[float]] = {name: [] for name in copies}
        for _ in range(100):
            before = {name: [*map(_flat, networks)] for name, networks in copies.items()}
            trial.train(1)
            for name, networks in copies.items():
                now, (old, *earlier) = [*map(_flat, networks)], before[name]
                if not torch.equal(now[0], old):
                    moves[name].append(_share(trial, name, now, old, earlier))
            if all(len(shares) >= _MOVES for shares in moves.values()):
                break
        for name, shares in moves.items():
            if not shares:
                looked_for = "target networks that follow what is trained"
                found = f"{name!r} is still as it was built after 100 updates"
                raise trial.failure(looked_for, found, "", *_FOLLOWING)
            _require_rate(trial, name, shares)


def _share(
    trial: Trial, name: str, now: Sequence[Tensor], old: Tensor, earlier: Sequence[Tensor]
) -> float:
    """The fraction of the way to what it follows by which a target moved, and not aside."""
    step, aside, fraction = now[0] - old, math.inf, 0.0
    for source in (*now[1:], *earlier):
        way = source - old
        if length := float(way @ way):
            share = float(step @ way) / length
            rest = float((step - share * way).norm()) / float(step.norm())
            aside, fraction = min((aside, fraction), (rest, share))
    if aside > 0.05 or not 0 < fraction < 1.001:
        raise trial.failure(
            f"a target network {name!r} that moves toward what it is a copy of",
            f"it moved by {fraction:.3g} of the way to it, and by {aside:.2g} of its step aside",
            "target = (1 - tau) * target + tau * network, for each with its own",
            *_FOLLOWING,
        )
    return fraction


def _require_rate(trial: Trial, name: str, shares: list[float]) -> None:
    """Targets move as fast as the option for it says, at a constant rate; not while it rises."""
    *_, early, late = (0.0, *shares)
    if late > 0.999 or abs(early - late) > 0.002 * late:
        return
    for option, is_kept in _RATES.items():
        value = trial.option(option)
        if isinstance(value, float) and 0 < value < 1:
            expected = 1 - value if is_kept else value
            if abs(late - expected) > 0.2 * expected:
                looked_for = f"steps of {expected:.3g} of the way for {option} = {value}"
                found = f"{name!r} moves by {late:.3g} of the way"
                raise trial.failure(looked_for, found, "", *_FOLLOWING)


@check("algorithm")
def targets_are_used(subject: Subject) -> None:
    """The values of next states come from target networks: other weights there, other updates."""
    for trial in needed(filter(_uses_targets, _of_all_kinds(subject)), _NO_COPY):
        copies = frozen_copies(Trial(subject, trial.case, trial.setting))
        usual = trial.after(trial.with_ends())
        for name in copies:
            _require_use(trial, name, usual)


def _of_all_kinds(subject: Subject) -> Iterator[Trial]:
    """A trial per setting, and one in each kind of action space: they choose in other ways."""
    kinds: dict[type[Any], Trial] = {}
    for trial in each_trial(subject, cases=None):
        kinds[type(trial.case.action_space)] = trial
        yield trial
    for case in subject.cases:
        if type(case.action_space) not in kinds:
            kinds[type(case.action_space)] = next(each_trial(subject, cases=[case]))
            yield kinds[type(case.action_space)]


def _uses_targets(trial: Trial) -> bool:
    return trial.has_next and bool(frozen_copies(Trial(trial.subject, trial.case, trial.setting)))


def _require_use(trial: Trial, name: str, usual: Update) -> None:
    """Raises if an update does without this target network, or its values."""
    network = _parts(trial)[name]
    random = torch.Generator().manual_seed(5)
    noise = [torch.randn(one.shape, generator=random) for one in network.parameters()]
    changes = [("read", dict(zip(network.parameters(), noise, strict=True)))]
    last = _last_layers(network)
    if last:
        higher = {part.bias: _higher(part.bias, trial.num_actions or 1) for part in last}
        changes.append(("value", higher))
    for what, change in changes:
        if not _with_change(trial, change).difference(usual, of_gradients=True):
            raise trial.failure(
                f"next states valued by the target network {name!r}",
                "the same update for other weights: nothing reads it"
                if what == "read"
                else "the same update where all its values are higher: it only chooses actions",
                "double Q-learning chooses with the trained network, the target values",
                *_VALUING,
            )
    shapes = [(part.in_features, part.out_features) for part in last]
    for layer, shape in zip(last, shapes, strict=True):
        # Twins give one value, or one for each action.
        if shapes.count(shape) > 1 and shape[1] in (1, trial.num_actions):
            _require_the_lower(trial, name, layer.bias)


def _require_the_lower(trial: Trial, name: str, bias: Any) -> None:
    low, lower, high, higher = (
        _with_change(trial, {bias: torch.full_like(bias, shift)})
        for shift in (-3.0, -3.5, 3.0, 3.5)
    )
    is_ignored = low.gradients and not low.difference(lower, of_gradients=True)
    if is_ignored and high.difference(higher, of_gradients=True):
        raise trial.failure(
            f"next states valued by the lower of the values of {name!r}",
            "by the higher one: what a lower one says makes no difference",
            "torch.minimum of both; the higher one overestimates",
            *_VALUING,
        )


def _with_change(trial: Trial, change: Mapping[Any, Tensor]) -> Update:
    """An update with other parameters, these added to them."""
    kept = [param.detach().clone() for param in change]
    with torch.no_grad():
        for param, more in change.items():
            param.add_(more.to(param.dtype))
    update = trial.after(trial.with_ends())
    with torch.no_grad():
        for param, values in zip(change, kept, strict=True):
            param.copy_(values)
    return update


def _higher(bias: Tensor, count: int) -> Tensor:
    """What to add to all values alike; for distributions, more to the outcomes further up."""
    atoms = bias.numel() // count if bias.numel() % count == 0 else bias.numel()
    if atoms == 1 or bias.numel() == 1:
        return torch.ones_like(bias)
    return torch.linspace(0.0, 3.0, atoms, dtype=bias.dtype).repeat(bias.numel() // atoms)


def _last_layers(network: nn.Module) -> list[Any]:
    """Linear layers whose outputs are no other layer's inputs: they give the network's values."""
    layers: list[Any] = [part for part in network.modules() if hasattr(part, "out_features")]
    inputs = {getattr(part, "in_features", None) for part in layers}
    last = [part for part in layers if part.out_features not in inputs]
    return [part for part in last if isinstance(getattr(part, "bias", None), nn.Parameter)]


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
                *_VALUING,
            )


def _reads_next_in_its_loss(trial: Trial) -> bool:
    following = trial.batch.get("next_observations")
    is_column = isinstance(following, Tensor) and following.is_floating_point()
    return is_column and trial.has_optimizers


def _flow(trial: Trial, batch: Batch) -> Tensor:
    """The gradient of the loss by next observations, through networks that are trained alone."""

    def cut(part: nn.Module, inputs: Any, output: Any) -> Any:
        return output.detach() if isinstance(output, Tensor) else output

    with trial.undone(), ExitStack() as hooks:
        for part in trial.module.modules():
            own = [param.requires_grad for param in part.parameters()]
            if own and not any(own):
                hooks.callback(part.register_forward_hook(cut).remove)
        prepared = trial.prepare(batch)
        following = prepared["next_observations"].clone().requires_grad_()
        loss = trial.loss(prepared.with_columns({"next_observations": following}))
        flow = None
        if loss is not None and loss.requires_grad:
            (flow,) = torch.autograd.grad(loss, following, allow_unused=True)
        return (torch.zeros_like(following) if flow is None else flow).flatten(1).abs().sum(1)


def frozen_copies(trial: Trial) -> dict[str, list[nn.Module]]:
    """Frozen submodules by name, each with the trained ones that it equals before any update."""
    parts = {name: part for name, part in _parts(trial).items() if [*part.parameters()]}
    trained = [part for part in parts.values() if all(p.requires_grad for p in part.parameters())]
    copies: dict[str, list[nn.Module]] = {}
    held: set[int] = set()
    # The largest first: layers of a copy may look like layers of other networks.
    for name, part in sorted(parts.items(), key=lambda pair: -len(_flat(pair[1]))):
        own = {id(param) for param in part.parameters()}
        # One that differs from the start is no copy: RND's fixed network, for one.
        sources = [source for source in trained if _is_copy(part, source)]
        if sources and not any(p.requires_grad for p in part.parameters()):
            copies |= {} if own & held else {name: [part, *sources]}
            held |= own
    return copies


def _is_copy(part: nn.Module, other: nn.Module) -> bool:
    own, others = dict(part.named_parameters()), dict(other.named_parameters())
    return own.keys() == others.keys() and all(torch.equal(own[name], others[name]) for name in own)


def _parts(trial: Trial) -> dict[str, nn.Module]:
    """All submodules of modules and extras by name."""
    return {
        name.removeprefix(f"{trial.module_id}."): part
        for root, module in trial.parts().items()
        for name, part in module.named_modules(prefix=root)
    }


def _flat(network: nn.Module) -> Tensor:
    return torch.cat([param.detach().double().reshape(-1) for param in network.parameters()])
