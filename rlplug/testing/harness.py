"""A learner under test with its own environments and random generators."""

from __future__ import annotations

import copy
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Self

import attrs
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rlplug.batch import Batch
from rlplug.config.sections import ComputeSection
from rlplug.envs import make_environments
from rlplug.errors import RequestError
from rlplug.feeds import Feed, FeedSetting, Work
from rlplug.hooks.calls import HookCalls
from rlplug.learner import Learner
from rlplug.learner.distributed import ProcessGroup
from rlplug.plugin import ALL_MODULES, DEFAULT_MODULE, Module
from rlplug.registry import Participant
from rlplug.sampling import Collector
from rlplug.seeding import forked, random_state, set_random_state
from rlplug.testing.algorithms import PolicyGradient
from rlplug.testing.cases import RUN_STEPS, Case
from rlplug.testing.comparison import cloned, first_difference
from rlplug.testing.report import own_line
from rlplug.testing.subject import Subject
from rlplug.trees import pack

__all__ = [
    "Draws",
    "Harness",
    "LockstepGroup",
    "acting",
    "changed_generators",
    "each_harness",
    "make_harness",
    "participant_of",
    "plain_attributes",
]

Results = Mapping[str, Mapping[str, Any]]

NUM_ENVS = 4
_CPU = torch.device("cpu")
_OF_TORCH = vars(nn.Module()).keys()
_PATIENCE = 200
"""Collections without a batch after which a feed counts as one that gives none."""


class Sampler:
    """Batches of one module as in a run: its collector, and the plugin's own feed."""

    def __init__(
        self, case: Case, module: Module, feed: Feed, *, seed: int, steps: int, double: bool
    ) -> None:
        environments = make_environments(case.make, NUM_ENVS, {})
        setting = FeedSetting(
            observation_space=environments.observation_space,
            action_space=environments.action_space,
            num_envs=NUM_ENVS,
            steps=RUN_STEPS,
            seed=seed,
            double=double,
            has_memory=module.initial_state(1) is not None,
        )
        self.feed = feed.open(setting)
        modules, feeds = {DEFAULT_MODULE: module}, {DEFAULT_MODULE: self.feed}
        self._collector = Collector(
            environments, modules, feeds, seed=seed, steps=steps, run_steps=RUN_STEPS
        )
        self._collector.start()
        self._steps = NUM_ENVS * steps
        self.timestep = 0

    def work(self) -> Work:
        """The first update that the feed asks for, after as many collections as it takes."""
        for _ in range(_PATIENCE):
            experience = self._collector.collect(self.timestep)
            self.timestep += self._steps
            for work in self.feed.take(experience, self.timestep):
                # What was collected is written over by the next collection.
                work.batch = Batch(cloned({name: work.batch[name] for name in work.batch}))
                return work
        raise RuntimeError(f"the feed gave no batch in {self.timestep:,} steps")


