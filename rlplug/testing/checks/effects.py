"""The check that every option changes something that a person could notice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, get_origin, get_type_hints

import attrs
import numpy
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rlplug.errors import RlplugError
from rlplug.plugin import ActInput, Module
from rlplug.testing.algorithms import PolicyGradient, QLearning
from rlplug.testing.cases import CASES, Case
from rlplug.testing.checks.options import recording
from rlplug.testing.collector import RUN_STEPS, first_observations, to_array
from rlplug.testing.comparison import digest, leaves_of
from rlplug.testing.harness import make_harness
from rlplug.testing.report import CheckFailed, DoesNotApply, as_failure, location
from rlplug.testing.subject import Subject

__all__ = [
    "FirstFeatures",
    "acting_inputs",
    "check_every_option_has_an_effect",
    "check_networks_follow_their_options",
    "check_schedules_are_followed",
    "fingerprint",
]

UPDATES = 5
_MOMENTS = (0, RUN_STEPS // 20, RUN_STEPS // 4, RUN_STEPS // 2, RUN_STEPS)
"""Steps of a run at which acting is compared."""


class FirstFeatures(nn.Module):
    """An encoder to be named by an option `encoder`: a linear layer on flat observations."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        super().__init__()
        self.out_features = 6
        self.linear = nn.Linear(spaces.flatdim(space), self.out_features)

    def forward(self, observations: Tensor) -> Tensor:
        """The features of each row."""
        return torch.tanh(self.linear(observations.flatten(1).to(self.linear.weight.dtype)))


_CHOICES = {"encoder": f"{FirstFeatures.__module__}:{FirstFeatures.__name__}"}
"""Other values of options whose type does not tell them."""


def check_every_option_has_an_effect(subject: Subject) -> None:
    """A change of any option changes the feed, the updates, or how modules act."""
    settings: set[Any] = set()
    idle = []
    untested = subject.kind.untested_options
    for field in attrs.fields(subject.kind.Config):
        if field.name in untested:
            continue
        others = [one for one in _others(subject, field.name) if subject.accepts_any(one)]
        if others and not _has_effect(subject, field.name, others, settings):
            idle.append(field.name)
    if idle:
        names = ", ".join(map(repr, idle))
        raise CheckFailed(
            "another feed, other weights or other actions for another value of each option",
            f"the same ones whatever {names} {'is' if len(idle) == 1 else 'are'}, "
            f"in {len(settings)} settings",
            f"{location(subject.kind.Config)}: follow {idle[0]!r} to where it is used; if it "
            "matters only beside other options, name them in `variants`; if no environment of the "
            "kit can show it, name it in `untested_options`",
        )


def check_networks_follow_their_options(subject: Subject) -> None:
    """An option for a kind of layer, `activation` or `encoder`, holds for each of its networks."""
    applies = False
    known = {field.name for field in attrs.fields(subject.kind.Config)}
    for name in sorted(known & {"activation", "encoder"} - set(subject.kind.untested_options)):
        case = subject.case(lambda one: isinstance(one.observation_space, spaces.Box), "no Box")
        usual = _layers(subject, subject.config(), case)
        for change in _others(subject, name)[:1]:
            changed = _layers(subject, subject.config(**change), case)
            replaced = {
                usual[network][path]
                for network in usual.keys() & changed.keys()
                for path in usual[network].keys() & changed[network].keys()
                if usual[network][path] is not changed[network][path]
            }
            for network, layers in changed.items():
                applies = applies or bool(replaced)
                kept = replaced.intersection(layers.values())
                if kept and layers == usual.get(network):
                    raise CheckFailed(
                        f"{change[name]!r} for {name} in every network",
                        f"{network!r} still has {', '.join(one.__name__ for one in kept)}, which "
                        "other networks have no more",
                        f"{location(subject.kind, 'build')}: hand {name!r} on to it; if it is not "
                        "meant for all networks, name it in `untested_options`",
                    )
    if not applies:
        raise DoesNotApply("it has no option activation or encoder")


def _layers(subject: Subject, config: Any, case: Case) -> dict[str, dict[str, type[nn.Module]]]:
    """The class of each layer, by the networks of the module and the path in it."""
    module = make_harness(subject, case, config=config).module
    return {
        name: {path: type(layer) for path, layer in network.named_modules()}
        for name, network in module.named_children()
    }


