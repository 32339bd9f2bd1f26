"""Collects the experience of one module's agents, each of which has rows of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy

from rlplug.batch.nested import copied, to_arrays, tree_map
from rlplug.envs import Environments
from rlplug.envs.agents.team import TeamRows
from rlplug.errors import PluginError
from rlplug.feeds import Experience, OpenFeed
from rlplug.plugin import Acted, ActInput
from rlplug.sampling.agent_inputs import AgentChecks, AgentInputs
from rlplug.sampling.buffers import RolloutBuffer, finals_of, put_rows, rows_of
from rlplug.sampling.episode_stats import EpisodeStats
from rlplug.spaces import ACTION_MASK

__all__ = ["AgentCollector"]


class AgentCollector:
    """Writes what the agents of one module do into a rollout, agent by agent.

    Every agent has as many rows as it has actions that were answered, at most `steps`. An action
    that is not answered when the collection ends is the first row of the next one.
    """

    def __init__(
        self,
        inputs: AgentInputs,
        environments: Environments,
        feed: OpenFeed,
        *,
        steps: int,
        in_turn: bool,
        team: TeamRows | None = None,
    ) -> None:
        rows = inputs.rows if team is None else team
        self.inputs, self.rows = inputs, rows
        self._team = team
        self._checks = inputs.checks if team is None else AgentChecks(environments, rows)
        self.episode_stats = EpisodeStats(rows.num)
        self.normalization = environments.normalization
        self.after_reset = True
        self._feed, self._steps, self._in_turn = feed, steps, in_turn
        self._state_interval = feed.state_interval or steps
        self._buffer = RolloutBuffer(steps, rows.num, by_environment=feed.by_environment)
        self._times = numpy.zeros(rows.num, numpy.int64)
        self._even = True
        """Whether all rows have the same number of rows so far."""
        self._written = False
        """Whether what was seen and done in this step is in the buffer already."""
        self._acted: dict[str, Any] = {}
        """What was seen and done where there is no answer yet, one row for each agent."""
        self._finals: list[tuple[int, int, Any]] = []
        self._states: list[Any] = []
        self._last: Experience | None = None
        inputs.act.wants_log_prob = in_turn and feed.on_policy

    def start(self) -> None:
        """All environments were reset."""
        if self.normalization is not None:
            self.normalization.forget_episodes()
        self.episode_stats.forget_episodes()
        self.after_reset = True
        self.inputs.reset()

    def begin(self) -> None:
        """Begin a collection."""
        self._times[:] = 0
        self._even = True
        self._finals, self._states = [], []

    def choose(self, choose: Callable[[ActInput], Acted], timestep: int) -> None:
        """Act for the agents whose turn it is, and keep what they see and do."""
        inputs, rows = self.inputs, self.rows
        turns = rows.turns
        if inputs.initial_state is not None:
            self._keep_states(numpy.flatnonzero(turns))
        acted = inputs.choose(choose, timestep)
        self._written = False
        if acted is None:
            return
        columns = {"actions": acted.actions, **acted.extras}
        if inputs.act.wants_log_prob and "log_prob" not in acted.extras:
            raise PluginError(
                f"{type(inputs.module).__name__}.forward_exploration returned no log_prob, which "
                "is needed where agents act in turn: weights may change before an answer.",
                'try: Acted(…, extras={"log_prob": …}) if act.wants_log_prob',
            )
        seen = {"observations": rows.observations}
        if rows.mask is not None:
            seen[ACTION_MASK] = rows.mask
        if self._team is not None:
            columns = self._team.acted(columns)
        if self._even and not self._in_turn and turns.all():
            self._buffer.write(int(self._times[0]), {**seen, **columns})
            self._written = True
            return
        which = numpy.flatnonzero(turns)
        for name, column in seen.items():
            put_rows(self._acted_column(name, column), which, rows_of(column, which))
        for name, column in columns.items():
            column = to_arrays(column)
            if self._team is not None:
                column = rows_of(column, which)
            put_rows(self._acted_column(name, column), which, column)

    def store(self) -> None:
        """Write the answers of a step."""
        rows = self.rows
        if self._team is not None:
            self._team.settle()
        outcome = {"rewards": rows.rewards}
        outcome["terminated"], outcome["truncated"] = rows.terminated, rows.truncated
        if self._written:
            self._buffer.write(int(self._times[0]), outcome)
            self._keep_finals()
            self._times += 1
            return
        which = numpy.flatnonzero(rows.answered)
        if not len(which):
            return
        columns = {**rows_of(self._acted, which), **rows_of(outcome, which)}
        self._buffer.write_rows(self._times[which], which, columns)
        self._keep_finals()
        self._times[which] += 1
        self._even = False

    def experience(self, timestep: int) -> Experience | None:
        """The rows of the collection, valid until the next one; None if there are none."""
        steps, times, rows = int(self._times.max()), self._times, self.rows
        self._last = None
        if not steps:
            return None
        columns, counts, stepped = dict(self._buffer.columns), None, None
        current = {"observations": rows.observations}
        if ACTION_MASK in self._buffer.grids:
            current[ACTION_MASK] = rows.mask
        by_environment = self._feed.by_environment
        if times.min() < self._steps:
            if by_environment:
                steps = self._steps
            else:
                # The rows of later times are not used.
                end = steps * rows.num
                columns = {
                    name: tree_map(lambda leaf: leaf[:end], one) for name, one in columns.items()
                }
            counts = times.copy()
            self._pad(steps, current)
            grid = numpy.arange(steps)[:, None] < times
            stepped = (grid.T if by_environment else grid).reshape(-1)
        if steps == 1:
            # Batches of single steps are not copied again.
            columns = {name: tree_map(copied, column) for name, column in columns.items()}
        experience = Experience(
            columns,
            steps=steps,
            num_envs=rows.num,
            by_environment=by_environment,
            following=tree_map(copied, current) if self._feed.wants_next else {},
            finals=finals_of(self._finals, rows.num),
            stepped=stepped,
            counts=counts,
            after_reset=self.after_reset,
            states=self._states,
            initial_state=self.inputs.initial_state,
        )
        self.after_reset = False
        self._checks.check_rollout(experience, timestep)
        grids = self._buffer.grids
        ends = grids["terminated"][:steps], grids["truncated"][:steps]
        real = None if stepped is None else experience.grid(stepped)
        self.episode_stats.add_rollout(grids["rewards"][:steps], *ends, real)
        self._last = experience
        return experience

    def idle(self) -> Experience:
        """An experience without steps, where there are no rows."""
        current = {"observations": self.rows.observations}
        if ACTION_MASK in self._buffer.grids:
            current[ACTION_MASK] = self.rows.mask
        return Experience(
            {},
            steps=0,
            num_envs=self.rows.num,
            by_environment=self._feed.by_environment,
            following=tree_map(copied, current) if self._feed.wants_next else {},
        )

    def absorb(self) -> None:
        """Update the normalisation statistics with the last collection."""
        if self.normalization is None:
            return
        if self._last is None:
            self.normalization.absorb_nothing()
        else:
            self._last.absorb_into(self.normalization)

    def get_state(self) -> dict[str, Any]:
        """What the next report depends on; `get_waiting` has what belongs to episodes."""
        return {"episode_stats": self.episode_stats.get_state()}

    def set_state(self, saved: Mapping[str, Any]) -> None:
        """Restore a state."""
        self.episode_stats.set_state(saved["episode_stats"])

    def get_waiting(self) -> dict[str, Any]:
        """What belongs to the episodes in progress; not a copy."""
        inputs = self.inputs.get_state()
        return {"acted": self._acted, "after_reset": self.after_reset, "inputs": inputs}

    def set_waiting(self, saved: Mapping[str, Any]) -> None:
        """Go on with episodes in progress."""
        self._acted, self.after_reset = saved["acted"], saved["after_reset"]
        self.inputs.set_state(saved["inputs"])

    def _acted_column(self, name: str, column: Any) -> Any:
        if name not in self._acted:
            num = self.rows.num
            self._acted[name] = tree_map(
                lambda leaf: numpy.zeros((num, *leaf.shape[1:]), leaf.dtype), column
            )
        return self._acted[name]

    def _keep_finals(self) -> None:
        rows = self.rows
        if not rows.finals:
            return
        for row, final in rows.finals:
            self._finals.append((int(self._times[row]), row, final))
        self.inputs.restart([row for row, _ in rows.finals])

    def _keep_states(self, which: Any) -> None:
        """Copy the recurrent state of rows that are at the start of a fragment."""
        state = self.inputs.get_state()["state"]
        numbers, inside = numpy.divmod(self._times[which], self._state_interval)
        for number in numpy.unique(numbers[inside == 0]).tolist():
            rows = which[(inside == 0) & (numbers == number)]
            while len(self._states) <= number:
                self._states.append(tree_map(copied, to_arrays(state)))
            put_rows(self._states[number], rows, rows_of(state, rows))

    def _pad(self, steps: int, current: Mapping[str, Any]) -> None:
        """Write the observation to act on next behind the last row of each agent."""
        grids = self._buffer.grids
        for step in range(int(self._times.min()), steps):
            which = numpy.flatnonzero(self._times <= step)
            for name, column in current.items():
                put_rows(grids[name], (step, which), rows_of(column, which))
            for name in ("rewards", "terminated", "truncated"):
                grids[name][step, which] = 0
