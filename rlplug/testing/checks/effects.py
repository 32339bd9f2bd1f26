"""Checks that every option changes something that a person could notice."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import product
from types import FrameType
from typing import Any, get_origin, get_type_hints

import attrs
from gymnasium import spaces
from torch import Tensor, nn, tanh

from rlplug.errors import RlplugError
from rlplug.plugin import Module
from rlplug.testing.algorithms import PolicyGradient, QLearning
from rlplug.testing.cases import CASES, RUN_STEPS, Case, act_input
from rlplug.testing.check import check
from rlplug.testing.comparison import digest, leaves_of, to_array
from rlplug.testing.report import as_failure
from rlplug.testing.subject import Subject
from rlplug.testing.trial import Trial, needed

_MOMENTS = (0, RUN_STEPS // 20, RUN_STEPS // 4, RUN_STEPS // 2, RUN_STEPS)
"""Steps of a run at which acting is compared."""

_OF_OPTIONS = ("__attrs_post_init__", "__init__", "__eq__", "__repr__")

Context = tuple[Mapping[str, Any], tuple[Case, type[Any]]]
"""A setting; an environment and, for add-ons, an algorithm of the kit."""


class FirstFeatures(nn.Module):
    """An encoder to be named by an option `encoder`: a linear layer on flat observations."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        super().__init__()
        self.out_features = 6
        self.linear = nn.Linear(spaces.flatdim(space), self.out_features)

    def forward(self, observations: Tensor) -> Tensor:
        """The features of each row."""
        return tanh(self.linear(observations.flatten(1).to(self.linear.weight.dtype)))


_CHOICES = {"encoder": f"{FirstFeatures.__module__}:{FirstFeatures.__name__}"}
"""Other values of options whose type does not tell them."""


@check(tier="gold")
def every_option_has_an_effect(subject: Subject) -> None:
    """A change of any option changes the feed, the updates, or how modules act."""
    idle = []
    for name in subject.option_names:
        others = _others(subject, name)
        tries = list(_tries(subject, name, others))
        was_read = any(name in one.base.read for one in tries)
        is_untested = was_read and name in subject.kind.untested_options
        has_effect = is_untested or any(one.differs for one in tries)
        if tries and not has_effect and not _leads_to_other_spaces(subject, others):
            idle.append(repr(name) if was_read else f"{name!r} (never read)")
    if idle:
        raise subject.failure(
            "another feed, other weights or other actions for another value of each option",
            f"the same ones whatever {' and '.join(idle)} may be",
            "follow it to where it is used; if it matters only after many updates, above a "
            "threshold or beside other options, name values by which it soon does in `variants`; "
            "if no environment of the kit can show it, name it in `untested_options`",
        )


@check(tier="gold")
def schedules_are_followed(subject: Subject) -> None:
    """An option given as `[[step, value], …]` has an effect that changes with the steps."""
    fields = attrs.fields(subject.kind.Config)
    names = [field.name for field in fields if field.metadata.get("schedulable")]
    tries = (_tries(subject, name, _others(subject, name)[:2]) for name in names)
    effects = (next((one for one in several if one.differs), None) for several in tries)
    for tried in needed(filter(None, effects), "it has no option with schedulable=True"):
        ((name, value),) = tried.change.items()
        first = getattr(subject.changed(tried.setting), name)
        scheduled = {name: [[0, first], [1, value]]}
        hint = f"read {name!r} of the hook's argument `config`, each time"
        hint += "; an optimizer follows `lr=config.NAME` itself, but no number computed from it"
        looked_for = f"other weights or actions for {name} = {scheduled[name]} than for {first!r}"
        try:
            followed = fingerprint(subject, {**tried.setting, **scheduled}, *tried.place)
        except Exception as error:
            failure = as_failure(error, looked_for, subject.kind)
            raise subject.failure(looked_for, failure.found, hint) from error
        if followed.digest == tried.base.digest:
            raise subject.failure(looked_for, "the same ones", hint)


@attrs.frozen
class Fingerprint:
    """What a few updates with some options lead to."""

    digest: str
    """Of feed, weights and actions; empty if there were no updates."""
    read: frozenset[str] = frozenset()
    """The options that were read: others have no effect beside these."""


def fingerprint(
    subject: Subject, changes: Mapping[str, Any], case: Case, algorithm: type[Any] = PolicyGradient
) -> Fingerprint:
    """What a few updates with these options lead to, computed once per subject."""
    known: dict[Any, Fingerprint] = subject.__dict__.setdefault("_fingerprints", {})
    key = (repr(sorted(changes.items())), case, algorithm)
    if key not in known:
        read: set[str] = set()
        soon = {"target_update_interval": 3, **changes}
        changes = soon if subject.accepts(soon) else changes
        config = subject.changed(changes, _recording(subject.kind.Config, read))
        found = ""
        if config is not None and subject.supports(case, changes):
            with suppress(RlplugError):
                found = _digest(subject, Trial(subject, case, config=config, algorithm=algorithm))
        known[key] = Fingerprint(found, frozenset(read))
    return known[key]


