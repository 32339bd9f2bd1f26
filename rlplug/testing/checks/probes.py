"""Checks that an algorithm learns: environments with exact answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy
import torch
from torch import Tensor

from rlplug.batch import Batch
from rlplug.feeds import Stream
from rlplug.plugin import ActInput, Module
from rlplug.testing.bench import Bench, bench_of
from rlplug.testing.cases import Case
from rlplug.testing.experience import Player, as_arrays
from rlplug.testing.probes import AbsentBestArm, Answer, Probe, TMaze
from rlplug.testing.report import CheckFailed, DoesNotApply, place
from rlplug.testing.subject import Subject
from rlplug.testing.training import train

__all__ = ["check_finds_the_best_arm_that_is_present", "check_remembers_the_sign", "solves"]

VALUES = ("values", "q_values")
"""What of `forward_train` is read as values of states, or of actions in states."""


def solves(probe: Probe) -> Callable[[Subject], None]:
    """The check that an algorithm finds a probe's answers."""

    def check(subject: Subject) -> None:
        """Trains, then compares with the answers."""
        _check_can_be_played(subject, probe.make, one_step=probe.one_step)
        config = _config(subject, probe)
        answers = probe.answers(probe.gamma)
        if not probe.for_memory and _has_memory(_bench(subject, probe).module):
            raise DoesNotApply("with a memory, nothing is known of what a time limit cuts off")
        if all(answer.action is None for answer in answers):
            _check_has_values(subject, probe)
        module = train(subject, probe.make, steps=probe.steps, config=config)
        largest = max((abs(answer.value or 0.0) for answer in answers), default=1.0)
        for answer in _asked_of(module, probe, answers):
            _compare(subject, probe, module, answer, probe.tolerance * max(largest, 1.0))

    check.__doc__ = f"Solves the probe {probe.name.replace('_', ' ')}."
    return check


def check_finds_the_best_arm_that_is_present(subject: Subject) -> None:
    """Arms with features, of which the best is always absent: it takes the second."""
    _check_can_be_played(subject, AbsentBestArm, one_step=True)
    module = train(subject, AbsentBestArm, steps=6_000)
    rounds = [AbsentBestArm().reset(seed=index)[0] for index in range(50)]
    stacked = {name: numpy.stack([one[name] for one in rounds]) for name in rounds[0]}
    act = ActInput(stacked, stacked["action_mask"], random=numpy.random.default_rng(0))
    chosen = as_arrays(module.forward_inference(act).actions)
    present = numpy.where(stacked["action_mask"] != 0, stacked["arms"][:, :, 0], -1.0)
    right = float((chosen == present.argmax(1)).mean())
    if right < 0.9:
        raise CheckFailed(
            "the better of the two arms that are present, in 9 of 10 rounds",
            f"it in {right:.0%} of 50 rounds",
            place(type(module), "forward_inference") + ": masks, or features of the chosen arm",
        )


def check_remembers_the_sign(subject: Subject) -> None:
    """With memory, it turns at the junction as the sign at the start said."""
    case = Case(name="t-maze", make=TMaze)
    _check_can_be_played(subject, TMaze, one_step=False)
    if not _has_memory(bench_of(subject, case).module):
        raise DoesNotApply("its module has no memory: initial_state gives None")
    means = []
    # Now and then a memory settles on one turn for good; forgetting fails with every seed.
    for seed in range(3):
        module = train(subject, TMaze, steps=8_000, seed=seed)
        player = Player(case, module, seed=1, num_envs=16)
        player.batch(40, greedy=True)
        earned = [reward for reward in player.rewards if reward]
        means.append(sum(earned) / len(earned))
        if means[-1] >= 0.8:
            return
    raise CheckFailed(
        "a mean return of nearly 1 in the T-maze, with one of three seeds",
        f"{', '.join(f'{mean:.2f}' for mean in means)}; 0 is what forgetting earns",
        place(type(module), "initial_state", "forward_exploration")
        + ": Acted.state, and the state's way into forward_train",
    )