def check_schedules_are_followed(subject: Subject) -> None:
    """An option given as `[[step, value], …]` has an effect that changes with the steps."""
    applies = False
    for field in attrs.fields(subject.kind.Config):
        found = _effect(subject, field.name) if field.metadata.get("schedulable") else None
        if found is None:
            continue
        applies = True
        (setting, case, algorithm), change = found
        first = getattr(subject.changed(setting), field.name)
        scheduled = {field.name: [[0, first], [1, change[field.name]]]}
        hint = (
            f"read {field.name!r} of the hook's argument `config`, each time: self.config has the "
            "schedule; an optimizer follows `lr=config.NAME` itself, but no number computed from it"
        )
        try:
            tried = fingerprint(subject, {**setting, **scheduled}, case, algorithm).digest
        except Exception as error:
            failure = as_failure(error, f"a run with {scheduled}", subject.kind)
            raise CheckFailed(
                failure.looked_for, failure.found, f"{failure.look_at}: {hint}"
            ) from error
        if tried == fingerprint(subject, setting, case, algorithm).digest:
            raise CheckFailed(
                f"other weights or actions for {field.name} = {scheduled[field.name]} than for "
                f"{first!r}",
                "the same ones",
                f"{location(subject.kind.Config)}: {hint}",
            )
    if not applies:
        raise DoesNotApply("it has no option with schedulable=True")


@attrs.frozen
class Fingerprint:
    """What a few updates with some options lead to."""

    digest: str
    """Of feed, weights and actions; empty if the options are refused, or "not supported"."""
    read: frozenset[str] = frozenset()
    """The options that were read: others have no effect beside these."""

    @property
    def is_of_updates(self) -> bool:
        """Whether there were any updates."""
        return self.digest not in ("", "not supported")


def fingerprint(
    subject: Subject, changes: Mapping[str, Any], case: Case, algorithm: type[Any] = PolicyGradient
) -> Fingerprint:
    """What a few updates with these options lead to, computed once per subject.

    Single numbers in buffers are left out: an option that is only stored there changes nothing.
    """
    known: dict[Any, Fingerprint] = subject.__dict__.setdefault("_fingerprints", {})
    key = (repr(sorted(changes.items())), case, algorithm)
    if key not in known:
        read: set[str] = set()
        known[key] = Fingerprint(_digest(subject, changes, case, algorithm, read), frozenset(read))
    return known[key]


def _digest(
    subject: Subject,
    changes: Mapping[str, Any],
    case: Case,
    algorithm: type[Any],
    read: set[str],
) -> str:
    soon = {"target_update_interval": 3}
    changes = {**(soon if subject.accepts({**soon, **changes}) else {}), **changes}
    config = subject.changed(changes, recording(subject.kind.Config, read))
    if config is None:
        return ""
    plugin = subject.kind(config)
    if not subject.is_addon and plugin.supports(case.observation_space, case.action_space):
        return "not supported"
    try:
        harness = make_harness(subject, case, config=config, algorithm=algorithm)
        early = _acting(harness.module, case)
        if subject.is_bandit:
            harness.train_as_a_run(4 * UPDATES, steps=1)
            # Single rows may be learned another way than several at once.
            batch = harness.collect(1)["default"]
            for row in range(batch.rows):
                harness.update(batch.select(slice(row, row + 1)))
        else:
            harness.train_as_a_run(UPDATES)
    except RlplugError:
        return ""
    weights = {
        path: value
        for path, value in leaves_of(harness.weights())
        if getattr(value, "ndim", 0) and getattr(value, "numel", lambda: 2)() > 1
    }
    learner = harness.learner
    chosen = harness.calls.inference_module(next(iter(learner.modules)), harness.module, learner)
    return digest(
        {
            "feed": "" if subject.is_addon else repr(plugin.feed()),
            "weights": weights,
            "rows": dict(learner.rows.get("default", {})),
            "early": early,
            "late": _acting(chosen, case),
        }
    )


def acting_inputs(module: Module, case: Case, n: int, *, seed: int = 0) -> Iterator[ActInput]:
    """The same n observations at several moments of a run, with fresh generators."""
    for timestep in _MOMENTS:
        stack, mask = first_observations(case, n, seed)
        random = numpy.random.default_rng(seed)
        yield ActInput(stack, mask, module.initial_state(n), timestep, random, RUN_STEPS)


