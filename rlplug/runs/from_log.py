"""A run that learns from a log; an environment, if it has one, is only evaluated in."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import attrs
import numpy
from gymnasium.vector import AutoresetMode

from rlplug.checkpoint import find_checkpoint
from rlplug.checkpoint.state import SavedPolicy
from rlplug.envs import Environments, EnvMaker
from rlplug.envs.environments import SpacesOnly
from rlplug.errors import RequestError
from rlplug.feeds import Feed, OpenFeed
from rlplug.feeds.stream import OpenLogged, feed_for_log
from rlplug.learner import Learner
from rlplug.logs import Log
from rlplug.logs.encoding import Encoder
from rlplug.plugin import DEFAULT_MODULE
from rlplug.runs.prepare import Prepared
from rlplug.runs.setup import Setup
from rlplug.sampling.log import LogReader, OfflineEvaluation
from rlplug.seeding import derive
from rlplug.spaces import describe, outline
from rlplug.trainer import Sampler

__all__ = ["LogSetup"]

_LOG = logging.getLogger("rlplug")


class LogSetup(Setup):
    """A run that learns from a log."""

    def __init__(self, prepared: Prepared, maker: EnvMaker, source: Path | None) -> None:
        super().__init__(prepared, maker)
        if source is None and self.config.run.init_from:
            source = find_checkpoint(self.config.run.init_from)
        saved = None if source is None else SavedPolicy.read(source).environment.get("encoder")
        # What another policy knows counts, and columns of a log are read as that one reads them.
        self.log = Log.open(self.config.data, None if saved is None else Encoder.of(saved))
        arms = self.log.encoder.arms
        if arms and isinstance(arms[0], int):
            shown = ", ".join(map(str, arms))
            _LOG.warning(
                "rlplug: the log has no arm 0: its %d arms are %.200s. If they count from 0, set "
                "data.num_arms.",
                len(arms),
                shown,
            )

    def describe_feed(self) -> Feed:
        """The feed of the algorithm as it is for a log."""
        return feed_for_log(super().describe_feed(), self.prepared.algorithm.label)

    def environments(self, *, tensors: bool = True) -> Environments:
        """The environment to evaluate in, or the spaces of the log."""
        log = self.log
        if not self.maker:
            spaces = SpacesOnly(log.observation_space, log.action_space)
            environments = Environments(spaces, log.name, AutoresetMode.SAME_STEP)
        else:
            environments = super().environments(tensors=tensors)
        return attrs.evolve(environments, encoder=log.encoder)

    def long_episodes(self) -> str | None:
        """Why an algorithm for bandits cannot learn from the log; None if it can."""
        if self.log.is_bandit:
            return None
        return "it is for bandits, whose episodes have one step; the log has longer ones"

    def refuse_options(self, environments: Environments) -> None:
        """Refuse an environment whose spaces are not those of the log, too."""
        super().refuse_options(environments)
        log = self.log
        for what, logged, there in (
            ("observations", log.observation_space, environments.vector.single_observation_space),
            ("actions", log.action_space, environments.action_space),
        ):
            if outline(logged) != outline(there):
                raise RequestError(
                    f"the {what} of log {log.name!r} are {describe(logged)}, those of environment "
                    f"{environments.name!r} are {describe(there)}.",
                    "try: the environment that was logged, or no --env",
                )
        if environments.normalization is not None:
            raise RequestError(
                "observations and rewards of a log are not normalized.",
                "try: leave env.normalize_observation, env.normalize_reward and env.reward_clip "
                "out",
            )

    def sampler(self, environments: Environments, learner: Learner, feed: OpenFeed) -> Sampler:
        """Reads the log as the feed wants it."""
        config, data = self.config, self.config.data
        options: dict[str, Any] = {"rows": data.rows_per_update}
        if isinstance(feed, OpenLogged):
            options = {
                "rows": feed.minibatch_size,
                "pool": data.shuffle_rows,
                "wants_next": feed.wants_next,
                "n_step": feed.n_step,
                "gamma": feed.gamma,
            }
        if data.offline_evaluation != "off":
            self._refuse_evaluation()
            options["trains_on_accepted"] = data.offline_evaluation == "accepted"
            options["evaluation"] = OfflineEvaluation(
                learner.modules[DEFAULT_MODULE],
                random=numpy.random.default_rng(derive(config.run.seed, "offline evaluation")),
                # A bandit acts by its confidence bound; others explore at random.
                explores=not isinstance(feed, OpenLogged) and not config.sampling.optimal,
                max_weight=data.max_importance_weight,
                critical_weight=data.eval_model_update_critical_weight,
                learners=learner.world_size,
                reduce=learner.all_reduce,
            )
        return LogReader(self.log, steps=config.run.steps, seed=config.run.seed, **options)

    def _refuse_evaluation(self) -> None:
        """Refuse a log that the policy cannot be compared with."""
        log = self.log
        if not log.is_bandit or not log.num_arms:
            raise RequestError(
                "data.offline_evaluation compares single choices among arms; log "
                f"{log.name!r} has others.",
                "try: leave it out",
            )
        if not log.has_propensities and not self.config.data.assume_uniform:
            raise RequestError(
                f"data.offline_evaluation needs propensities, and log {log.name!r} has none.",
                "try: --set data.propensity=COLUMN, or --set assume_uniform=true if its actions "
                "were chosen uniformly at random",
            )