def _digest(subject: Subject, trial: Trial) -> str:
    """Of feed, weights and actions.

    Single numbers in buffers are left out: an option that is only stored there changes nothing.
    """
    early = _acting(trial.module, trial.case)
    trial.train(10 if subject.is_bandit else 5, as_a_run=True)
    # Single rows may be learned another way than several at once.
    for row in range(8 if subject.is_bandit else 0):
        trial.update(trial.batch.select(slice(row, row + 1)))
    weights = {
        path: value
        for path, value in leaves_of(trial.weights())
        if isinstance(value, Tensor) and value.dim() and value.numel() > 1
    }
    feed = "" if subject.is_addon else repr(subject.kind(trial.config).feed())
    rows = dict(trial.learner.rows.get("default", {}))
    return digest([feed, weights, rows, early, _acting(trial.evaluated, trial.case)])


def _acting(module: Module, case: Case) -> list[Any]:
    """The actions of both methods at several moments."""
    return [
        to_array(getattr(module, method)(act_input(module, case, 16, at=at)).actions)
        for method in ("forward_exploration", "forward_inference")
        for at in _MOMENTS
    ]


def _recording(kind: type[Any], reads: set[str]) -> type[Any]:
    """A subclass of a `Config` whose instances add the names that plugins read to `reads`."""
    names = {field.name for field in attrs.fields(kind)}

    def read(self: Any, name: str) -> Any:
        if name in names and not _is_bookkeeping(sys._getframe(1)):
            reads.add(name)
        return object.__getattribute__(self, name)

    return type(kind.__name__, (kind,), {"__getattribute__": read, "__doc__": kind.__doc__})


def _is_bookkeeping(frame: FrameType | None) -> bool:
    """Whether the options are compared, copied or validated there, and not used."""
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if frame.f_code.co_name == "evolve" and module.startswith("attr"):
            # What is read of the copy is noted as well.
            return True
        of_options = attrs.has(type(frame.f_locals.get("self")))
        if of_options and frame.f_code.co_name in _OF_OPTIONS:
            return True
        if not module.startswith(("attr", "copy")):
            return module.startswith("rlplug.config.")
        frame = frame.f_back
    return True


@attrs.frozen
class Try:
    """Another value of an option somewhere, and what comes of it."""

    setting: Mapping[str, Any]
    place: tuple[Case, type[Any]]
    change: Mapping[str, Any]
    base: Fingerprint
    changed: Fingerprint

    @property
    def differs(self) -> bool:
        """Whether the value has an effect."""
        return self.changed.digest not in ("", self.base.digest)


def _tries(subject: Subject, name: str, others: Sequence[Mapping[str, Any]]) -> Iterator[Try]:
    """Other values of an option in every context, up to the first that have an effect."""
    for setting, place in _contexts(subject, name):
        base = fingerprint(subject, setting, *place)
        for change in others[:2] if setting else others:
            is_new = not change.items() <= setting.items()
            if not base.digest or not is_new or not subject.accepts({**setting, **change}):
                continue
            is_read = name in base.read
            changed = fingerprint(subject, {**setting, **change}, *place) if is_read else base
            tried = Try(setting, place, change, base, changed)
            yield tried
            if tried.differs:
                return
            if not is_read:
                break


def _leads_to_other_spaces(subject: Subject, others: Sequence[Mapping[str, Any]]) -> bool:
    return any(
        subject.supports(case) != subject.supports(case, change)
        for change in filter(subject.accepts, others)
        for case in CASES
    )


def _contexts(subject: Subject, name: str) -> Iterator[Context]:
    """Where to look for an effect, the most likely places first."""
    cases: dict[Any, Case] = {}
    for case in subject.cases:
        cases.setdefault((type(case.action_space), case.masked), case)
    first, *later = cases.values()
    words = set(name.split("_"))

    def shared(setting: Mapping[str, Any]) -> int:
        return len(words & {word for option in setting for word in option.split("_")})

    changed = sorted([*subject.settings, *subject.enabled], key=shared, reverse=True)
    yield {}, (first, PolicyGradient)
    if subject.is_addon:
        yield {}, (first, QLearning)
    pairs = [*product(changed, [first]), *product([{}, *changed], later)]
    yield from ((setting, (case, PolicyGradient)) for setting, case in pairs)


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
    return [{name: one} for one in values if one != value]