def _acting(module: Module, case: Case) -> dict[str, Any]:
    """The actions of both methods at several moments."""
    return {
        f"{method} {act.timestep}": to_array(getattr(module, method)(act).actions)
        for method in ("forward_exploration", "forward_inference")
        for act in acting_inputs(module, case, 16)
    }


def _has_effect(
    subject: Subject, name: str, others: list[dict[str, Any]], settings: set[Any]
) -> bool:
    tried = False
    for setting, case, algorithm in _contexts(subject, name):
        for change in others if not setting else others[:2]:
            if change.items() <= setting.items() or not subject.accepts({**setting, **change}):
                continue
            settings.add((tuple(setting.items()), case.name, algorithm))
            base = fingerprint(subject, setting, case, algorithm)
            if not base.is_of_updates:
                break
            tried = True
            if name not in base.read:
                break
            changed = fingerprint(subject, {**setting, **change}, case, algorithm)
            if changed.digest not in ("", base.digest):
                return True
    return not tried or any(_supports_other_spaces(subject, change) for change in others)


def _effect(
    subject: Subject, name: str
) -> tuple[tuple[Mapping[str, Any], Case, type[Any]], dict[str, Any]] | None:
    """Where another value of an option has an effect, and that value; None if nowhere."""
    for context in _contexts(subject, name):
        setting, case, algorithm = context
        if name in setting:
            continue
        base = fingerprint(subject, setting, case, algorithm)
        if not base.is_of_updates or name not in base.read:
            continue
        for change in _others(subject, name)[:2]:
            changed = fingerprint(subject, {**setting, **change}, case, algorithm)
            if changed.digest not in ("", base.digest):
                return context, change
    return None


def _supports_other_spaces(subject: Subject, change: Mapping[str, Any]) -> bool:
    config = subject.changed(change)
    if config is None or subject.is_addon:
        return False
    usual, other = subject.kind(subject.config()), subject.kind(config)
    return any(
        usual.supports(case.observation_space, case.action_space)
        != other.supports(case.observation_space, case.action_space)
        for case in CASES
        if case.one_step == subject.is_bandit
    )


def _contexts(subject: Subject, name: str) -> Iterator[tuple[Mapping[str, Any], Case, type[Any]]]:
    """Settings and environments to look for an effect in, the most likely ones first."""
    cases: dict[Any, Case] = {}
    for case in subject.cases:
        cases.setdefault((type(case.action_space), case.masked), case)
    first, *later = cases.values()
    words = set(name.split("_"))

    def likely(setting: Mapping[str, Any]) -> int:
        return -len(words & {word for option in setting for word in option.split("_")})

    settings = sorted([*subject.settings[1:], *subject.enabled], key=likely)
    yield {}, first, PolicyGradient
    if subject.is_addon:
        yield {}, first, QLearning
    yield from ((setting, first, PolicyGradient) for setting in settings if likely(setting))
    yield from (({}, case, PolicyGradient) for case in later)
    yield from ((setting, first, PolicyGradient) for setting in settings if not likely(setting))
    yield from ((setting, case, PolicyGradient) for setting, case in product(settings, later))


def _others(subject: Subject, name: str) -> list[dict[str, Any]]:
    """Other values of an option, by its type."""
    value = getattr(subject.config(), name)
    declared = get_type_hints(subject.kind.Config)[name]
    values: list[Any] = []
    if isinstance(value, bool):
        values = [not value]
    elif isinstance(value, float):
        nearby = [value * 0.5, value * 3] if value else [0.1, 0.001]
        values = [*nearby, 0.1, 1.0, 0.9, 0.0, value + 5.0]
    elif isinstance(value, int):
        values = [value + 1, value // 2, 1, value * 4, 0, 4 * RUN_STEPS]
    elif isinstance(value, tuple) and value and all(isinstance(one, int) for one in value):
        values = [(*value, 8), (8,)]
    elif get_origin(declared) is not None:
        values = [one[name] for one in subject.switches if name in one]
    elif name in _CHOICES and isinstance(value, str):
        values = [_CHOICES[name]]
    differing = [one for one in values if one != value]
    return [{name: one} for one in differing]
