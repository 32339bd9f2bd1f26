"""What each of several learners, or runners, has of a run: an equal share of its environments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs

from rlplug.envs import Environments, EnvMaker
from rlplug.errors import RequestError, RlplugError
from rlplug.feeds import OpenFeed
from rlplug.feeds.feed import share
from rlplug.runs.prepare import Prepared

__all__ = ["refuse_unfit", "refuse_unshared", "shared"]

_COUNTS = ("num_envs", "num_workers", "num_epoch_samples", "min_batch_size", "max_batch_size")
"""Options of `[sampling]` that count for the whole run."""


def shared(prepared: Prepared, count: int, among: str = "learners") -> Prepared:
    """The run as one of its learners, or runners, carries it out."""
    sampling, scale = prepared.config.sampling, prepared.config.scale
    own: dict[str, Any] = {}
    for name in _COUNTS:
        value, default = getattr(sampling, name), attrs.fields_dict(type(sampling))[name].default
        if name == "num_envs" or value != default:
            own[name] = share(value, count, f"sampling.{name}", among)
    if sampling.backend == "workers" and not sampling.num_workers and not sampling.envs_per_worker:
        own["num_workers"] = max(min(sampling.workers // count, own["num_envs"]), 1)
    changed = {"sampling": own}
    if among == "learners" and scale.engine == "ray":
        changed["scale"] = {"runners": share(scale.runners, count, "scale.runners", among)}
        if not scale.learner_gpus and prepared.config.compute.device == "auto":
            # Other learners see no GPU: the one with this process's does what they do.
            changed["compute"] = {"device": "cpu"}
    return prepared.with_options(origin="", **changed)


def refuse_unfit(prepared: Prepared, maker: EnvMaker, *, rerunnable: bool) -> None:
    """Refuse what several learners, or runners, cannot share, all at once."""
    scale = prepared.config.scale
    among = "runners" if scale.engine == "ray" else "learners"
    count: int = getattr(scale, among)
    problems = list(_unfit(prepared, maker, count, among, rerunnable=rerunnable))
    if problems:
        *first, (message, hint) = problems
        lines = "\n".join([*(f"{said}\n  {advice}" for said, advice in first), message])
        who = f"{count} {among if count > 1 else among[:-1]}"
        raise RequestError(f"a run with {who}: {lines}", hint)


def _unfit(
    prepared: Prepared, maker: EnvMaker, count: int, among: str, *, rerunnable: bool
) -> Iterator[tuple[str, str]]:
    """What is wrong, and what to try."""
    config = prepared.config
    scale, sampling = config.scale, config.sampling
    if not rerunnable or not isinstance(maker, str):
        what = "the environment, a callable," if not isinstance(maker, str) else "a plugin"
        yield (
            f"{what} was given as an object of this process: other processes cannot make it.",
            "try: rlplug plugins new NAME for a plugin that is installed, an id or "
            "'package.module:function' for an environment",
        )
    if config.data.is_used:
        yield "a log is read by one process alone.", "try: --data without [scale]"
    if sampling.record:
        yield f"experience of {among} cannot be recorded.", "try: without --save-episodes"
    if sampling.min_trajectory_length > 1:
        yield (
            f"sampling.min_trajectory_length would leave {among} without rows.",
            "try: --set sampling.min_trajectory_length=1",
        )
    shares: list[Callable[[], object]] = [lambda: shared(prepared, count, among)]
    if among == "runners" and scale.learners > 1:
        shares.append(lambda: share(count, scale.learners, "scale.runners"))
    for divide in shares:
        try:
            divide()
        except RlplugError as error:
            yield str(error).partition("\n")[0], error.hints[0]
    if among == "runners" and scale.learners > 1 and not scale.learner_gpus:
        device = config.compute.device
        if device.startswith("cuda"):
            yield (
                f"compute.device = {device!r}, but scale.learner_gpus = 0.",
                "try: --set scale.learner_gpus=1 --set compute.device=auto",
            )
    number = scale.envs_per_runner * count
    if number and number != sampling.num_envs:
        yield (
            f"scale.runners × envs_per_runner = {number} is not sampling.num_envs = "
            f"{sampling.num_envs}.",
            f"try: --set sampling.num_envs={number}",
        )


def refuse_unshared(environments: Environments, feed: OpenFeed, learners: int) -> None:
    """Refuse environments whose share depends on what happens in them."""
    if environments.device is not None:
        why, hint = "gives tensors, whose statistics are of one process", "scale.learners=1"
    elif environments.autoreset.value == "NextStep" and feed.steps_per_collect == 1:
        why = "resets in steps of their own, in which a learner has nothing to learn from"
        hint = "sampling.vectorization=sync"
    else:
        return
    raise RequestError(
        f"a run with {learners} learners: environment {environments.name!r} {why}.",
        f"try: --set {hint}",
    )
