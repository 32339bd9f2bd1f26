"""Checks that an algorithm learns, in environments with known solutions."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import gymnasium
import numpy
import torch
from torch import Tensor

from rlplug.batch import Batch
from rlplug.config.toml import plain
from rlplug.feeds import Logged
from rlplug.plugin import ActInput, Module
from rlplug.testing.cases import Case
from rlplug.testing.collector import Collector, to_array
from rlplug.testing.harness import Harness, make_harness
from rlplug.testing.probes import AbsentBestArm, Answer, Probe, TMaze
from rlplug.testing.report import CheckFailed, DoesNotApply, location
from rlplug.testing.subject import Subject

__all__ = ["check_finds_the_best_arm_that_is_present", "check_remembers_the_sign", "solves"]

NUM_ENVS = 8
VALUES = ("values", "q_values")
"""Outputs of `forward_train` that are read as the values of states or actions."""


def solves(probe: Probe) -> Callable[[Subject], None]:
    """The check that an algorithm learns the actions and values of a probe."""

    def check(subject: Subject) -> None:
        """Train, then compare with the answers."""
        _require_support(subject, probe.make, one_step=probe.one_step)
        config = _config(subject, probe)
        answers = probe.answers(probe.gamma)
        if not probe.for_memory and _is_recurrent(_harness(subject, probe).module):
            raise DoesNotApply("a recurrent state never reaches what lies beyond the time limit")
        if all(answer.action is None for answer in answers):
            _require_values(subject, probe)
        module = _train(subject, probe.make, steps=probe.steps, config=config)
        largest = max((abs(answer.value or 0.0) for answer in answers), default=1.0)
        for answer in answers:
            # Recurrent states belong to histories: only the first observation has none.
            if answer.start or not _is_recurrent(module):
                _compare(subject, probe, module, answer, probe.tolerance * max(largest, 1.0))

    check.__doc__ = f"Solves the probe {probe.name.replace('_', ' ')}."
    return check


def check_finds_the_best_arm_that_is_present(subject: Subject) -> None:
    """It chooses the best arm among those that the action mask allows."""
    _require_support(subject, AbsentBestArm, one_step=True)
    module = _train(subject, AbsentBestArm, steps=6_000)
    rounds = [AbsentBestArm().reset(seed=index)[0] for index in range(50)]
    stacked = {name: numpy.stack([one[name] for one in rounds]) for name in rounds[0]}
    act = ActInput(stacked, stacked["action_mask"], random=numpy.random.default_rng(0))
    chosen = to_array(module.forward_inference(act).actions)
    present = numpy.where(stacked["action_mask"] != 0, stacked["arms"][:, :, 0], -1.0)
    right = float((chosen == present.argmax(1)).mean())
    if right < 0.9:
        raise CheckFailed(
            "the better of the two arms that are present, in 9 of 10 rounds",
            f"it in {right:.0%} of 50 rounds",
            location(type(module), "forward_inference") + ": masks, or features of the chosen arm",
        )


def check_remembers_the_sign(subject: Subject) -> None:
    """A recurrent module solves a T-maze, whose start shows which way to turn at the end."""
    case = Case(name="t-maze", make=TMaze)
    _require_support(subject, TMaze, one_step=False)
    if not _is_recurrent(make_harness(subject, case).module):
        raise DoesNotApply("its module is not recurrent: initial_state returns None")
    means = []
    # Training sometimes gets stuck in one direction; without memory every seed fails.
    for seed in range(3):
        module = _train(subject, TMaze, steps=8_000, seed=seed)
        collector = Collector(case, module, seed=1, num_envs=16)
        collector.collect(40, greedy=True)
        earned = [reward for reward in collector.rewards if reward]
        means.append(sum(earned) / len(earned))
        if means[-1] >= 0.8:
            return
    raise CheckFailed(
        "a mean return of nearly 1 in the T-maze, with one of three seeds",
        f"{', '.join(f'{mean:.2f}' for mean in means)}; 0 is what forgetting earns",
        location(type(module), "initial_state", "forward_exploration")
        + ": Acted.state, and the state's way into forward_train",
    )


def _require_support(subject: Subject, make: Callable[[], Any], *, one_step: bool) -> None:
    plugin = subject.participant().plugin
    environment = make()
    reason = plugin.supports(environment.observation_space, environment.action_space)
    if reason is None and isinstance(plugin.feed(), Logged):
        reason = "it learns from logs, not from environments"
    if reason is None and subject.is_bandit and not one_step:
        reason = "it is for bandits, whose episodes have one step"
    if reason is not None:
        raise DoesNotApply(reason)


def _harness(subject: Subject, probe: Probe) -> Harness:
    case = Case(name=probe.name, make=probe.make, one_step=probe.one_step)
    return make_harness(subject, case)


def _is_recurrent(module: Module) -> bool:
    return module.initial_state(1) is not None


def _require_values(subject: Subject, probe: Probe) -> None:
    harness = _harness(subject, probe)
    batch = harness.collect(2)["default"]
    if _values(harness.module, batch.to(harness.learner.device, harness.learner.dtype)) is None:
        raise DoesNotApply(f"forward_train returns none of {', '.join(VALUES)}")


def _config(subject: Subject, probe: Probe) -> Any:
    """The options with the probe's gamma."""
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
    where = location(subject.kind, "prepare_batch", "compute_loss_for_module", "additional_update")
    if answer.action is not None:
        random = numpy.random.default_rng(0)
        act = ActInput(observations, mask, module.initial_state(1), 10**6, random)
        chosen = int(to_array(module.forward_inference(act).actions)[0])
        if chosen != answer.action:
            raise CheckFailed(
                f"{looked_for}: action {answer.action}",
                f"action {chosen} after {probe.steps:,} steps",
                f"{where}: {probe.likely_cause}",
            )
    if answer.value is not None:
        found = _values(module, _batch_of(module, observations, mask))
        value = answer.value if found is None else float(found[0])
        if not abs(value - answer.value) <= tolerance:
            raise CheckFailed(
                f"{looked_for}: value {answer.value:.4g} ± {tolerance:.2g}",
                f"value {value:.4g} after {probe.steps:,} steps",
                f"{where}: {probe.likely_cause}",
            )