def _check_can_be_played(subject: Subject, make: Callable[[], Any], *, one_step: bool) -> None:
    plugin = subject.participant().plugin
    environment = make()
    reason = plugin.supports(environment.observation_space, environment.action_space)
    feed = plugin.feed()
    if reason is None and isinstance(feed, Stream) and feed.one_step_episodes and not one_step:
        reason = "it is for bandits, whose episodes have one step"
    if reason is not None:
        raise DoesNotApply(reason)


def _bench(subject: Subject, probe: Probe) -> Bench:
    case = Case(name=probe.name, make=probe.make, one_step=probe.one_step)
    return bench_of(subject, case)


def _has_memory(module: Module) -> bool:
    return module.initial_state(1) is not None


def _asked_of(module: Module, probe: Probe, answers: list[Answer]) -> list[Answer]:
    return [one for one in answers if one.start or not _has_memory(module)]


def _check_has_values(subject: Subject, probe: Probe) -> None:
    bench = _bench(subject, probe)
    batch = bench.play(2)["default"]
    if _values(bench.module, batch.to(bench.learner.device, bench.learner.dtype)) is None:
        raise DoesNotApply(f"forward_train gives none of {', '.join(VALUES)}")


def _config(subject: Subject, probe: Probe) -> Any:
    """Its options with the probe's gamma, for which the answers are."""
    if any(field.name == "gamma" for field in attrs.fields(subject.kind.Config)):
        return subject.config(gamma=probe.gamma)
    if not probe.one_step:
        raise DoesNotApply("it has no option 'gamma'")
    return subject.config()


def _compare(
    subject: Subject, probe: Probe, module: Module, answer: Answer, tolerance: float
) -> None:
    observations = numpy.array([answer.observation], numpy.float32)
    mask = None if answer.mask is None else numpy.array([answer.mask], numpy.int8)
    looked_for = f"the answer of probe {probe.name!r} at {list(answer.observation)}"
    where = place(subject.kind, "prepare_batch", "compute_loss_for_module", "additional_update")
    if answer.action is not None:
        random = numpy.random.default_rng(0)
        act = ActInput(observations, mask, module.initial_state(1), 10**6, random)
        chosen = int(as_arrays(module.forward_inference(act).actions)[0])
        if chosen != answer.action:
            raise CheckFailed(
                f"{looked_for}: action {answer.action}",
                f"action {chosen} after {probe.steps:,} steps",
                f"{where}: {probe.meaning}",
            )
    if answer.value is not None:
        found = _values(module, _asked(module, observations, mask))
        value = answer.value if found is None else float(found[0])
        if not abs(value - answer.value) <= tolerance:
            raise CheckFailed(
                f"{looked_for}: value {answer.value:.4g} ± {tolerance:.2g}",
                f"value {value:.4g} after {probe.steps:,} steps",
                f"{where}: {probe.meaning}",
            )


def _asked(module: Module, observations: Any, mask: Any) -> Batch:
    """A batch of these observations with nothing else in it that would matter."""
    weight = next(module.parameters(), torch.zeros(()))
    seen = torch.as_tensor(observations, dtype=weight.dtype)
    n = len(observations)
    columns: dict[str, Any] = {
        "observations": seen,
        "next_observations": seen,
        "actions": torch.zeros(n, dtype=torch.int64),
        "rewards": torch.zeros(n, dtype=weight.dtype),
        "terminated": torch.zeros(n, dtype=torch.bool),
        "truncated": torch.zeros(n, dtype=torch.bool),
        "fragments": torch.tensor([[0, n]]),
        "final_observations": seen[-1:],
    }
    if mask is not None:
        columns["action_mask"] = torch.as_tensor(mask)
    return Batch(columns)


@torch.no_grad()
def _values(module: Module, batch: Batch) -> Tensor | None:
    """The values of states that a module's forward pass tells, where it does."""
    out = module.forward_train(batch)
    if "values" in out:
        return out["values"].reshape(-1)
    if "q_values" in out:
        return out["q_values"].max(1).values
    return None
