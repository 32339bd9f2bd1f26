"""`rlplug resume`: which runs go on, from where, and what is refused."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy
import pytest
import torch

import rlplug as library
from rlplug import Acted, AddOn, Algorithm, Module
from rlplug.checkpoint import checkpoints_in, read_manifest
from rlplug.errors import RequestError
from rlplug.feeds import Stream
from rlplug.runs.result import RunInterrupted
from rlplug.tracking.status import RunStatus
from tests.test_checkpoint_damage import renew_digests
from tests.warm import Forked, Warm

Cli = Callable[..., Any]
Command = Callable[..., Forked]
OFF = {"tracking.enabled": False}
ALONE = {**OFF, "checkpoint.every": 20, "evaluation.episodes": 0}

pytestmark = pytest.mark.usefixtures("installed")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RLPLUG_HOME", str(tmp_path))
    return tmp_path


class SumModule(Module):
    """Draws its actions from the sampler's generator, and adds up rewards."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sums", torch.zeros(2, dtype=torch.float64))

    def forward_exploration(self, act: Any) -> Acted:
        return Acted(act.random.integers(2, size=len(act.observations)))

    def forward_inference(self, act: Any) -> Acted:
        return Acted(numpy.zeros(len(act.observations), dtype=numpy.int64))


class Sums(Algorithm):
    """Adds up the rewards of each action."""

    def feed(self) -> Stream:
        return Stream()

    def build(self) -> Module:
        return SumModule()

    def configure_optimizers_for_module(self) -> None:
        return None

    def additional_update(self, module: Any, batch: Any) -> None:
        for action, reward in zip(batch["actions"], batch["rewards"], strict=True):
            module.sums[int(action)] += float(reward)


class Stops(AddOn):
    """Ends the process's part of a run by an error."""

    def __init__(self, at: int = 0, *, when_saved: bool = False) -> None:
        super().__init__(None)
        self.at = at
        self.when_saved = when_saved

    def checkpoint_saved(self) -> None:
        if self.when_saved:
            raise ArithmeticError("stopped")

    def save_state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: Any) -> None:
        """Nothing is kept."""

    def metrics_reported(self, step: int) -> None:
        if self.at and step >= self.at:
            raise ArithmeticError("stopped")


def stopped(
    home: Path, at: int, *, algorithm: Any = "means", env: Any = "", options: Any = ALONE
) -> Path:
    """The folder of a run of 200 steps that ended by an error."""
    before = set(home.glob("work/*"))
    with pytest.raises(ArithmeticError, match="stopped"):
        library.run(algorithm, env, steps=200, addons=[Stops(at)], options=options)
    (folder,) = set(home.glob("work/*")) - before
    return folder


def steps_in(folder: Path) -> list[int]:
    return [read_manifest(one).step for one in checkpoints_in(folder / "checkpoints")]


@pytest.fixture
def command(home: Path, site: Path, warm: Warm) -> Command:
    """Start `rlplug` in a process of its own, with the plugins of a folder."""

    def start(*arguments: str, plugins: Path = site) -> Forked:
        return warm.start(*arguments, paths=[plugins])

    return start


# -- kill -9, and the same run in MLflow ---------------------------------------------------------


def test_a_killed_run_goes_on_as_the_same_mlflow_run_without_a_point_twice(
    home: Path, command: Command, empty_store: Path, rlplug: Cli
) -> None:
    shutil.copy(empty_store, home / "mlflow.db")
    arguments = ("--algo", "means", "--steps", "4000", "--set", "checkpoint.every=250")
    process = command("run", *arguments, "--quiet")
    try:
        deadline = time.monotonic() + 120
        while not any(home.glob("work/*/checkpoints/step-0000000*/manifest.json")):
            assert time.monotonic() < deadline, "no checkpoint in two minutes"
            assert process.poll() is None, process.err
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    (folder,) = (one for one in home.glob("work/*") if one.is_dir())
    last = steps_in(folder)[-1]
    shorter = rlplug("resume", "last", "--steps", "100")
    assert shorter.code == 2
    assert "run.steps: 4000 → 100" in shorter.err
    with sqlite3.connect(home / "mlflow.db") as database:
        assert database.execute("select run_uuid from runs").fetchall() == [(folder.name,)]
    process = command("resume", "last", "--json")
    said, _ = process.communicate(timeout=300)
    result = json.loads(said.splitlines()[-1])
    assert (result["run_id"], result["status"]) == (folder.name, "FINISHED")
    assert result["step"] == 4_000
    with sqlite3.connect(home / "mlflow.db") as database:
        (status,) = database.execute("select status from runs").fetchone()
        tags = dict(database.execute("select key, value from tags").fetchall())
        (twice,) = database.execute(
            "select count(*) from (select key, step from metrics group by 1, 2 having count(*) > 1)"
        ).fetchone()
        (points,) = database.execute(
            "select count(*) from metrics where key = 'rollout/reward_mean'"
        ).fetchone()
    assert status == "FINISHED"
    assert tags["rlplug.attempt"] == "2"
    assert int(tags["rlplug.resumed_from_step"]) >= last
    assert (twice, points) == (0, 320)