def _batch_of(module: Module, observations: Any, mask: Any) -> Batch:
    """A batch of these observations, zeros in all other columns."""
    weight = next(module.parameters(), torch.zeros(()))
    rows = torch.as_tensor(observations, dtype=weight.dtype)
    n = len(observations)
    columns: dict[str, Any] = {
        "observations": rows,
        "next_observations": rows,
        "actions": torch.zeros(n, dtype=torch.int64),
        "rewards": torch.zeros(n, dtype=weight.dtype),
        "terminated": torch.zeros(n, dtype=torch.bool),
        "truncated": torch.zeros(n, dtype=torch.bool),
        "fragments": torch.tensor([[0, n]]),
        "final_observations": rows[-1:],
    }
    if mask is not None:
        columns["action_mask"] = torch.as_tensor(mask)
    return Batch(columns)


@torch.no_grad()
def _values(module: Module, batch: Batch) -> Tensor | None:
    """The values of states, if `forward_train` returns values."""
    out = module.forward_train(batch)
    if "values" in out:
        return out["values"].reshape(-1)
    if "q_values" in out:
        return out["q_values"].max(1).values
    return None


def _train(
    subject: Subject,
    make: Callable[[], gymnasium.Env[Any, Any]],
    *,
    steps: int,
    seed: int = 0,
    config: Any = None,
) -> Module:
    """The module after a run of the algorithm, as `rlplug.run` does it."""
    from rlplug.runs.run import run

    config = subject.config() if config is None else config
    options: dict[str, Any] = {f"algorithm.{name}": value for name, value in plain(config).items()}
    options |= {"sampling.num_envs": NUM_ENVS, "tracking.enabled": False, "compute.device": "cpu"}

    def environment() -> gymnasium.Env[Any, Any]:
        return make()

    with _temporary_home():
        algorithm = subject.found.name if subject.found.loaded is None else subject.kind
        result = run(algorithm, environment, steps=steps, seed=seed, options=options)
    return result.module


@contextmanager
def _temporary_home() -> Iterator[None]:
    """A temporary `RLPLUG_HOME`."""
    before = os.environ.get("RLPLUG_HOME")
    with tempfile.TemporaryDirectory(prefix="rlplug-check-") as folder:
        os.environ["RLPLUG_HOME"] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ["RLPLUG_HOME"]
            else:
                os.environ["RLPLUG_HOME"] = before