class Harness:
    """One learner with one module and one sampler per case, isolated from the process.

    Checks compare two of them bit for bit, so both have to run on the same engine.
    """

    def __init__(
        self,
        algorithm: Participant,
        addons: Sequence[Participant],
        cases: Mapping[str, Case],
        *,
        seed: int = 0,
        sampling_seed: int | None = None,
        steps: int = 8,
        compute: ComputeSection | None = None,
        process_group: ProcessGroup | None = None,
        note: str = "",
    ) -> None:
        """`steps` of each environment make a collection; `note` says what is tried, in messages."""
        self.note, self.seed = note, seed
        self.case = next(iter(cases.values()))
        self.config = algorithm.config
        self.generators = _GlobalGenerators(seed, note)
        self.timestep = 0
        with self.generators():
            self.calls = HookCalls(algorithm, addons)
            self.learner = Learner(
                self.calls,
                {name: (one.observation_space, one.action_space) for name, one in cases.items()},
                seed=seed,
                compute=compute or ComputeSection(device="cpu", arrays="off"),
                process_group=process_group,
            )
            self.learner.build()
            self.samplers = {
                name: Sampler(
                    one,
                    self.learner.modules[name],
                    algorithm.plugin.feed(),
                    seed=seed if sampling_seed is None else sampling_seed,
                    steps=steps,
                    double=self.learner.dtype == torch.float64,
                )
                for name, one in cases.items()
            }
        self.module_id = next(iter(cases))
        self.module = self.learner.modules[self.module_id]

    @property
    def evaluated(self) -> Module:
        """What evaluation uses instead of the first module."""
        return self.calls.inference_module(self.module_id, self.module, self.learner)

    @property
    def has_optimizers(self) -> bool:
        """Whether the first module learns by gradients."""
        return bool(self.learner.optimizers.of(self.module_id))

    def work(self) -> dict[str, Work]:
        """The next update that the feed of each module asks for."""
        with self.generators():
            return {name: one.work() for name, one in self.samplers.items()}

    def collect(self) -> dict[str, Batch]:
        """The next batch of every module."""
        return {name: work.batch for name, work in self.work().items()}

    def batch(self) -> Batch:
        """The next batch of the first module."""
        return next(iter(self.collect().values()))

    def update(self, batches: Batch | Mapping[str, Batch], **options: int) -> Results:
        """One update of the learner; returns its metrics."""
        by_module = {DEFAULT_MODULE: batches} if isinstance(batches, Batch) else batches
        self.timestep += sum(batch.rows for batch in by_module.values())
        with self.generators():
            return self.learner.update(by_module, timestep=self.timestep, **options)

    def train(self, updates: int, *, as_a_run: bool = False) -> list[Results]:
        """Collect and update several times; `as_a_run`: in the epochs that the feed asks for."""
        results = []
        for _ in range(updates):
            works = self.work()
            first, options = works[self.module_id], {}
            if as_a_run:
                options = {"num_iters": first.num_iters, "minibatch_size": first.minibatch_size}
            results.append(self.update({name: one.batch for name, one in works.items()}, **options))
            for name, work in works.items():
                if rows := self.learner.rows.get(name):
                    self.samplers[name].feed.learned(work, rows)
        return results

    @contextmanager
    def undone(self) -> Iterator[Self]:
        """Take back what is learned meanwhile, and what was drawn."""
        state, timestep = self.learner.get_state(), self.timestep
        generators = copy.deepcopy(self.generators)
        try:
            yield self
        finally:
            self.learner.set_state(state)
            # Target networks go by steps, dropout by chance: both are the same in the next update.
            self.timestep, self.generators = timestep, generators

    def reseed(self, seed: int) -> None:
        """Let what is drawn from now on come from another seed."""
        self.generators.reseed(seed)
        for module_id in self.learner.modules:
            self.learner.generator(module_id).manual_seed(seed)

    def parts(self) -> dict[str, nn.Module]:
        """Modules and extras by name."""
        return {
            f"{module_id}.{name}" if name else module_id: part
            for module_id, member in self.learner.members.items()
            for name, part in {"": member.module, **member.extras}.items()
        }

    def weights(self) -> dict[str, Any]:
        """A copy of all parameters and buffers of modules and extras."""
        return {name: cloned(part.state_dict()) for name, part in self.parts().items()}

    def attributes(self) -> dict[str, Any]:
        """What modules and extras keep beside parameters and buffers, as far as it is plain."""
        return {
            f"{name}.{attribute}": value
            for root, part in self.parts().items()
            for name, owner in part.named_modules(prefix=root)
            for attribute, value in plain_attributes(owner).items()
        }

    def state(self) -> dict[str, Any]:
        """A copy of the learner's state without the global generators."""
        state: dict[str, Any] = cloned(self.learner.get_state())
        state.pop("random")
        return state

    def parameters(self, plugin: str = "") -> dict[str, nn.Parameter]:
        """The parameters that require gradients by name: all, or those of one plugin."""
        return {
            f"{module_id}.{name}" if len(self.learner.members) > 1 else name: param
            for module_id, member in self.learner.members.items()
            for name, param in member.named.items()
            if param.requires_grad and plugin in ("", member.owners[name])
        }

    def prepare(self, batch: Batch) -> Batch:
        """The batch of the first module as `prepare_batch` returns it."""
        learner, name = self.learner, self.module_id
        placed = batch.to(learner.device, learner.dtype)
        with self.generators(), torch.no_grad():
            return self.calls.prepare_batch(
                name, self.module, placed, {name: placed}, self.timestep, learner
            )

    def outputs(self, prepared: Batch) -> dict[str, Any]:
        """What `forward_train` gives for a prepared batch."""
        with self.generators():
            by_module = self.learner.forward_train({self.module_id: prepared})
        return dict(by_module.get(self.module_id, {}))

    def loss(self, prepared: Batch, outputs: Mapping[str, Any] | None = None) -> Tensor | None:
        """The loss of a prepared batch; None if no plugin returns one."""
        name = self.module_id
        outputs = self.outputs(prepared) if outputs is None else outputs
        with self.generators():
            return self.learner.compute_loss({name: outputs}, {name: prepared}).get(ALL_MODULES)

    def gradients(
        self, prepared: Batch, outputs: Mapping[str, Any] | None = None
    ) -> dict[nn.Parameter, Tensor] | None:
        """The gradients of a prepared batch, without a step; None if no plugin returns a loss."""
        loss = self.loss(prepared, outputs)
        return None if loss is None else self.learner.compute_gradients({ALL_MODULES: loss})


