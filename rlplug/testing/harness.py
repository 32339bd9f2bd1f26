"""A learner under test with its own environments and random generators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from rlplug.batch import Batch
from rlplug.config.sections import ComputeSection
from rlplug.feeds import Work
from rlplug.hooks.calls import HookCalls
from rlplug.learner import Learner
from rlplug.learner.distributed import ProcessGroup
from rlplug.plugin import ALL_MODULES, DEFAULT_MODULE, Module
from rlplug.registry import Participant
from rlplug.seeding import forked, random_state, set_random_state
from rlplug.testing.algorithms import PolicyGradient
from rlplug.testing.cases import Case
from rlplug.testing.collector import Collector, RandomActions
from rlplug.testing.comparison import cloned, first_difference
from rlplug.testing.subject import Subject

__all__ = ["GlobalGenerators", "Harness", "changed_generators", "make_harness", "participant_of"]

Results = Mapping[str, Mapping[str, Any]]

_CPU = torch.device("cpu")


class Harness:
    """One learner with one module and one collector per case, isolated from the process.

    Checks compare two of them bit for bit, so both have to run on the same engine.
    """

    def __init__(
        self,
        algorithm: Participant,
        addons: Sequence[Participant],
        cases: Mapping[str, Case],
        *,
        seed: int = 0,
        compute: ComputeSection | None = None,
        process_group: ProcessGroup | None = None,
        note: str = "",
    ) -> None:
        """`note` is added to what plugins raise: the environment, and the options that differ."""
        self.algorithm = algorithm
        self.cases = dict(cases)
        self.seed = seed
        self.generators = GlobalGenerators(seed, note)
        self.timestep = 0
        with self.generators():
            self.calls = HookCalls(algorithm, addons)
            self.learner = Learner(
                self.calls,
                {name: (one.observation_space, one.action_space) for name, one in cases.items()},
                seed=seed,
                compute=compute or ComputeSection(device="cpu", arrays="off"),
                process_group=process_group,
                training_spaces={
                    name: one.stored.observation_space
                    for name, one in cases.items()
                    if one.stored is not None
                },
            )
            self.learner.build()
            self.collectors = {
                name: Collector(
                    one.stored or one,
                    RandomActions(one.stored.action_space)
                    if one.stored is not None
                    else self.learner.modules[name],
                    seed=seed,
                    feed=algorithm.plugin.feed(),
                    double=self.learner.dtype == torch.float64,
                )
                for name, one in self.cases.items()
            }

    @property
    def module(self) -> Module:
        """The first module, the only one as a rule."""
        return next(iter(self.learner.modules.values()))

    def collect(self, steps: int = 8) -> dict[str, Batch]:
        """The next batch of every module."""
        with self.generators():
            return {name: one.collect(steps) for name, one in self.collectors.items()}

    def update(self, batches: Batch | Mapping[str, Batch]) -> Results:
        """One update of the learner; returns its metrics."""
        by_module = {DEFAULT_MODULE: batches} if isinstance(batches, Batch) else batches
        self.timestep += sum(batch.rows for batch in by_module.values())
        with self.generators():
            return self.learner.update(by_module, timestep=self.timestep)

    def train(self, updates: int, steps: int = 8) -> list[Results]:
        """Collect a batch and update, several times."""
        results = []
        for _ in range(updates):
            batches = self.collect(steps)
            results.append(self.update(batches))
            self._tell_feeds(batches)
        return results

    def train_as_a_run(self, updates: int, steps: int = 8) -> list[Results]:
        """The same with the epochs and minibatches that the feed asks for."""
        results: list[Results] = []
        for _ in range(updates):
            with self.generators():
                works = {name: one.work(steps) for name, one in self.collectors.items()}
                batches = {name: work.batch for name, work in works.items()}
                self.timestep += sum(batch.rows for batch in batches.values())
                first = next(iter(works.values()))
                results.append(
                    self.learner.update(
                        batches,
                        timestep=self.timestep,
                        num_iters=first.num_iters,
                        minibatch_size=first.minibatch_size,
                    )
                )
            self._tell_feeds(batches)
        return results

    def _tell_feeds(self, batches: Mapping[str, Batch]) -> None:
        """Hand per-row values, such as priorities, back to the feeds."""
        for name, collector in self.collectors.items():
            rows = self.learner.rows.get(name)
            if rows:
                collector.feed.learned(Work(batches[name]), rows)

    def reseed(self, seed: int) -> None:
        """Let what is drawn from now on come from another seed."""
        self.generators.reseed(seed)
        for module_id in self.learner.modules:
            self.learner.generator(module_id).manual_seed(seed)

    def weights(self) -> dict[str, Any]:
        """A copy of all parameters and buffers of modules and extras."""
        parts: dict[str, Any] = {}
        for module_id, module in self.learner.modules.items():
            parts[module_id] = cloned(module.state_dict())
            for plugin, extra in self.learner.extra.get(module_id, {}).items():
                parts[f"{module_id}.{plugin}"] = cloned(extra.state_dict())
        return parts

    def state(self) -> dict[str, Any]:
        """A copy of the learner's state without the global generators."""
        state: dict[str, Any] = cloned(self.learner.get_state())
        state.pop("random")
        return state

    def parameters(self) -> dict[str, nn.Parameter]:
        """The parameters of modules and extras that require gradients, by name."""
        return {
            f"{module_id}.{name}" if len(self.learner.members) > 1 else name: param
            for module_id, member in self.learner.members.items()
            for name, param in member.named.items()
            if param.requires_grad
        }

    def prepare(self, batch: Batch) -> Batch:
        """The batch of the first module as `prepare_batch` returns it."""
        learner = self.learner
        name = next(iter(learner.modules))
        placed = batch.to(learner.device, learner.dtype)
        with self.generators(), torch.no_grad():
            return self.calls.prepare_batch(
                name, self.module, placed, {name: placed}, self.timestep, learner
            )

    def gradients(self, batch: Batch) -> dict[nn.Parameter, Tensor] | None:
        """The gradients of a batch, without a step; None if no plugin returns a loss."""
        return self.gradients_of(self.prepare(batch))

    def gradients_of(self, batch: Batch) -> dict[nn.Parameter, Tensor] | None:
        """The gradients of a prepared batch, without a step; None if no plugin returns a loss."""
        learner = self.learner
        prepared = {next(iter(learner.modules)): batch}
        with self.generators():
            losses = learner.compute_loss(learner.forward_train(prepared), prepared)
            return learner.compute_gradients(losses) if ALL_MODULES in losses else None


