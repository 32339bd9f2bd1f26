"""Self-play against frozen copies: who acts, what is learned, the pool, resume, options."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pytest
import torch

import rlplug as library
from examples.agent_tasks import MatrixGame
from rlplug.cli.outcome import print_result
from rlplug.config.sections import EnvSection, LeagueSection, ModuleSection
from rlplug.envs.agents import AgentEnvironments, agent_environments
from rlplug.errors import RequestError
from rlplug.feeds import FeedSetting, ModuleExperience, ModuleFeeds, Rollout
from rlplug.plugin import Acted, ActInput, Module
from rlplug.sampling import Collector
from rlplug.sampling.league import CURRENT, League, Roster
from rlplug.trees import read_tree
from tests import agent_runs
from tests.agent_games import Countdown, Relay
from tests.agent_runs import (
    COUNTDOWN,
    MATRIX,
    RELAY,
    UNLIKE,
    assert_same,
    checkpoint,
    told,
    weights,
)
from tests.collecting import agent_collector

if TYPE_CHECKING:
    from tests.conftest import Outcome

Command = Callable[..., "Outcome"]

ROCK, PAPER = 0, 1


class Always(Module):
    """Chooses one action always, and remembers for how many it acted."""

    choice: torch.Tensor

    def __init__(self, choice: int) -> None:
        super().__init__()
        self.register_buffer("choice", torch.tensor(choice))
        self.sizes: list[int] = []

    def forward_exploration(self, act: ActInput) -> Acted:
        seen = act.observations
        n = len(seen["observation"] if isinstance(seen, dict) else seen)
        self.sizes.append(n)
        extras = {"log_prob": numpy.zeros(n, numpy.float32)} if act.wants_log_prob else {}
        return Acted(numpy.full(n, int(self.choice)), extras=extras)

    forward_inference = forward_exploration


def league_in(
    env: Callable[..., Any],
    *,
    num_envs: int,
    steps: int,
    modules: dict[str, str] | None = None,
    **options: Any,
) -> tuple[Collector, League, dict[str, Always], AgentEnvironments]:
    """A sampler with a league whose modules choose action 0; its first copies do, too."""
    sections = {name: ModuleSection(agents=own) for name, own in (modules or {}).items()}
    environments = agent_environments(env, num_envs, EnvSection(), sections)
    assert environments is not None
    acting = {module_id: Always(ROCK) for module_id in environments.modules}
    feeds = {}
    for module_id, own in environments.modules.items():
        feeds[module_id] = Rollout(n_steps=steps, batch_size=0).open(
            FeedSetting(
                observation_space=own.vector.single_observation_space,
                action_space=own.action_space,
                num_envs=own.num_envs,
                steps=1000,
                seed=0,
            )
        )
    sides = [[agent] for agent in environments.agents]
    section = LeagueSection(**{"every": 1000, **options})
    roster = Roster(section, environments.agents, acting, sides)
    league = League(roster, environments, seed=0, self_play=section.self_play)
    sampler = agent_collector(
        environments, acting, ModuleFeeds(feeds), seed=0, steps=steps, league=league
    )
    sampler.start()
    return sampler, league, acting, environments


def collected(sampler: Collector, timestep: int = 0) -> ModuleExperience:
    found = sampler.collect(timestep)
    assert isinstance(found, ModuleExperience)
    return found


def real(own: Any, name: str) -> Any:
    """A column where agents acted."""
    column = own.columns[name]
    return column if own.stepped is None else column[own.stepped]


# -- who acts, and what is learned ---------------------------------------------------------------


def test_only_what_the_current_weights_did_is_learned() -> None:
    sampler, _, modules, _ = league_in(MatrixGame, num_envs=4, steps=5)
    modules["default"].choice.fill_(PAPER)
    own = collected(sampler).by_module["default"]
    # Two agents in four games, of which one each is played by the copy, which chooses rock.
    assert len(real(own, "actions")) == 4 * 5
    assert (real(own, "actions") == PAPER).all()
    assert (real(own, "rewards") == 1).all()
    assert real(own, "terminated").all()


def test_episodes_in_turn_are_learned_from_one_side() -> None:
    sampler, league, _, _ = league_in(Countdown, num_envs=1, steps=60)
    own = collected(sampler).by_module["default"]
    rewards, ends = real(own, "rewards"), real(own, "terminated")
    # left acts twice and is given 1 for what right did between; right acts once and is given 1,
    # which is what left did last; what left did first was before right acted.
    assert own.counts is not None
    left, right = own.counts
    assert 0 < left < 40
    assert left / 2 + right == 20
    assert ends.sum() == 20
    assert set(rewards.tolist()) == {0.0, 1.0}
    league.roster.settle()
    assert league.roster.recent.episodes == 20


def test_self_play_is_learned_from_both_sides() -> None:
    sampler, league, _, _ = league_in(MatrixGame, num_envs=4, steps=50, self_play=0.5)
    count = len(real(collected(sampler).by_module["default"], "actions"))
    league.roster.settle()
    alone = league.roster.recent.episodes
    assert 60 < alone < 140
    # The seats of the next episodes are drawn already.
    assert count == alone + 2 * (200 - alone)


def test_modules_of_their_own_have_copies_of_their_own() -> None:
    modules = {"one": "agent_0", "two": "agent_1"}
    sampler, league, acting, _ = league_in(MatrixGame, num_envs=2, steps=20, modules=modules)
    acting["one"].choice.fill_(PAPER)
    found = collected(sampler).by_module
    assert set(league.roster.copies[0].modules) == {"one", "two"}
    assert (real(found["one"], "rewards") == 1).all()  # paper against the copy of two
    assert (real(found["two"], "rewards") == 0).all()  # rock against the copy of one
    assert len(real(found["one"], "actions")) + len(real(found["two"], "actions")) == 40


def test_a_removed_copy_plays_its_episodes_to_the_end() -> None:
    sampler, league, _, _ = league_in(Countdown, num_envs=2, steps=2, every=1, pool=1)
    for timestep in range(0, 40, 4):
        sampler.collect(timestep)
    assert len(league.roster.copies) == 1
    assert len(league.roster.known) <= 3
    assert len(league.roster.history) == 10


class Equal(Relay):
    """Each agent is given 1 in all: `first` in its first step, `second` in its last."""

    def step(self, actions: Any) -> Any:
        seen, rewards, *rest = super().step(actions)
        return seen, dict.fromkeys(rewards, float(self.time in (1, 4))), *rest


def test_what_was_earned_in_an_episode_that_was_cut_off_is_no_result() -> None:
    sampler, league, _, _ = league_in(Equal, num_envs=1, steps=1)
    sampler.collect(0)
    sampler.start()
    for step in range(1, 5):
        assert league.roster.results == []
        sampler.collect(step)
    league.roster.settle()
    assert (league.roster.recent.episodes, league.roster.recent.rate) == (1, 0.5)
    # Nor is what was earned in the episode before.
    for step in range(5, 13):
        sampler.collect(step)
    league.roster.settle()
    assert (league.roster.recent.episodes, league.roster.recent.rate) == (3, 0.5)


def test_results_that_were_not_rated_for_all_learners_yet_are_so_after_a_resume() -> None:
    def opened() -> tuple[Collector, League]:
        sampler, league, modules, _ = league_in(MatrixGame, num_envs=2, steps=3)
        modules["default"].choice.fill_(PAPER)
        league.roster.gather = lambda own: [own, []]
        return sampler, league

    (sampler, one), (_, other) = opened(), opened()
    sampler.collect(0)
    sampler.collect(6)
    assert len(one.roster.results) == 6
    whole, saved = one.roster.get_state(), one.get_state()
    # What all learners save alike has only what all of them know.
    assert whole["recent"] == [1.0, 6]
    other.roster.set_state(whole)
    other.set_state(saved)
    for league in (one, other):
        league.roster.settle()
        assert league.roster.recent.episodes == 12
    assert ratings(other.roster) == ratings(one.roster)


def rate(roster: Roster, number: int, score: float) -> None:
    roster.results.append((number, score))
    roster.settle()


def ratings(roster: Roster) -> Any:
    return {name: x for name, x in roster.get_state().items() if name != "copies"}


# -- the pool ------------------------------------------------------------------------------------


def roster_of(**options: Any) -> Roster:
    agents = {"agent_0": "default", "agent_1": "default"}
    section = LeagueSection(**{"every": 10, **options})
    roster = Roster(section, agents, {"default": Always(ROCK)}, [["agent_0"], ["agent_1"]])
    roster.begin()
    return roster


def test_copies_are_added_every_so_many_steps() -> None:
    roster = roster_of()
    for step in (0, 9, 10, 19, 25):
        roster.refresh(step)
    assert [step for step, _ in roster.history] == [0, 10, 25]


def test_copies_are_added_at_a_win_rate_of_a_hundred_episodes() -> None:
    roster = roster_of(every=0, win_rate=0.6)
    for _ in range(99):
        rate(roster, 0, 1.0)
    roster.refresh(5)
    assert len(roster.copies) == 1
    rate(roster, 0, 0.0)
    assert roster.recent.rate == pytest.approx(0.99)
    for step in (5, 10**6):
        roster.refresh(step)
    assert [one.step for one in roster.copies] == [0, 5]
    assert roster.recent.episodes == 0


def test_ratings_are_those_of_elo() -> None:
    roster = roster_of()
    rate(roster, 0, 1.0)
    assert roster.elo == 1200 + 16 * 0.5
    roster.elo = 1600.0
    rate(roster, 0, 0.0)
    assert roster.elo == pytest.approx(1600 - 16 * 10 / 11)
    roster.refresh(10)
    assert roster.history[-1] == (10, roster.elo)
    assert roster.copies[-1].elo == roster.elo


def test_win_rates_are_kept_between_copies() -> None:
    roster = roster_of()
    for score in (1.0, 1.0, 0.5, 0.5):
        rate(roster, 0, score)
    assert roster.win_rate_of(CURRENT, 0) == 0.75
    roster.refresh(10)
    assert roster.win_rate_of(1, 0) == 0.75
    assert roster.win_rate_of(0, 1) == 0.25
    assert numpy.isnan(roster.win_rate_of(CURRENT, 1))
    assert roster.win_rate_of(1, 1) == 0.5


def test_opponents_are_drawn_as_asked() -> None:
    shares = {}
    for draw in ("latest", "uniform", "prioritized"):
        roster = roster_of(draw=draw)
        roster.refresh(10)
        for _ in range(92):
            # All lost against the first copy, all won against the second one.
            rate(roster, 0, 0.0)
            rate(roster, 1, 1.0)
        random = numpy.random.default_rng(0)
        shares[draw] = numpy.mean([roster.draw(random) for _ in range(2000)])
    assert shares["latest"] == 1
    assert shares["uniform"] == pytest.approx(0.5, abs=0.04)
    # Of 92 episodes and 8 draws, 96 % are won: (1 - 0.96)² is 1 of 577 beside (1 - 0.04)².
    assert shares["prioritized"] == pytest.approx(1 / 577, abs=0.004)


def test_learners_rate_by_the_results_of_all_in_one_order() -> None:
    both = roster_of()
    for score in (1.0, 0.0, 0.0):
        rate(both, 0, score)
    roster, others = roster_of(), [[(0, 0.0), (0, 0.0)], []]
    roster.gather = lambda own: [own, others.pop(0)]
    rate(roster, 0, 1.0)
    assert ratings(roster) == ratings(both)
    roster.settle()
    assert ratings(roster) == ratings(both)


def test_a_runner_has_the_pool_of_its_learner_and_the_removed_copies_that_act() -> None:
    learner, runner = roster_of(pool=2), roster_of(pool=2)
    first = runner.copies[0]
    rate(learner, 0, 1.0)
    for step in (10, 20):
        learner.refresh(step)
    told = learner.tell({0, 1})
    assert [one["number"] for one in told["copies"]] == [2]
    told = learner.tell({0})
    runner.hear(told)
    assert [one.number for one in runner.copies] == [1, 2]
    assert runner.known[0] is first
    assert ratings(runner) == ratings(learner)
    runner.refresh(1000)  # which is the learner's to decide
    assert len(runner.history) == 3


# -- runs ------------------------------------------------------------------------------------------


def trained(env: Any = MATRIX, algorithm: str = "ppo", **options: Any) -> Any:
    alone = {"sampling__num_envs": 1, "evaluation__episodes": 0}
    return agent_runs.trained(env, algorithm, **{**alone, **options})


@pytest.mark.parametrize(
    ("algorithm", "env", "options"),
    [
        ("ppo", COUNTDOWN, {"sampling__num_envs": 2}),
        ("ppo", UNLIKE, {"league__self_play": 0.3}),
        pytest.param("dqn", MATRIX, {}, marks=pytest.mark.long),
        ("dqn", COUNTDOWN, {}),
    ],
)
def test_a_resumed_league_equals_an_uninterrupted_one(
    algorithm: str, env: str, options: dict[str, Any], home: Path
) -> None:
    options = {"league__every": 25, "league__pool": 3, "league__draw": "prioritized", **options}
    whole = trained(env, algorithm, steps=256, **options)
    part = trained(env, algorithm, steps=128, **options)
    rest = library.resume(part.run_id, steps=256)
    assert whole.metrics["league/copies"] > part.metrics["league/copies"]
    for part_of in ("policy", "training"):
        one, other = (read_tree(checkpoint(run) / part_of) for run in (whole, rest))
        if part_of == "policy":
            assert_same(one["modules"], other["modules"])
        else:
            assert len(one["run"]["league"]["copies"]) == 3
            assert_same(one["run"]["league"], other["run"]["league"])
            assert_same(one["run"]["sampler"]["league"], other["run"]["sampler"]["league"])
            randoms = (tree["run"]["sampler"]["modules"] for tree in (one, other))
            assert_same(*({name: own["random"] for name, own in of.items()} for of in randoms))


def test_workers_step_a_league_as_this_process_does(home: Path) -> None:
    options: dict[str, Any] = {"league__every": 32, "sampling__num_envs": 2}
    here = trained(COUNTDOWN, steps=128, **options)
    there = trained(COUNTDOWN, steps=128, **options, sampling__backend="workers")
    assert_same(*(weights(run) for run in (here, there)))
    assert_same(
        *(read_tree(checkpoint(run) / "training")["run"]["league"] for run in (here, there))
    )


def test_evaluations_play_against_random_and_against_the_pool(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(RELAY, steps=128, league__every=64, evaluation__episodes=6)
    # first gets 3 and second 90, whoever acts for them: each player wins one side of two.
    assert run.metrics["eval/random/win_rate"] == 0.5
    assert run.metrics["eval/random/not_lost"] == 0.5
    assert run.metrics["league/copies"] == 2
    assert 900 < run.metrics["league/elo"] < 1500
    print_result(run)
    said = re.search(r"^league +(Elo .*)$", capsys.readouterr().out, re.MULTILINE)
    assert said is not None
    rate = f"{run.metrics['league/win_rate']:.0%}"
    assert said[1].endswith(f", win rate {rate} against the pool")


def test_another_checkpoint_can_be_the_opponent(rlplug: Command, home: Path) -> None:
    first = trained(MATRIX, steps=64)
    run = trained(MATRIX)
    who = f"{first.run_id}@64"
    found = library.evaluate(run.folder, episodes=3, opponents={"agent_1": who})
    own, other = (library.load(one.folder, checkpoint="last") for one in (run, first))
    seen = {agent: numpy.ones(1, numpy.float32) for agent in ("agent_0", "agent_1")}
    chosen = own.predict(seen)["agent_0"], other.predict(seen)["agent_1"]
    payoffs = ((0, -1, 1), (1, 0, -1), (-1, 1, 0))
    assert found.agent_returns["agent_0"].tolist() == [payoffs[chosen[0]][chosen[1]]] * 3
    done = rlplug("eval", run.run_id, "--episodes", "2", "--opponent", f"agent_1={who}")
    assert done.code == 0, done.err
    for env, said in (
        (COUNTDOWN, "has no agent 'agent_1'"),
        ("examples.agent_tasks:Meeting", "has no agent 'agent_1' with the same spaces"),
    ):
        strange = trained(env, steps=32)
        with pytest.raises(RequestError, match=said):
            library.evaluate(run.folder, episodes=1, opponents={"agent_1": strange.run_id})


def test_a_checkpoint_of_one_agent_starts_a_league_only_where_it_fits(home: Path) -> None:
    single = trained("CartPole-v1", steps=64)
    assert "'default'" in told(MATRIX, league__every=10, run__init_from=single.run_id)
    league = trained(league__every=64)
    assert "'default'" in told("CartPole-v1", run__init_from=league.run_id)
    said = told("CartPole-v1", run__init_from=league.run_id, league__every=10)
    assert "league   is for environments with several agents; 'CartPole-v1' has one" in said
    again = trained(steps=32, league__every=64, run__init_from=league.run_id, learning_rate=0.0)
    assert_same(*(weights(run) for run in (league, again)))


def test_the_league_of_the_docs_runs(rlplug: Command, home: Path, tmp_path: Path) -> None:
    page = (Path(__file__).parent.parent / "docs" / "agents.md").read_text(encoding="utf-8")
    shown = next(
        one for one in re.findall(r"```toml\n(.*?)```", page, re.DOTALL) if "[league]" in one
    )
    file = tmp_path / "run.toml"
    file.write_text(shown)
    quick = ("--set", "n_steps=32", "--set", "evaluation.episodes=2", "--quiet")
    done = rlplug("run", "--config", str(file), "--steps", "256", *quick)
    assert done.code == 0, done.err
    policy: Any = library.load("last")
    assert set(policy.agents) == {"player_1", "player_2"}


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"league__pool": 4}, "pool would have no effect without every or win_rate"),
        ({"league__every": 10, "league__pool": 0}, "league.pool   must be at least 1, got 0"),
        ({"league__win_rate": 1.5}, "league.win_rate   must be between 0 and 1"),
        ({"league__every": 10, "league__drawn": "latest"}, "did you mean 'draw'"),
        ({"league__every": 10, "league__draw": "best"}, "expected one of 'latest', 'uniform'"),
        ({"league__every": 10, "league__self_play": 1.0}, "leaves no episode to the copies"),
        (
            {"league__every": 10, "league__sides": ["agent_*"]},
            "fewer than two sides have modules that are trained",
        ),
        (
            {"league__every": 10, "league__sides": ["agnet_0", "agent_1"]},
            "'agnet_0' matches no agent, did you mean 'agent_0'?",
        ),
        (
            {"league__every": 10, "league__sides": ["agent_*", "agent_1"]},
            "agent 'agent_1' is on 2 sides, not on one",
        ),
        (
            {"league__every": 10, "league__sides": ["agent_1"]},
            "agent 'agent_0' is on 0 sides",
        ),
        (
            {
                "league__every": 10,
                "modules__one__agents": "agent_0",
                "modules__two__agents": "agent_1",
                "learner__modules_to_train": ["one"],
            },
            "fewer than two sides have modules that are trained",
        ),
    ],
)
def test_options_that_make_no_league_are_refused(options: dict[str, Any], said: str) -> None:
    assert said in told(MATRIX, **options)


def test_an_empty_section_is_refused(rlplug: Command, home: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(f'[run]\nalgorithm = "ppo"\nenv = "{MATRIX}"\n[league]\n')
    done = rlplug("run", "--config", str(file))
    assert done.code == 2
    assert "league   is empty: set every or win_rate" in done.err


def test_a_league_in_which_a_team_would_play_itself_is_refused(home: Path) -> None:
    said = told(MATRIX, "vdn", league__every=64)
    assert "league   module 'default' learns as a team, and agents of it would play each" in said
    assert "try: give each side modules of its own, or leave out [league]" in said
    sides = {"modules__one__agents": "agent_0", "modules__two__agents": "agent_1"}
    assert trained(MATRIX, "vdn", steps=64, league__every=32, **sides).status == "FINISHED"
