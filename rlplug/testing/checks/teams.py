"""The check of algorithms that learn from several agents at once, or from a global state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from torch import Tensor

from rlplug.batch import Batch
from rlplug.envs.agents.team import stored_space
from rlplug.testing.cases import Case, RandomEnv
from rlplug.testing.report import CheckFailed, DoesNotApply, locations
from rlplug.testing.subject import Subject
from rlplug.testing.trial import Trial, named

__all__ = ["check_teams_are_learned"]

_AGENTS = 2
_OBSERVATIONS = spaces.Box(-1.0, 1.0, (3,), numpy.float32)
_STATES = spaces.Box(-1.0, 1.0, (2,), numpy.float32)
_WHERE = ("prepare_batch", "compute_loss_for_module")


def check_teams_are_learned(subject: Subject) -> None:
    """Of several agents, updates follow the global state and each agent who is there, no other."""
    applies = False
    for trial in _team_trials(subject):
        applies = True
        batch, beside = trial.batch, named(trial.setting)
        usual = trial.expect_repeatable(batch)
        where = locations(subject.kind, *_WHERE)

        def differs(changed: Batch, trial: Trial = trial, usual: Any = usual) -> bool:
            return not trial.after(changed).equals(usual)

        if "state" in batch["observations"] and not differs(_reversed(batch, "state")):
            raise CheckFailed(
                "another update for other global states" + beside,
                "the same one: nothing reads them",
                f'{where}: batch["observations"]["state"], of the training_space that build gets',
            )
        if "present" not in batch["observations"]:
            continue
        for agent in range(_AGENTS):
            actions = batch["actions"].clone()
            actions[:, agent] = actions[:, agent].flip(0)
            if not differs(batch.with_columns({"actions": actions})):
                raise CheckFailed(
                    "another update for other actions of each agent of a team" + beside,
                    f"the same one for those of agent {agent + 1} of {_AGENTS}",
                    f"{where}: actions have a column for each agent",
                )
        if differs(_with_others_absent(batch)):
            raise CheckFailed(
                "the same update whatever agents observe that are not there" + beside,
                "another one",
                f'{where}: batch["observations"]["present"] tells who is',
            )
    if not applies:
        raise DoesNotApply("its feed asks for no team and for no global state of several agents")


def _team_trials(subject: Subject) -> Iterator[Trial]:
    """One for each of what a feed may ask for of several agents."""
    tried: set[tuple[bool, bool]] = set()
    for setting in subject.settings:
        feed = subject.kind(subject.changed(setting)).feed()
        asked = (feed.team, feed.global_state)
        if any(asked) and asked not in tried:
            tried.add(asked)
            case = _case(*asked)
            plugin = subject.kind(subject.changed(setting))
            if plugin.supports(case.observation_space, case.action_space) is None:
                yield Trial(subject, setting, case)


def _case(team: bool, global_state: bool) -> Case:
    """What one of two agents sees and does, and what is stored of them."""
    actions: Any = spaces.Discrete(3)
    agents, state = _AGENTS if team else 0, _STATES if global_state else None
    stored = stored_space(_OBSERVATIONS, actions, agents, state)
    joint = batch_space(actions, agents) if team else actions
    name = "a team" if team else "agents with a global state"
    return Case(
        name=name,
        make=partial(RandomEnv, _OBSERVATIONS, actions),
        stored=Case(name=f"{name}, stored", make=partial(RandomEnv, stored, joint)),
    )


def _changed(batch: Batch, change: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]) -> Batch:
    """With other parts of what is observed, now and next."""
    columns = ("observations", "next_observations", "final_observations")
    return batch.with_columns(
        {name: {**batch[name], **change(batch[name])} for name in columns if name in batch}
    )


def _reversed(batch: Batch, part: str) -> Batch:
    """The rows of a part of what is observed in the reverse order."""
    return _changed(batch, lambda seen: {part: seen[part].flip(0)})


def _with_others_absent(batch: Batch) -> Batch:
    """Other observations of those agents that are not there."""

    def change(seen: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        absent = (seen["present"] == 0)[..., None]
        return {"observation": seen["observation"] + absent.to(seen["observation"].dtype)}

    return _changed(batch, change)