def make_harness(
    subject: Subject,
    case: Case | Mapping[str, Case] | None = None,
    *,
    seed: int = 0,
    config: Any = None,
    kind: type[Any] | None = None,
    before: Sequence[Participant] = (),
    after: Sequence[Participant] = (),
    algorithm: type[Any] = PolicyGradient,
    compute: ComputeSection | None = None,
    process_group: ProcessGroup | None = None,
) -> Harness:
    """A harness for an algorithm, or for an add-on with an algorithm of the kit.

    `before` and `after` are further add-ons, in order before and after the add-on under test.
    """
    chosen = subject.case() if case is None else case
    cases = chosen if isinstance(chosen, Mapping) else {DEFAULT_MODULE: chosen}
    own = subject.participant(config, kind)
    seed += 1_000 * subject.seed
    if subject.is_addon:
        first, addons = participant_of(algorithm), [*before, own, *after]
    else:
        first, addons = own, [*before, *after]
    return Harness(
        first,
        addons,
        cases,
        seed=seed,
        compute=compute,
        process_group=process_group,
        note=_note(subject, cases, own.config),
    )


def _note(subject: Subject, cases: Mapping[str, Case], config: Any) -> str:
    """Where a plugin is tried, and the options that are others than in most checks."""
    # Read past what records which options a plugin reads.
    usual, own = (
        {field.name: object.__getattribute__(one, field.name) for field in attrs.fields(type(one))}
        for one in (subject.config(), config)
    )
    changed = [f"{name} = {own[name]!r}" for name in usual if own.get(name) != usual[name]]
    where = "in " + " and ".join(repr(one.name) for one in cases.values())
    return f"{where} with {', '.join(changed)}" if changed else where


def participant_of(kind: type[Any]) -> Participant:
    """An instance of an algorithm or add-on class that can take part in a run."""
    return Subject.of(kind).participant()


class GlobalGenerators:
    """The global random generators of one learner: `with generators():` swaps them in."""

    def __init__(self, seed: int, note: str = "") -> None:
        self._note = note
        self.reseed(seed)

    def reseed(self, seed: int) -> None:
        """Begin anew, from another seed."""
        with forked(seed):
            self._state = random_state(_CPU)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        outside = random_state(_CPU)
        set_random_state(self._state)
        try:
            yield
        except Exception as error:
            if self._note:
                error.add_note(self._note)
            raise
        finally:
            self._state = random_state(_CPU)
            set_random_state(outside)


@contextmanager
def changed_generators() -> Iterator[list[str]]:
    """Fills the list with the names of the global generators that were drawn from or seeded."""
    before = random_state(_CPU)
    seed = torch.initial_seed()
    changed: list[str] = []
    yield changed
    after = random_state(_CPU)
    names = {"torch": "torch", "numpy": "numpy.random", "python": "random"}
    changed += [
        name
        for part, name in names.items()
        if first_difference(before[part], after[part]) is not None
    ]
    if torch.initial_seed() != seed:
        changed.append("torch.manual_seed")
    set_random_state(before)
