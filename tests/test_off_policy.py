"""`rlplug ope`: what policies would have earned on a log of rows or of episodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy
import pyarrow
import pytest
from gymnasium import spaces
from mlflow.tracking import MlflowClient
from pyarrow import parquet

import rlplug as library
from rlplug.errors import RequestError
from rlplug.logs import Log
from rlplug.logs.recording import spaces_as_metadata
from rlplug.ope.choices import Policies, bandit_choices, episode_choices
from rlplug.runs.off_policy import Judging, judge_runs
from tests.log_files import opened

pytestmark = pytest.mark.usefixtures("store_root")

# -- off policy ------------------------------------------------------------------------------------


THETA = numpy.array([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])


def logged(path: Path, rows: int, seed: int) -> Path:
    """Rows of three arms, logged with propensities of 0.5, 0.3 and 0.2."""
    random = numpy.random.default_rng(seed)
    contexts = random.standard_normal((rows, 2))
    propensities = numpy.array([0.5, 0.3, 0.2])
    actions = random.choice(3, rows, p=propensities)
    rewards = (contexts * THETA[actions]).sum(1) + 0.1 * random.standard_normal(rows)
    table = {
        "x0": contexts[:, 0],
        "x1": contexts[:, 1],
        "arm": actions,
        "gain": rewards,
        "p": propensities[actions],
    }
    parquet.write_table(pyarrow.table(table), path)
    return path


COLUMNS = {
    "data.context": "x*",
    "data.action": "arm",
    "data.reward": "gain",
    "data.propensity": "p",
}


@pytest.fixture
def runs(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """A run that learned from 2000 rows, and one that learned from rewards turned around.

    They are in MLflow for the test that looks there.
    """
    tracked = request.node.name.endswith("by_the_same_rows")
    options: dict[str, Any] = {**COLUMNS, "tracking.enabled": tracked}
    # These matter in training alone.
    options |= {"offline_evaluation": "all", "max_importance_weight": 5.0}
    train = logged(tmp_path / "train.parquet", 2000, 0)
    good = library.run("linucb", data=train, options=options)
    table = parquet.read_table(train).to_pandas()
    table["gain"] *= -1
    table.to_parquet(tmp_path / "reversed.parquet")
    bad = library.run("linucb", data=tmp_path / "reversed.parquet", options=options)
    return good, bad


def test_two_policies_are_judged_by_the_same_rows(
    tmp_path: Path, runs: tuple[Any, Any], rlplug: Callable[..., Any], store_root: Path
) -> None:
    good, bad = runs
    held = logged(tmp_path / "held.parquet", 4000, 1)
    # The columns are those that the run was trained with.
    done = rlplug("ope", good.run_id, "--data", str(held), "--against", bad.run_id, "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    one, other = told["runs"]
    # The best of three arms earns the largest of x, y and −x − y: a normal integral.
    random = numpy.random.default_rng(9)
    truth = (random.standard_normal((10**6, 2)) @ THETA.T).max(1).mean()
    for name in ("dr", "sndr", "switch_dr", "mrdr", "dm"):
        found = one["estimates"][name]
        assert found["low"] - 0.02 < truth < found["high"] + 0.02, name
        assert other["estimates"][name]["high"] < 0 < found["low"]
        difference = told["differences"][name]
        assert difference["value"] == pytest.approx(
            found["value"] - other["estimates"][name]["value"]
        )
        assert difference["low"] > 1
    assert one["rows"] == 4000
    assert 800 < one["matches"] < 2000
    (said,) = one["warnings"]
    assert said.startswith("Replay is biased: the log chose with probabilities of 0.2 to 0.5")
    table = (good.folder / "ope").glob("*.csv")
    assert next(table).read_text().startswith("run,step,estimator,value,low,high")
    client = MlflowClient(f"sqlite:///{store_root / 'mlflow.db'}")
    run = client.get_run(good.run_id)
    assert run.data.metrics["ope/dr"] == pytest.approx(one["estimates"]["dr"]["value"])
    names = sorted(Path(one.path).suffix for one in client.list_artifacts(good.run_id, "ope"))
    assert names == [".csv", ".json", ".png"]


def test_the_table_names_what_it_rests_on(
    tmp_path: Path, runs: tuple[Any, Any], rlplug: Callable[..., Any]
) -> None:
    good, _ = runs
    held = logged(tmp_path / "held.parquet", 500, 1)
    done = rlplug("ope", good.run_id, "--data", str(held), "--no-save", "--samples", "50")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[1].startswith("log held: 500 rows, whose own policy earned ")
    assert lines[3].split() == ["estimator", "value", "95", "%", "interval"]
    assert [line.split()[0] for line in lines[4:8]] == ["Replay", "Direct", "IPS", "SNIPS"]
    assert "rows that agree" in done.out
    again = rlplug("ope", good.run_id, "--data", str(tmp_path / "train.parquet"), "--no-save")
    assert "the policy learned from this very log: estimates are too high" in again.err


def test_what_cannot_be_judged_is_refused(
    tmp_path: Path, runs: tuple[Any, Any], rlplug: Callable[..., Any]
) -> None:
    good, _ = runs
    table = parquet.read_table(logged(tmp_path / "held.parquet", 300, 1))
    parquet.write_table(table.drop(["p"]), tmp_path / "bare.parquet")
    bare = ("ope", good.run_id, "--data", str(tmp_path / "bare.parquet"), "--no-save")
    refused = rlplug(*bare, "--set", "propensity=propensity")
    assert refused.code == 2
    assert "log 'bare' has no propensities" in refused.err
    assert rlplug(*bare, "--set", "propensity=propensity", "--assume-uniform").code == 0
    more = rlplug(
        "ope", good.run_id, "--data", str(tmp_path / "held.parquet"), "--set", "num_arms=4"
    )
    assert more.code == 2
    assert "chooses among Discrete with 3 values, log 'held' has Discrete with 4 values" in more.err
    fewer = rlplug(
        "ope", good.run_id, "--data", str(tmp_path / "held.parquet"), "--set", "context=x0"
    )
    assert fewer.code == 2
    assert "the policy learned from features x0, x1, log 'held' has x0" in fewer.err
    wrong = rlplug("ope", good.run_id, "--data", str(tmp_path / "held.parquet"), "--set", "armz=3")
    assert wrong.code == 2
    assert "the options of --set" in wrong.err
    assert "see: rlplug plugins show data" in wrong.err


def test_a_log_that_never_chose_what_the_policy_wants_is_told(
    tmp_path: Path, runs: tuple[Any, Any], rlplug: Callable[..., Any]
) -> None:
    good, _ = runs
    held = parquet.read_table(logged(tmp_path / "held.parquet", 400, 1)).to_pandas()
    held = held[held.arm == 2]
    # There, arm 2 is the worst.
    held[["x0", "x1"]] = 1.0
    held.to_parquet(tmp_path / "other.parquet")
    done = rlplug("ope", good.run_id, "--data", str(tmp_path / "other.parquet"), "--no-save")
    assert done.code == 0
    assert "never chose what this policy wants" in done.err
    replay = next(line for line in done.out.splitlines() if line.startswith("Replay"))
    assert replay.split() == ["Replay", "–", "–"]


# -- off policy exploring --------------------------------------------------------------------------


OFF = {"tracking.enabled": False, "evaluation.episodes": 0}
FROM_LOG = {"tracking.enabled": False}
STILL = {**OFF, "learning_rate": 0.0, "sampling.num_envs": 4}
"""A policy that does not change: what it has recorded is what it would do."""

EPISODES = ("ppo", "a2c", "recurrent a2c", "continuous ppo")


def values(judged: Any) -> dict[str, float]:
    return {name: one.value for name, one in judged.judgement.estimates.items()}


def judged(run: Any, data: Path, **judging: Any) -> Any:
    options = judging.pop("options", {})
    logged_by = judging.pop("logged_by", "")
    (one,), _ = judge_runs(
        [run.run_id],
        [str(data)],
        options=options,
        logged_by=logged_by,
        checkpoint="last",
        judging=Judging(samples=20, **judging),
    )
    return one


def test_an_epsilon_greedy_policy_is_a_mixture_of_the_greedy_and_the_uniform_one(
    tmp_path: Path,
) -> None:
    random = numpy.random.default_rng(0)
    contexts, propensities = random.standard_normal((1500, 2)), numpy.array([0.5, 0.3, 0.2])
    actions = random.choice(3, 1500, p=propensities)
    rewards = contexts[:, 0] * (actions == 1) + random.standard_normal(1500)
    log = tmp_path / "log.npz"
    numpy.savez(
        log, context=contexts, action=actions, reward=rewards, propensity=propensities[actions]
    )
    options = {"tracking.enabled": False, "exploration_final_eps": 0.3, "learning_starts": 0}
    run = library.run("dqn", data=log, options=options)
    greedy, exploring = (values(judged(run, log, explores=one)) for one in (False, True))
    uniform = (rewards / (3 * propensities[actions])).mean()
    assert exploring["ips"] == pytest.approx(0.7 * greedy["ips"] + 0.3 * uniform)
    # A policy that chooses at random agrees with no row; the model's value is a mixture, too.
    assert numpy.isnan(exploring["replay"])
    assert min(greedy["dm"], 0.0) - 0.1 < exploring["dm"] < max(greedy["dm"], 0.0) + 0.1


@pytest.fixture
def recorded(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Any, Path]:
    """A run that did not learn, and its recording."""
    name = request.param
    options = {**STILL, "sampling.record": str(tmp_path / "log"), "n_steps": 64}
    if "ppo" in name:
        options |= {"batch_size": 64, "n_epochs": 1}
    if "recurrent" in name:
        options["memory"] = "gru"
    if "continuous" in name:
        options["n_steps"] = 208
    env = "Pendulum-v1" if "continuous" in name else "CartPole-v1"
    algorithm = name.split()[-1]
    steps = 4 * options["n_steps"] * (1 if "continuous" in name else 2)
    return library.run(algorithm, env, steps=steps, options=options), tmp_path / "log"


@pytest.mark.parametrize("recorded", EPISODES, indirect=True)
def test_a_policy_earned_what_its_own_recording_says(recorded: tuple[Any, Path]) -> None:
    run, folder = recorded
    one = judged(run, folder, explores=True, gamma=0.9)
    told = one.judgement
    assert told.effective == pytest.approx(told.rows, rel=1e-3)
    assert told.max_weight == pytest.approx(1.0, abs=2e-2)
    for name in ("trajectory_is", "trajectory_wis", "per_decision_is", "per_decision_wis"):
        assert told.estimates[name].value == pytest.approx(told.logged.value, rel=2e-3), name
    if "weighted_dr" in told.estimates:
        for name in ("sequential_dr", "weighted_dr"):
            assert told.estimates[name].value == pytest.approx(told.logged.value, rel=0.1), name
    (said,) = [one for one in told.warnings if "were left out" in one]
    assert said.startswith("4 of ")


@pytest.mark.parametrize("recorded", ["ppo"], indirect=True)
def test_propensities_may_be_those_of_a_run(recorded: tuple[Any, Path], tmp_path: Path) -> None:
    run, folder = recorded
    tables = [parquet.read_table(one) for one in sorted(folder.glob("*.parquet"))]
    bare = pyarrow.concat_tables(tables).drop(["propensity", "action_log_prob"])
    parquet.write_table(bare, tmp_path / "bare.parquet")
    with pytest.raises(RequestError, match=r"has no propensities[\s\S]*--logged-by RUN"):
        judged(run, tmp_path / "bare.parquet", explores=True)
    one = judged(run, folder, explores=True)
    other = judged(run, tmp_path / "bare.parquet", explores=True, logged_by=run.run_id)
    assert values(other) == pytest.approx(values(one), rel=1e-3)
    assert any("propensities are those of" in said for said in other.judgement.warnings)
    cloned = library.run("bc", data=tmp_path / "bare.parquet", steps=3000, options=FROM_LOG)
    imitated = judged(run, tmp_path / "bare.parquet", explores=True, logged_by=cloned.run_id)
    # The policy is close to uniform: so is its imitation.
    assert values(imitated)["per_decision_wis"] == pytest.approx(
        values(one)["per_decision_wis"], rel=0.2
    )


@pytest.mark.parametrize("recorded", ["continuous ppo"], indirect=True)
def test_continuous_actions_have_estimates_as_the_policy_explores(
    recorded: tuple[Any, Path], rlplug: Callable[..., Any], tmp_path: Path
) -> None:
    run, folder = recorded
    ask = ("ope", f"{run.run_id}@last", "--data", str(folder), "--no-save")
    done = rlplug(*ask)
    assert done.code == 2
    assert "a greedy policy takes exactly the logged ones with probability 0" in done.err
    done = rlplug(*ask, "--explore")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0].endswith("exploring, step 832")
    assert lines[1].startswith("log log: 4 episodes of 800 steps, whose own policy earned ")
    assert lines[1].endswith(" per episode")
    names = [line.split("  ")[0] for line in lines[4:8]]
    assert names == ["Trajectory IS", "Trajectory WIS", "Per-decision IS", "Per-decision WIS"]
    assert "episodes that it may choose  4 of 4" in done.out
    table = parquet.read_table(next(folder.glob("*.parquet"))).drop(["action_log_prob"])
    parquet.write_table(table, tmp_path / "bare.parquet")
    bare = ("ope", run.run_id, "--data", str(tmp_path / "bare.parquet"), "--explore")
    done = rlplug(*bare, "--assume-uniform", "--no-save")
    assert (done.code, "they cannot be assumed to be uniform" in done.err) == (2, True)


def test_a_log_without_an_end_has_no_episodes(tmp_path: Path) -> None:
    options = {**OFF, "learning_starts": 0, "sampling.record": str(tmp_path / "log")}
    run = library.run("dqn", "CartPole-v1", steps=8, options=options)
    with pytest.raises(RequestError, match=r"none of the 1 episodes of log 'log' ends in it"):
        judged(run, tmp_path / "log")


# -- log choices -----------------------------------------------------------------------------------


@attrs.frozen
class Fixed:
    """A policy with the same probabilities everywhere, and log-densities of twice the action."""

    shares: tuple[float, ...] = ()
    has_memory = False

    def probabilities(self, observations: Any, greedy: bool, action_mask: Any = None) -> Any:
        found = numpy.tile(self.shares, (len(observations), 1))
        return numpy.eye(len(self.shares))[found.argmax(1)] if greedy else found

    def log_prob(self, observations: Any, actions: Any, action_mask: Any = None) -> Any:
        return [2.0 * float(one.sum()) for one in actions]


def policies(
    target: tuple[float, ...] = (), by: tuple[float, ...] | None = None, num_arms: int = 0
) -> Policies:
    """A fixed policy, and what chose the actions: another one, or what the log says."""
    logged_by = None if by is None else Fixed(by)
    return Policies(
        target=Fixed(target),  # type: ignore[arg-type]
        explores=True,
        num_arms=num_arms or len(by or ()),
        logged_by=logged_by,  # type: ignore[arg-type]
    )


def log_of(
    folder: Path, table: Mapping[str, Any], spaces_of: tuple[Any, Any] | None = None, **options: Any
) -> Log:
    """A log of these columns, and of an environment with these spaces."""
    found = pyarrow.table(dict(table))
    if spaces_of is not None:
        found = found.replace_schema_metadata(spaces_as_metadata(*spaces_of))
    parquet.write_table(found, folder / "log.parquet")
    return opened(folder / "log.parquet", **options)


def ignore(rows: int) -> None:
    """Progress that nobody looks at."""


CHOICES = {"context": [[0.0], [1.0], [2.0], [3.0]], "action": [0, 1, 0, 1], "reward": [1.0] * 4}


def test_a_policy_without_what_it_is_asked_for_has_no_propensities(tmp_path: Path) -> None:
    (rows,) = log_of(tmp_path, CHOICES, num_arms=2).read(0, 10)
    told = policies(by=(0.25, 0.75)).log_propensities(rows)
    assert numpy.exp(told) == pytest.approx([0.25, 0.75, 0.25, 0.75])
    with pytest.raises(RequestError) as raised:
        policies(by=(1.0, 0.0)).log_propensities(rows.part(1, 4))
    assert str(raised.value) == (
        "the policy of --logged-by never takes the action of row 1.\n"
        "  try: the run that was recorded, or one of bc that was trained on this log"
    )


def test_densities_of_continuous_actions_may_be_those_of_a_policy(tmp_path: Path) -> None:
    table = {**CHOICES, "action": [0.5, -1.0, 2.0, 0.25], "episode": [0, 0, 1, 1]}
    boxes = spaces.Box(-9, 9, (1,)), spaces.Box(-3, 3, (1,))
    log = log_of(tmp_path, table, boxes)
    (rows,) = log.read(0, 10)
    assert policies(by=()).log_propensities(rows).tolist() == [1.0, -2.0, 4.0, 0.5]
    assert policies(by=()).log_propensities(rows).dtype == numpy.float64
    # Without a column for ends, episodes end where their numbers do.
    found, said = episode_choices(policies(by=()), log, 1.0, ignore)
    assert found.log_ratios.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert (found.steps, said, found.q_policy) == (4, [], None)


def test_what_a_log_never_shows_and_weights_are_those_of_its_columns(tmp_path: Path) -> None:
    shown = [[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.2, 0.4, 0.4], [0.0, 1.0, 0.0]]
    table = {**CHOICES, "action": [0, 1, 2, 1], "propensities": shown, "weight": [1, 2, 3, 4]}
    log = log_of(tmp_path, table)
    judged = policies((0.25, 0.125, 0.625), num_arms=3)
    found = bandit_choices(judged, log, ignore)
    assert found.unseen.tolist() == [0.625, 0.625, 0.0, 0.875]
    assert found.propensities == pytest.approx([0.5, 0.5, 0.4, 1.0])
    assert found.weights is not None
    assert found.weights.tolist() == [1.0, 2.0, 3.0, 4.0]
    # What the log never chose counts once, even if it never shows it either.
    log = log_of(tmp_path, {**table, "action": [0, 1, 1, 1]})
    never = bandit_choices(judged, log, ignore)
    assert never.unseen.tolist() == [0.625, 0.625, 0.625, 0.875]
    log = log_of(tmp_path, {**table, "weight": [1] * 4})
    even = bandit_choices(judged, log, ignore)
    assert even.influence is not None
    assert found.influence is not None
    assert not numpy.allclose(even.influence, found.influence)


TWO_ARMS = policies((0.25, 0.75), num_arms=2)

STEPS = {
    "context": [5, 6, 7, 5, 7, 6],
    "action": [0, 1, 1, 0, 1, 0],
    "reward": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
    "propensity": [0.5] * 6,
    "terminated": [False, False, True, False, False, True],
}


def test_numbered_states_are_told_apart_by_a_model(tmp_path: Path) -> None:
    log = log_of(tmp_path, STEPS, (spaces.Discrete(3, start=5), spaces.Discrete(2)))
    found, _ = episode_choices(TWO_ARMS, log, 0.9, ignore)
    hot = numpy.eye(3)[numpy.array(STEPS["context"]) - 5].tolist()
    boxes = spaces.Box(0, 1, (3,)), spaces.Discrete(2)
    log = log_of(tmp_path, {**STEPS, "context": hot}, boxes)
    other, _ = episode_choices(TWO_ARMS, log, 0.9, ignore)
    assert found.q_logged is not None
    assert found.q_policy is not None
    assert numpy.array_equal(found.q_logged, other.q_logged)  # type: ignore[arg-type]
    assert numpy.array_equal(found.q_policy, other.q_policy)  # type: ignore[arg-type]
