"""A learner under test with its own environments and random generators, and what it does."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rlplug.batch import Batch
from rlplug.batch.nested import to_tensors, tree_map
from rlplug.config.sections import ComputeSection
from rlplug.envs import make_environments
from rlplug.errors import RequestError
from rlplug.feeds import FeedSetting, Work
from rlplug.hooks.calls import HookCalls
from rlplug.learner import Learner
from rlplug.learner.distributed import ProcessGroup
from rlplug.plugin import ALL_MODULES, DEFAULT_MODULE, Module
from rlplug.registry import Participant
from rlplug.sampling import Collector
from rlplug.seeding import forked, random_state, set_random_state
from rlplug.testing.algorithms import PolicyGradient
from rlplug.testing.cases import RUN_STEPS, Case, stack
from rlplug.testing.comparison import cloned, first_difference, plain_attributes, tensors_of
from rlplug.testing.report import CheckFailed, DoesNotApply, own_line
from rlplug.testing.subject import Subject

NUM_ENVS = 4
ROUNDING = 1e-3
"""Differences up to this fraction count as rounding."""
_CPU = torch.device("cpu")
_PATIENCE = 200
"""Collections without a batch after which a feed counts as one that gives none."""


class Trial:
    """One learner in one setting, with an environment for each module, isolated from the process.

    Checks compare two of them bit for bit, so both have to run on the same engine.
    """

    def __init__(
        self,
        subject: Subject,
        case: Case | Mapping[str, Case] | None = None,
        setting: Mapping[str, Any] | None = None,
        *,
        config: Any = None,
        kind: type[Any] | None = None,
        algorithm: type[Any] = PolicyGradient,
        before: Sequence[Participant] = (),
        after: Sequence[Participant] = (),
        seed: int = 0,
        sampling_seed: int | None = None,
        steps: int = 8,
        updates: int = 0,
        compute: ComputeSection | None = None,
        process_group: ProcessGroup | None = None,
    ) -> None:
        """By default in the first environment; an add-on with an algorithm of the kit.

        `config` or `setting`: the options, or changes of them; `before` and `after`: other add-ons;
        `steps`: those of each environment in a collection.
        """
        chosen = case or subject.case()
        cases = chosen if isinstance(chosen, Mapping) else {DEFAULT_MODULE: chosen}
        self.subject, self.setting = subject, setting or {}
        self.seed, self.timestep, self._steps = seed + 1_000 * subject.seed, 0, steps
        self.module_id, self.case = next(iter(cases.items()))
        own = subject.participant(config or subject.config(**self.setting), kind)
        first, addons = own, [*before, *after]
        if subject.is_addon:
            first, addons = Subject.of(algorithm).participant(), [*before, own, *after]
        self.config = first.config
        self.note = _note(subject, cases, own.config)
        with forked(self.seed):
            self.random = random_state(_CPU)
        with self.generators():
            self.calls = HookCalls(first, addons)
            self.learner = Learner(
                self.calls,
                {name: (one.observation_space, one.action_space) for name, one in cases.items()},
                seed=self.seed,
                compute=compute or ComputeSection(device="cpu", arrays="off"),
                process_group=process_group,
            )
            self.learner.build()
            self.module = self.learner.modules[self.module_id]
            drawn = self.seed if sampling_seed is None else sampling_seed
            self._samplers = {
                name: self._sampler(one, self.learner.modules[name], first.plugin.feed(), drawn)
                for name, one in cases.items()
            }
            self._collected = dict.fromkeys(cases, 0)
        self.train(updates)

    def _sampler(self, case: Case, module: Module, feed: Any, seed: int) -> tuple[Collector, Any]:
        """A collector and the opened feed of one module, as in a run."""
        environments = make_environments(case.make, NUM_ENVS, {})
        setting = FeedSetting(
            observation_space=environments.observation_space,
            action_space=environments.action_space,
            num_envs=NUM_ENVS,
            steps=RUN_STEPS,
            seed=seed,
            double=self.learner.dtype == torch.float64,
            has_memory=module.initial_state(1) is not None,
        )
        opened = feed.open(setting)
        modules, feeds = {DEFAULT_MODULE: module}, {DEFAULT_MODULE: opened}
        collector = Collector(
            environments, modules, feeds, seed=seed, steps=self._steps, run_steps=RUN_STEPS
        )
        collector.start()
        return collector, opened

    @cached_property
    def batch(self) -> Batch:
        """The next batch of the first module, the same one each time."""
        return self.next_batch()

    @property
    def evaluated(self) -> Module:
        """What evaluation uses instead of the first module."""
        return self.calls.inference_module(self.module_id, self.module, self.learner)

    @property
    def has_optimizers(self) -> bool:
        """Whether the first module learns by gradients."""
        return bool(self.learner.optimizers.of(self.module_id))

    @property
    def num_actions(self) -> int:
        """The number of Discrete actions; 0 for other actions."""
        return int(getattr(self.case.action_space, "n", 0))

    @property
    def of_fragments(self) -> bool:
        """Whether rows are ordered in fragments of episodes."""
        return "fragments" in self.batch

    @property
    def has_next(self) -> bool:
        """Whether the feed gives what was observed next."""
        return self.of_fragments or "next_observations" in self.batch

    def option(self, name: str, otherwise: Any = None) -> Any:
        """The value of an option."""
        return getattr(self.config, name, otherwise)

    def failure(self, looked_for: str, found: str, hint: str = "", *methods: str) -> CheckFailed:
        """The failure of a check, and where it was tried; look at methods of plugin and module."""
        wanted = f"{looked_for} {self.note}"
        return self.subject.failure(wanted, found, hint, *methods, module=type(self.module))

    @contextmanager
    def generators(self) -> Iterator[None]:
        """The global random generators are those of this learner."""
        outside = random_state(_CPU)
        set_random_state(self.random)
        try:
            yield
        except Exception as error:
            error.add_note(self.note)
            raise
        finally:
            self.random = random_state(_CPU)
            set_random_state(outside)

    def reseed(self, seed: int) -> None:
        """Let what is drawn from now on come from another seed."""
        with forked(seed):
            self.random = random_state(_CPU)
        for module_id in self.learner.modules:
            self.learner.generator(module_id).manual_seed(seed)

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Take back what is learned meanwhile, and what was drawn."""
        state, timestep, random = self.learner.get_state(), self.timestep, self.random
        try:
            yield
        finally:
            self.learner.set_state(state)
            # Target networks go by steps, dropout by chance: both are the same in the next update.
            self.timestep, self.random = timestep, random

    def work(self) -> dict[str, Work]:
        """The first update that the feed of each module asks for, after enough collections."""
        with self.generators():
            return {name: self._work_of(name) for name in self._samplers}

    def _work_of(self, name: str) -> Work:
        collector, feed = self._samplers[name]
        for _ in range(_PATIENCE):
            experience = collector.collect(self._collected[name])
            self._collected[name] += NUM_ENVS * self._steps
            for given in feed.take(experience, self._collected[name]):
                work: Work = given
                # What was collected is written over by the next collection.
                work.batch = Batch(cloned({name: work.batch[name] for name in work.batch}))
                return work
        raise RuntimeError(f"the feed gave no batch in {_PATIENCE} collections")

    def collect(self) -> dict[str, Batch]:
        """The next batch of every module."""
        return {name: work.batch for name, work in self.work().items()}

    def next_batch(self) -> Batch:
        """The next batch of the first module."""
        return self.collect()[self.module_id]

    def update(self, batches: Batch | Mapping[str, Batch], **options: int) -> Mapping[str, Any]:
        """One update of the learner; returns its metrics."""
        by_module = {DEFAULT_MODULE: batches} if isinstance(batches, Batch) else batches
        self.timestep += sum(batch.rows for batch in by_module.values())
        with self.generators():
            return self.learner.update(by_module, timestep=self.timestep, **options)

    def train(self, updates: int, *, as_a_run: bool = False) -> list[Mapping[str, Any]]:
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
                    self._samplers[name][1].learned(work, rows)
        return results

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

    def after(self, *batches: Batch) -> Update:
        """What comes of updates with these batches; they are undone."""
        with self.undone():
            start, gradients = self.weights(), self.gradients(self.prepare(batches[0]))
            for batch in batches:
                self.update(batch)
            rows = cloned(dict(self.learner.rows.get(self.module_id, {})))
            return Update(self.weights(), start, gradients, rows)

    def prepare(self, batch: Batch) -> Batch:
        """The batch as `prepare_batch` returns it; what that changes is undone."""
        name, learner = self.module_id, self.learner
        placed = batch.to(learner.device, learner.dtype)
        with self.undone(), self.generators(), torch.no_grad():
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
    ) -> dict[str, Tensor]:
        """The gradient of each parameter by its name; none if no plugin returns a loss."""
        with self.undone():
            loss = self.loss(prepared, outputs)
            if loss is None:
                return {}
            found = self.learner.compute_gradients({ALL_MODULES: loss})
            names = {param: name for name, param in self.parameters().items()}
            return {names[param]: part.clone() for param, part in found.items()}

    def gradients_of_outputs(
        self, batch: Batch, fits: Callable[[Tensor], bool]
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What `forward_train` gives, and the gradients of those of its tensors that fit."""
        found: dict[str, Tensor] = {}
        with self.undone():
            prepared = self.prepare(batch)
            outputs = self.outputs(prepared)
            for name, part in outputs.items():
                if isinstance(part, Tensor) and part.requires_grad and fits(part):
                    # Of several losses, each has a gradient.
                    def add(grad: Tensor, name: str = name) -> None:
                        found[name] = found.get(name, 0) + grad

                    part.register_hook(add)  # type: ignore[no-untyped-call] # in torch
            self.gradients(prepared, outputs)
        return outputs, found

    def expect_repeatable(self, batch: Batch) -> Update:
        """The update, which must be the same for the same state and batch."""
        first, second = self.after(batch), self.after(batch)
        if difference := first_difference(first.weights, second.weights):
            raise self.failure(
                "the same update from the same state, restored with set_state",
                f"two differ: {difference}",
                "something that the update reads and changes is not saved; keep it in a buffer, "
                "or in save_state and load_state",
                *("save_state", "build", "build_extra", "__init__"),
            )
        return first

    def ends(self) -> Tensor:
        """Rows whose end of episode may be set: the last of each fragment, or every other one."""
        marked = torch.zeros(self.batch.rows, dtype=torch.bool)
        if self.of_fragments:
            marked[self.batch["fragments"][:, 1] - 1] = True
        else:
            marked[::2] = True
        return marked

    def with_ends(self, *, terminated: bool = False, truncated: bool = False) -> Batch:
        """The batch with those rows marked like this, and no others."""
        marked = self.ends()
        columns = {"terminated": marked & terminated, "truncated": marked & truncated}
        if "continued" in self.batch:
            columns["continued"] = torch.zeros_like(self.batch["continued"])
        return self.batch.with_columns(columns)

    def with_other_next(self, batch: Batch) -> Batch:
        """The batch with other observations after the rows of `ends`."""
        rows = self.ends().nonzero()[:, 0]
        space = self.case.observation_space
        space.seed(11)
        samples = to_tensors(stack(space, [space.sample() for _ in rows]))
        name = "final_observations" if self.of_fragments else "next_observations"
        at = slice(None) if self.of_fragments else rows

        def put(old: Tensor, new: Tensor) -> Tensor:
            column = old.clone()
            column[at] = new.to(old.dtype)
            return column

        return batch.with_columns({name: tree_map(put, batch[name], samples)})


@attrs.frozen
class Update:
    """What came of one update."""

    weights: Mapping[str, Any]
    """Parameters and buffers of modules and extras afterwards."""
    start: Mapping[str, Any]
    """The same before it."""
    gradients: Mapping[str, Tensor]
    """The gradient of each parameter, where a plugin returns a loss."""
    rows: Mapping[str, Tensor]
    """Per-row values of the loss."""

    def difference(self, other: Update, *, of_gradients: bool = False) -> str | None:
        """Where they differ by more than rounding; None if nowhere.

        Gradients are compared where there are any: Adam makes much of rounding.
        """
        for name, gradient in self.gradients.items():
            error = _relative(gradient, other.gradients[name], torch.zeros_like(gradient))
            if error > ROUNDING:
                return f"the gradient of {name!r} differs by {error:.2g} of its size"
        starts, others = tensors_of(self.start), tensors_of(other.weights)
        for path, value in tensors_of({} if of_gradients else self.weights).items():
            if path.partition(".")[2] in self.gradients:
                continue
            if value.shape != others[path].shape:
                return f"{path} is {tuple(value.shape)} and {tuple(others[path].shape)}"
            error = _relative(value, others[path], starts[path])
            if error > ROUNDING:
                return f"{path} differs by {error:.2g} of its change"
        return None


def _relative(left: Tensor, right: Tensor, start: Tensor) -> float:
    """The distance of two tensors relative to how far they are from where they started."""
    left, right, start = left.double(), right.double(), start.double()
    size = max(float((left - start).norm()), float((right - start).norm()))
    distance = float((left - right).norm())
    return distance / size if distance > 1e-9 else 0.0


def needed(items: Iterable[Any], reason: str) -> Iterator[Any]:
    """These items; if there are none, a check does not apply, for this reason."""
    applies = False
    for item in items:
        applies = True
        yield item
    if not applies:
        raise DoesNotApply(reason)


def each_trial(
    subject: Subject,
    applies: Callable[[Trial], Any] = lambda trial: True,
    reason: str = "",
    *,
    cases: Sequence[Case] | None = None,
) -> Iterator[Trial]:
    """A learner after a few updates, per setting, of those to which a check applies.

    Each in the first environment that it supports. Raises `DoesNotApply` for the reason after the
    last one if there was none.
    """
    known: dict[Any, Trial] = subject.__dict__.setdefault("_trials", {})

    def trial_of(setting: Mapping[str, Any], case: Case) -> Trial:
        # Whatever is tried is undone: a trial serves all checks.
        key = repr(setting), case
        if key not in known:
            known[key] = Trial(subject, case, setting, steps=6, updates=3)
            for part in filter(normalizes, known[key].module.modules()):
                # Through statistics of a batch, each row would depend on all others.
                part.register_forward_pre_hook(_without_statistics)
        return known[key]

    places = subject.places(subject.worth_training, cases)
    return needed(filter(applies, (trial_of(*place) for place in places)), reason)


def acting(subject: Subject) -> Sequence[Trial]:
    """Those of every environment and variant after three updates, to act with and no more."""
    if "_acting" not in subject.__dict__:
        places = subject.places(every_case=True)
        trials = [Trial(subject, case, setting, updates=3) for setting, case in places]
        subject.__dict__["_acting"] = trials
    known: Sequence[Trial] = subject.__dict__["_acting"]
    return known


def normalizes(part: nn.Module) -> bool:
    """Whether a layer keeps running means, as batch norm does: it may mix the rows of a batch."""
    names = [name for name, _ in part.named_buffers(recurse=False)]
    return not [*part.children()] and any("mean" in name for name in names)


def _without_statistics(layer: nn.Module, arguments: Any) -> None:
    layer.training = False


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