def plain_attributes(owner: nn.Module, *, copied: bool = True) -> dict[str, Any]:
    """The numbers, texts, arrays, tensors and collections among a module's attributes."""
    attributes: dict[str, Any] = {}
    # What a class leaves out of copies it can find again.
    state: Any = owner.__getstate__()  # type: ignore[no-untyped-call] # of any object
    kept: dict[str, Any] = state if isinstance(state, dict) else vars(owner)
    for name in kept.keys() - _OF_TORCH:
        value = kept[name]
        # A generator is where it stands.
        value = getattr(getattr(value, "bit_generator", value), "state", value)
        with suppress(Exception):
            pack(value, {}, name)
            attributes[name] = copy.deepcopy(value) if copied else value
    return attributes


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
    **arguments: Any,
) -> Harness:
    """A harness for an algorithm, or for an add-on with an algorithm of the kit.

    `before` and `after` are further add-ons, in order before and after the add-on under test.
    """
    chosen = subject.case() if case is None else case
    cases = chosen if isinstance(chosen, Mapping) else {DEFAULT_MODULE: chosen}
    own = subject.participant(config, kind)
    first, addons = own, [*before, *after]
    if subject.is_addon:
        first, addons = participant_of(algorithm), [*before, own, *after]
    note = _note(subject, cases, own.config)
    return Harness(first, addons, cases, seed=seed + 1_000 * subject.seed, note=note, **arguments)


def each_harness(
    subject: Subject, *, cases: Sequence[Case] | None = None, updates: int = 0, **arguments: Any
) -> Iterator[Harness]:
    """One that has learned a little, with the defaults and with each of the author's variants.

    In each of these environments that it supports, or in the first of all.
    """
    for setting in ({}, *subject.variants):
        chosen = subject.cases if cases is None else cases
        supported = [case for case in chosen if subject.supports(case, setting)]
        for case in supported[:1] if cases is None else supported:
            harness = make_harness(subject, case, config=subject.changed(setting), **arguments)
            harness.train(updates)
            yield harness


def acting(subject: Subject) -> Sequence[Harness]:
    """Those of every environment and variant after three updates, to act with and no more."""
    known: list[Harness] = subject.__dict__.setdefault("_acting", [])
    known += [] if known else each_harness(subject, cases=subject.cases, updates=3)
    return known


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