# -- from where ------------------------------------------------------------------------------------


def test_a_run_without_a_checkpoint_starts_from_its_first_step_under_its_id(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = stopped(home, at=10)
    assert steps_in(folder) == []
    resumed = library.resume(folder.name, addons=[Stops()])
    said = "there is no checkpoint: the run starts from its first step."
    assert said in caplog.text
    assert said in (folder / "logs" / "run.log").read_text()
    assert (resumed.run_id, resumed.step, resumed.status) == (folder.name, 200, "FINISHED")
    whole = library.run("means", steps=200, addons=[Stops()], options=OFF)
    for name, tensor in whole.module.state_dict().items():
        assert torch.equal(tensor, resumed.module.state_dict()[name])


def test_a_damaged_checkpoint_is_passed_over_and_that_is_said(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = stopped(home, at=90)
    newest = checkpoints_in(folder / "checkpoints")[-1]
    state = newest / "training" / "state.json"
    state.write_bytes(state.read_bytes()[:-1])
    resumed = library.resume(folder.name, addons=[Stops()])
    assert resumed.step == 200
    assert f"the checkpoint {newest} is damaged: training/state.json does not match" in caplog.text
    whole = library.run("means", steps=200, addons=[Stops()], options=OFF)
    assert torch.equal(whole.module.state_dict()["sums"], resumed.module.state_dict()["sums"])


PARTS = (
    *("periodic", "run", "feed", "random", "best", "evaluate_at", "still"),
    *("trainer", "limits"),
)


def test_a_training_state_without_a_part_is_told_with_the_checkpoint(home: Path) -> None:
    folder = stopped(home, at=90)
    # Under digests that are right, the checkpoint before is not gone on from.
    newest = checkpoints_in(folder / "checkpoints")[-1]
    states = [newest / name / "state.json" for name in ("training", "policy")]
    texts = [state.read_text() for state in states]
    for part in PARTS:
        for state, text in zip(states, texts, strict=True):
            state.write_text(text.replace(f'["{part}", ', '["another", '))
        renew_digests(newest)
        with pytest.raises(RequestError, match=r"(of|in) the checkpoint ") as refused:
            library.resume(folder.name, addons=[Stops()])
        assert str(newest) in str(refused.value)
        assert part in str(refused.value)


class Unpicklable(gymnasium.Env[Any, Any]):
    """Pays a number that its generator draws; an episode has five steps."""

    observation_space = gymnasium.spaces.Box(0, 5, (1,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.held = lambda: None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.taken = 0
        return numpy.zeros(1, numpy.float32), {}

    def step(self, action: Any) -> Any:
        self.taken += 1
        reward = float(self.np_random.random())
        ends = self.taken == 5
        return numpy.full(1, self.taken, numpy.float32), reward, ends, False, {}


def test_environments_that_cannot_be_saved_start_anew_and_always_alike_and_that_is_said_before(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = stopped(home, at=90, algorithm=Sums, env=Unpicklable)
    assert caplog.text.count("a resumed run will start new episodes") == 1
    copy = shutil.copytree(folder, home / "copy")
    sums = []
    for again in range(2):
        if again:
            shutil.rmtree(folder)
            shutil.copytree(copy, folder)
        caplog.clear()
        result = library.resume(folder.name, algorithm=Sums, env=Unpicklable, addons=[Stops()])
        assert result.step == 200
        assert "episodes start anew at step 80: the environments are not restored" in caplog.text
        assert "Can't pickle" in caplog.text
        sums.append(result.module.state_dict()["sums"])
    assert torch.equal(*sums)


class Picklable(Unpicklable):
    def __init__(self) -> None:
        """Nothing that cannot be pickled."""


def test_pickles_of_environments_can_be_refused(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = stopped(home, at=90, algorithm=Sums, env=Picklable)
    whole = library.run(Sums, Picklable, steps=200, addons=[Stops()], options=ALONE)
    exact = library.resume(folder.name, algorithm=Sums, env=Picklable, addons=[Stops()])
    assert torch.equal(whole.module.state_dict()["sums"], exact.module.state_dict()["sums"])
    assert "start anew" not in caplog.text
    refusing = {**ALONE, "checkpoint.save_environments": False}
    folder = stopped(home, at=90, algorithm=Sums, env=Picklable, options=refusing)
    library.resume(folder.name, algorithm=Sums, env=Picklable, addons=[Stops()])
    assert "are not restored (checkpoint.save_environments is false)" in caplog.text


class Interrupting(Picklable):
    """Raises SIGINT in the first step of the evaluation of a run, once."""

    made = 0
    armed = False

    def __init__(self) -> None:
        Interrupting.made += 1
        self.number = Interrupting.made

    def step(self, action: Any) -> Any:
        if Interrupting.armed and self.number == 2:
            Interrupting.armed = False
            signal.raise_signal(signal.SIGINT)
        return super().step(action)


EVALUATED = {**OFF, "evaluation.every": 100, "evaluation.episodes": 3, "evaluation.parallel": 1}


def evaluations(folder: Path) -> dict[int, float]:
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return {
        row["step"]: row["metrics"]["eval/return_mean"]
        for row in rows
        if "eval/return_mean" in row["metrics"]
    }


def test_an_evaluation_that_ctrl_c_cut_short_is_made_when_the_run_goes_on(home: Path) -> None:
    whole = library.run(Sums, Interrupting, steps=300, options=EVALUATED)
    Interrupting.made, Interrupting.armed = 0, True
    with pytest.raises(RunInterrupted) as raised:
        library.run(Sums, Interrupting, steps=300, options=EVALUATED)
    assert raised.value.result.step == 100
    resumed = library.resume(raised.value.result.run_id, algorithm=Sums, env=Interrupting)
    assert list(evaluations(whole.folder)) == [100, 200, 300]
    assert evaluations(resumed.folder) == evaluations(whole.folder)
    assert torch.equal(whole.module.state_dict()["sums"], resumed.module.state_dict()["sums"])


def test_a_run_that_was_killed_when_an_evaluation_had_ended_it_ends_there(home: Path) -> None:
    options = {**EVALUATED, "evaluation.stop_at_return": 0.0}
    whole = library.run(Sums, Picklable, steps=200, options=options, addons=[Stops()])
    assert (whole.step, whole.status) == (100, "FINISHED")
    with pytest.raises(ArithmeticError, match="stopped"):
        library.run(Sums, Picklable, steps=200, options=options, addons=[Stops(when_saved=True)])
    resumed = library.resume("last", algorithm=Sums, env=Picklable, addons=[Stops()])
    assert (resumed.step, resumed.status, resumed.stopped) == (100, "FINISHED", whole.stopped)


# -- other options, and what is refused -----------------------------------------------------------


def test_other_options_are_refused_unless_drift_is_allowed(home: Path, rlplug: Cli) -> None:
    planted = {**ALONE, "fail_at": 90}
    with pytest.raises(ArithmeticError, match="planted"):
        library.run("means", steps=200, options=planted)
    (folder,) = home.glob("work/*")
    arguments = ("resume", folder.name[:8], "--set", "epsilon=0.5", "--set", "fail_at=0")
    refused = rlplug(*arguments)
    assert refused.code == 2
    changes = "algorithm.epsilon: 0.1 → 0.5; algorithm.fail_at: 90 → 0."
    assert f"would go on with other options: {changes}" in refused.err
    assert f"try: rlplug resume {folder.name[:8]} with --allow-drift" in refused.err
    assert rlplug(*arguments, "--allow-drift").code == 0
    assert "epsilon = 0.5" in (folder / "config.toml").read_text()


def test_changed_options_take_effect_on_optimizers_and_environments(home: Path) -> None:
    options = {**ALONE, "n_steps": 32, "n_epochs": 2, "evaluation.episodes": 0}
    first = library.run("ppo", "Pendulum-v1", steps=256, options=options)
    copy = shutil.copytree(first.folder, home / "copy")

    def weights(**changed: Any) -> Any:
        shutil.rmtree(first.folder)
        shutil.copytree(copy, first.folder)
        more = {"options": changed, "allow_drift": True}
        result = library.resume(first.run_id, steps=512, **more)
        assert result.metrics["train/learning_rate"] == changed.get("learning_rate", 3e-4)
        return torch.cat([one.flatten() for one in result.module.parameters()])

    plain = weights()
    assert torch.equal(plain, weights())
    for changed in ({"learning_rate": 0.01}, {"env.g": 2.0}):
        assert not torch.equal(plain, weights(**changed))


def test_a_run_that_is_made_longer_equals_one_that_was_as_long(home: Path, rlplug: Cli) -> None:
    short = library.run("means", steps=100, options=ALONE)
    refused = rlplug("resume", short.run_id)
    assert refused.code == 2
    assert f"run {short.run_id} finished at step 100: there is nothing to resume" in refused.err
    longer = library.resume(short.run_id, steps=200)
    whole = library.run("means", steps=200, options=ALONE)
    assert (longer.run_id, longer.step) == (short.run_id, 200)
    for name, tensor in whole.module.state_dict().items():
        assert torch.equal(tensor, longer.module.state_dict()[name])


def test_a_finished_run_without_its_last_checkpoint_can_be_resumed(home: Path) -> None:
    whole = library.run("means", steps=200, options=ALONE)
    last = checkpoints_in(whole.folder / "checkpoints")[-1]
    assert read_manifest(last).step == 200
    # As if the disk had been full at the end.
    shutil.rmtree(last)
    resumed = library.resume(whole.run_id)
    assert (resumed.step, steps_in(whole.folder)[-1]) == (200, 200)
    for name, tensor in whole.module.state_dict().items():
        assert torch.equal(tensor, resumed.module.state_dict()[name])


def test_a_run_in_progress_is_not_resumed_by_a_second_process(
    home: Path, command: Command, rlplug: Cli
) -> None:
    options = ("--steps", "10000000", "--set", "tracking.enabled=false")
    process = command("run", "--algo", "means", *options)
    try:
        deadline = time.monotonic() + 120
        # It makes the folder that of a run, and is written after the status.
        while not list(home.glob("work/*/run.json")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        (status,) = home.glob("work/*/status.json")
        refused = rlplug("resume", status.parent.name)
        assert refused.code == 2
        assert f"run {status.parent.name} is in progress (pid {process.pid} on" in refused.err
    finally:
        process.kill()
        process.communicate()
    # A dead process holds no lock.
    assert RunStatus.read(status.parent).status == "RUNNING"  # type: ignore[union-attr]
    assert "run.steps: 10000000 → 200" in rlplug("resume", "last", "--steps", "200").err


def test_only_runs_of_the_runs_folder_are_resumed(
    home: Path, tmp_path: Path, rlplug: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = stopped(home, at=90)
    monkeypatch.setenv("RLPLUG_HOME", str(tmp_path / "another"))
    refused = rlplug("resume", str(folder))
    assert refused.code == 2
    assert "is not in the runs folder" in refused.err
    assert f"RLPLUG_HOME={home}" in refused.err


def test_what_was_passed_from_python_has_to_be_passed_again(home: Path, rlplug: Cli) -> None:
    folder = stopped(home, at=90, algorithm=Sums, env=Picklable)
    refused = rlplug("resume", folder.name)
    assert refused.code == 2
    assert "unknown algorithm 'sums'" in refused.err
    assert f"rlplug.resume('{folder.name[:8]}', algorithm=…, env=…, addons=…)" in refused.err
    also = type("Also", (AddOn,), {"__doc__": "Takes part in no run here."})
    with pytest.raises(RequestError, match="has no add-on 'also'"):
        library.resume(folder.name, algorithm=Sums, env=Picklable, addons=[Stops(), also()])
    with pytest.raises(RequestError, match="no default environment"):
        library.resume(folder.name, algorithm=Sums, addons=[Stops()])


class Other(Picklable):
    """Has the spaces of Picklable, and pays more."""

    def step(self, action: Any) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, reward + 1, *rest


def test_another_environment_is_refused_unless_drift_is_allowed_and_then_recorded(
    home: Path, empty_store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copy(empty_store, home / "mlflow.db")
    folder = stopped(home, at=90, algorithm=Sums, env=Picklable, options={"checkpoint.every": 40})
    given = {"algorithm": Sums, "addons": [Stops()]}
    with pytest.raises(RequestError, match=r'other options: run\.env: "Picklable" → "Other"'):
        library.resume(folder.name, env=Other, **given)
    library.resume(folder.name, env=Other, allow_drift=True, **given)
    assert "episodes start anew at step 80: the environments are not restored (those of " in (
        caplog.text
    )
    with sqlite3.connect(home / "mlflow.db") as database:
        tags = dict(database.execute("select key, value from tags").fetchall())
    assert json.loads(tags["rlplug.param_drift"]) == {"run.env": '"Picklable" → "Other"'}
    # From now on, it is the run's.
    longer = library.resume(folder.name, env=Other, steps=240, **given)
    assert longer.step == 240
    with pytest.raises(RequestError, match="Other"):
        library.resume(folder.name, env=Picklable, steps=280, **given)


# -- jobs that are requeued ------------------------------------------------------------------------


def test_a_requeued_job_starts_resumes_and_then_has_nothing_to_do(home: Path, rlplug: Cli) -> None:
    job = ("run", "--algo", "means", "--steps", "300", "--resume-or-start", "night")
    options = ("--set", "tracking.enabled=false", "--set", "checkpoint.every=50")
    failing = rlplug(*job, *options, "--set", "fail_at=120")
    assert failing.code == 1
    (folder,) = (one for one in home.glob("work/*") if one.is_dir())
    other = rlplug(*job, *options)
    assert other.code == 2
    assert "algorithm.fail_at: 120 → 0" in other.err
    shutil.rmtree(folder)
    done = rlplug(*job, *options, "--json")
    assert json.loads(done.out)["step"] == 300
    again = rlplug(*job, *options)
    assert again.code == 0
    assert "finished at step 300: there is nothing to resume." in again.out
    longer = rlplug(*job[:4], "400", *job[5:], *options, "--json")
    assert json.loads(longer.out)["step"] == 400
    assert len([one for one in home.glob("work/*") if one.is_dir()]) == 1


# -- other plugins than the run was started with ------------------------------------------------


def test_another_version_of_a_plugin_is_drift_and_a_missing_one_an_error(
    home: Path, rlplug: Cli, command: Command, another_site: Callable[..., Path]
) -> None:
    options = ("--set", "tracking.enabled=false", "--set", "checkpoint.every=50")
    failing = ("--algo", "means", "--with", "scale", "--steps", "200", "--set", "fail_at=120")
    assert rlplug("run", *failing, *options).code == 1
    alone = another_site("alone", {"rlplug-means": "0.1.0"})
    newer = another_site("newer", {"rlplug-means": "0.2.0", "rlplug-scale": "0.1.0"})
    fixed = ("--set", "fail_at=0", "--allow-drift")
    cases = (
        (
            alone,
            (),
            2,
            "it was made with rlplug-scale 0.1.0: pip install rlplug-scale==0.1.0",
        ),
        (
            newer,
            (),
            2,
            "plugin means: rlplug-means 0.1.0 → rlplug-means 0.2.0.\n",
        ),
        (newer, fixed, 0, "resumed at step 100"),
    )
    for folder, more, code, said in cases:
        process = command("resume", "last", *more, plugins=folder)
        printed = "".join(process.communicate())
        assert process.returncode == code, printed
        assert said in printed
