"""What each of several learners has of a run: an equal share of its environments."""

from __future__ import annotations

from typing import Any

import attrs

from rlplug.envs import Environments, EnvMaker
from rlplug.errors import RequestError, RlplugError
from rlplug.feeds import OpenFeed
from rlplug.feeds.feed import share
from rlplug.runs.prepare import Prepared
from rlplug.seeding import derive

__all__ = ["own_seed", "problem_arguments", "refuse_unfit", "refuse_unshared", "shared"]

_COUNTS = ("num_envs", "num_workers", "num_epoch_samples", "min_batch_size", "max_batch_size")
"""Options of `[sampling]` that count for the whole run, with the values that count nothing."""


def shared(prepared: Prepared, count: int, among: str = "learners") -> Prepared:
    """The run as one of its learners, or runners, carries it out."""
    sampling = prepared.config.sampling
    own: dict[str, Any] = {}
    for name in _COUNTS:
        value, default = getattr(sampling, name), attrs.fields_dict(type(sampling))[name].default
        if name == "num_envs" or value != default:
            own[name] = share(value, count, f"sampling.{name}", among)
    if sampling.backend == "workers" and not sampling.num_workers and not sampling.envs_per_worker:
        own["num_workers"] = max(min(sampling.workers // count, own["num_envs"]), 1)
    config = attrs.evolve(prepared.config, sampling=attrs.evolve(sampling, **own))
    scale = config.scale
    if among == "learners" and scale.engine == "ray":
        runners = share(scale.runners, count, "scale.runners", among)
        config = attrs.evolve(config, scale=attrs.evolve(scale, runners=runners))
        if not scale.learner_gpus and config.compute.device == "auto":
            # Other learners see no GPU: the one with this process's does what they do.
            config = attrs.evolve(config, compute=attrs.evolve(config.compute, device="cpu"))
    return attrs.evolve(prepared, config=config)


def own_seed(seed: int, index: int) -> int:
    """The seed of all that learners do not have in common; the first one's is the run's."""
    return derive(seed, "learner", index) if index else seed


def problem_arguments(environments: Environments, seed: int) -> dict[str, Any]:
    """What gives the environments of all learners the same bandit problem; maybe nothing.

    Vectors of single environments have a problem for each, by its seed; a native one has one.
    """
    vector = environments.vector
    several = hasattr(vector, "envs") or not hasattr(vector.unwrapped, "problem_seed")
    if several:
        return {}
    # As the one process of a run without other learners draws it.
    return {"problem_seed": derive(derive(seed, "environments") % 2**31, "problem")}


def refuse_unfit(prepared: Prepared, maker: EnvMaker, *, rerunnable: bool) -> None:
    """Refuse what several learners, or runners, cannot share, all at once."""
    config = prepared.config
    scale = config.scale
    among = "runners" if scale.engine == "ray" else "learners"
    count: int = getattr(scale, among)
    problems: list[tuple[str, str]] = []
    if not rerunnable or not isinstance(maker, str):
        what = "the environment, a callable," if not isinstance(maker, str) else "a plugin"
        problems.append(
            (
                f"{what} was given as an object of this process: other processes cannot make it.",
                "try: rlplug plugins new NAME for a plugin that is installed, an id or "
                "'package.module:function' for an environment",
            )
        )
    if config.data.is_used:
        problems.append(("a log is read by one process alone.", "try: --data without [scale]"))
    if config.sampling.record:
        problems.append((f"experience of {among} cannot be recorded.", "try: without --record"))
    if config.sampling.min_trajectory_length > 1:
        problems.append(
            (
                f"sampling.min_trajectory_length would leave {among} without rows.",
                "try: --set sampling.min_trajectory_length=1",
            )
        )
    try:
        shared(prepared, count, among)
    except RlplugError as error:
        problems.append((str(error).partition("\n")[0], error.hints[0]))
    if among == "runners" and scale.learners > 1:
        try:
            share(count, scale.learners, "scale.runners")
        except RlplugError as error:
            problems.append((str(error).partition("\n")[0], error.hints[0]))
        if config.compute.device.startswith("cuda") and not scale.learner_gpus:
            problems.append(
                (
                    f"compute.device = {config.compute.device!r}, but scale.learner_gpus = 0.",
                    "try: --set scale.learner_gpus=1 --set compute.device=auto",
                )
            )
    each = scale.envs_per_runner
    if each and each * count != config.sampling.num_envs:
        problems.append(
            (
                f"scale.runners × envs_per_runner = {each * count} is not sampling.num_envs = "
                f"{config.sampling.num_envs}.",
                f"try: --set sampling.num_envs={each * count}",
            )
        )
    _raise(problems, f"{count} {among if count > 1 else among[:-1]}")


def refuse_unshared(environments: Environments, feed: OpenFeed, learners: int) -> None:
    """Refuse environments whose share depends on what happens in them."""
    problems = []
    if environments.device is not None:
        problems.append(
            (
                f"environment {environments.name!r} gives tensors, whose statistics are of one "
                "process.",
                "try: --set scale.learners=1",
            )
        )
    elif environments.autoreset.value == "NextStep" and feed.steps_per_collect == 1:
        problems.append(
            (
                f"environment {environments.name!r} resets in steps of their own, in which a "
                "learner has nothing to learn from.",
                "try: --set sampling.vectorization=sync",
            )
        )
    _raise(problems, f"{learners} learners")


def _raise(problems: list[tuple[str, str]], among: str) -> None:
    if problems:
        *first, (message, hint) = problems
        above = [f"{said}\n  {advice}" for said, advice in first]
        lines = "\n".join([*above, message])
        raise RequestError(f"a run with {among}: {lines}", hint)