class _GlobalGenerators:
    """The global random generators of one learner: `with generators():` swaps them in."""

    def __init__(self, seed: int, note: str) -> None:
        self._note = note
        self.reseed(seed)

    def reseed(self, seed: int) -> None:
        """Begin anew, from another seed."""
        with forked(seed):
            self._state = random_state(_CPU)

    def take(self, other: _GlobalGenerators) -> None:
        """Go on from where another one is."""
        self._state = copy.deepcopy(other._state)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        outside = random_state(_CPU)
        set_random_state(self._state)
        try:
            yield
        except Exception as error:
            error.add_note(self._note)
            raise
        finally:
            self._state = random_state(_CPU)
            set_random_state(outside)


@contextmanager
def changed_generators() -> Iterator[list[str]]:
    """Fills the list with the names of the global generators that were drawn from or seeded."""
    before, seed = random_state(_CPU), torch.initial_seed()
    changed: list[str] = []
    yield changed
    after = random_state(_CPU)
    for part, name in {"torch": "torch", "numpy": "numpy.random", "python": "random"}.items():
        if first_difference(before[part], after[part]) is not None:
            changed.append(name)
    if torch.initial_seed() != seed:
        changed.append("torch.manual_seed")
    set_random_state(before)


class Draws(TorchFunctionMode):
    """Collects the lines of a plugin that draw from torch's global generator."""

    def __init__(self, kind: type[Any]) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._kind = kind

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch, and look whether it draws."""
        before = torch.default_generator.get_state()
        answer = func(*args, **(kwargs or {}))
        if not torch.equal(before, torch.default_generator.get_state()):
            self.lines.append(own_line(traceback.extract_stack(), self._kind))
        return answer


class LockstepGroup(ProcessGroup):
    """Two learners of one run in one process, each in a thread of its own, one running at a time.

    The turn passes wherever they combine numbers: the global generators are those of one of them.
    """

    def __init__(self, first: LockstepGroup | None = None) -> None:
        super().__init__()
        self.size = 2
        self.rank = 0 if first is None else 1
        self._other = self if first is None else first
        self._turn = threading.Semaphore(1 - self.rank)
        self._given: list[Any] = []
        self._gone = False
        self.errors: list[BaseException] = []
        if first is not None:
            first._other = self

    def run(self, task: Callable[[], None]) -> threading.Thread:
        """Start the task of this learner in a thread; `errors` has what it raised."""

        def carry_out() -> None:
            with self._turn:
                try:
                    task()
                except BaseException as error:
                    self.errors.append(error)
            self._gone = True
            self._other._turn.release()

        thread = threading.Thread(target=carry_out, daemon=True)
        thread.start()
        return thread

    def gather(self, value: Any) -> list[Any]:
        """What each learner gives, in their order."""
        index, other = len(self._given), self._other
        self._given.append(value)
        if not other._gone:
            # The other one goes on before this one can.
            state = random_state(_CPU)
            other._turn.release()
            self._turn.acquire()
            set_random_state(state)
        if other.errors:
            raise other.errors[0]
        if len(other._given) <= index:
            raise RequestError(
                "one of two learners combined numbers, and the other one did not.",
                "call learner.all_reduce in every update, whatever is in the batch",
            )
        pair = [self._given[index], other._given[index]]
        return pair[::-1] if self.rank else pair

    def all_reduce(self, tensors: Sequence[Tensor], op: str = "sum") -> list[Tensor]:
        """The tensors combined over both learners."""
        if not tensors:
            return []
        pairs = zip(*self.gather([one.detach().clone() for one in tensors]), strict=True)
        both = [torch.stack(pair) for pair in pairs]
        if op == "max":
            return [one.amax(0) for one in both]
        totals = [one.sum(0) for one in both]
        return [one / self.size for one in totals] if op == "mean" else totals
