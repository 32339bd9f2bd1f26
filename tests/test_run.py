from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy
import pytest
from safetensors.numpy import load_file

from rlplug import AddOn, RunResult, run
from rlplug.errors import ConfigError

ROOT = Path(__file__).parent.parent
OFF = {"tracking.enabled": False}


pytestmark = pytest.mark.usefixtures("home", "installed")


def reports(result: RunResult) -> list[dict[str, Any]]:
    lines = (result.folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


class Steady(gymnasium.Env[Any, Any]):
    """Arm 1 pays 1, arm 0 nothing."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), numpy.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return numpy.zeros(1), {}

    def step(self, action: Any) -> Any:
        return numpy.zeros(1), float(action), True, False, {}


# -- from Python --------------------------------------------------------------------------------


def test_a_run_learns_and_leaves_module_metrics_and_folder(home: Path) -> None:
    result = run("means", Steady, steps=500, options=OFF)
    assert (result.status, result.step) == ("FINISHED", 500)
    assert result.metrics["rollout/reward_mean"] > 0.9
    assert result.metrics["train/best_mean"] == 1.0
    assert result.folder.parent.parent == home
    saved = load_file(result.folder / "module.safetensors")
    assert saved["counts"].sum() == 500
    assert saved["counts"].tolist() == result.module.counts.tolist()  # type: ignore[union-attr, operator] # a buffer


def test_the_same_seed_gives_the_same_numbers() -> None:
    def numbers(seed: int) -> dict[str, float]:
        metrics = run("means", steps=300, seed=seed, options=OFF).metrics
        return {name: value for name, value in metrics.items() if not name.startswith("time/")}

    assert numbers(1) == numbers(1)
    assert numbers(1) != numbers(2)


def test_curves_of_several_seeds_have_their_points_at_the_same_steps() -> None:
    steps = [
        [report["step"] for report in reports(run("means", steps=1_000, seed=seed, options=OFF))]
        for seed in (1, 2)
    ]
    assert steps[0] == steps[1]
    assert len(steps[0]) == 320
    assert steps[0][-1] == 1_000


def test_the_resolved_config_gives_the_same_run_again() -> None:
    first = run("means", steps=300, seed=5, options={**OFF, "epsilon": 0.3, "env.num_arms": 4})
    again = run(config=first.folder / "config.toml")
    assert again.metrics["rollout/regret_total"] == first.metrics["rollout/regret_total"]


def test_classes_callables_and_instances_can_be_handed_over() -> None:
    class Watches(AddOn):
        """Counts updates and hears how it ends."""

        ended = ""

        def __init__(self, updates: int) -> None:
            self.updates = updates

        def update_finished(self, results: Any) -> None:
            self.updates += 1

        def run_finished(self, step: int) -> None:
            self.ended = f"at {step}"

    from rlplug import Registry

    registry = Registry.installed()
    means = registry.load(registry.find("algorithm", "means"))
    watcher = Watches(0)
    result = run(means, Steady, steps=50, addons=[watcher], options=OFF)
    assert (watcher.updates, watcher.ended) == (50, "at 50")
    assert result.status == "FINISHED"


def test_regret_is_logged_where_a_callable_makes_the_environments() -> None:
    def bandit() -> Any:
        return gymnasium.make("rlplug.bandits:LinearBandit-v0", noise=0.0)

    result = run("means", bandit, steps=40, options={**OFF, "num_envs": 2})
    assert result.metrics["rollout/regret_total"] > 0
    assert len([one for one in reports(result) if "rollout/regret_mean" in one["metrics"]]) == 20


def test_an_error_in_a_hook_ends_the_run_as_failed_and_keeps_what_was_recorded() -> None:
    with pytest.raises(ArithmeticError, match="planted") as raised:
        run("means", steps=1_000, options={**OFF, "fail_at": 500})
    notes = raised.value.__notes__
    assert (
        notes[0] == "raised in hook 'additional_update' of algorithm 'means' (rlplug-means 0.1.0)"
    )
    assert notes[1] == "recorded up to step 500; there is no checkpoint:"
    folder = Path(re.search(r"\bin (\S+)$", notes[2])[1])  # type: ignore[index] # asserted by the test
    assert load_file(folder / "module.safetensors")["counts"].sum() == 499
    assert "ArithmeticError: planted" in (folder / "logs" / "traceback.txt").read_text()


# -- from the command line ----------------------------------------------------------------------

Cli = Callable[..., Any]


def test_a_preset_for_the_environment_is_suggested(rlplug: Cli) -> None:
    command = ("run", "--algo", "dqn", "--steps", "200", "--set", "learning_starts=100")
    suggestion = "options tuned for CartPole-v1: --preset cartpole\n"
    assert suggestion in rlplug(*command).err
    assert suggestion not in rlplug(*command, "--env", "Acrobot-v1").err
    assert suggestion not in rlplug(*command, "--preset", "cartpole").err


def test_run_prints_progress_to_stderr_and_the_result_to_stdout(rlplug: Cli) -> None:
    done = rlplug("run", "--algo", "means", "--set", "tracking.enabled=false")
    assert done.code == 0
    assert done.err.startswith("preparing means …\n")
    # Without what took long on a slow machine.
    progress = [line for line in done.err.splitlines() if not line.endswith(" …")]
    assert re.match("means on LinearBandit-v0, 2,000 steps, seed 0, run [0-9a-f]{8}$", progress[0])
    assert re.fullmatch(r"100%  2,000 steps +[\d,]+ steps/s  reward \S+  regret \S+", progress[-1])
    assert len(progress) == 12
    words = [line.split() for line in done.out.splitlines()]
    assert words[0][0] == "reward"
    assert ["steps", "2,000", "in"] in [line[:3] for line in words]
    assert [line[0] for line in words[-4:]] == ["run", "in", "look", "next:"]


def test_json_is_the_last_line_and_quiet_prints_nothing_else(rlplug: Cli) -> None:
    arguments = ["run", "--algo", "means", "--steps", "100", "--set", "tracking.enabled=false"]
    done = rlplug(*arguments, "--json", "--quiet")
    assert done.err == ""
    result = json.loads(done.out.splitlines()[-1])
    assert (result["status"], result["step"]) == ("FINISHED", 100)
    assert Path(result["folder"]).is_dir()
    silent = rlplug(*arguments, "--quiet")
    assert (silent.out, silent.err) == ("", "")


def test_a_failed_run_exits_with_1_and_names_hook_and_plugin(rlplug: Cli) -> None:
    done = rlplug(
        "run",
        "--algo",
        "means",
        "--set",
        "fail_at=10",
        "--set",
        "tracking.enabled=false",
        "--quiet",
    )
    assert done.code == 1
    assert (
        "rlplug: error: ArithmeticError: planted\n  raised in hook 'additional_update'" in done.err
    )
    assert "Traceback" not in done.err


def test_a_failed_environment_is_named_with_what_is_recorded_of_the_run(
    rlplug: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Bursts(Steady):
        def step(self, action: Any) -> Any:
            raise OSError("burst")

    spec = gymnasium.envs.registration.EnvSpec("Bursts-v0", lambda **given: Bursts())
    monkeypatch.setitem(gymnasium.registry, spec.id, spec)
    monkeypatch.setattr("rlplug.runs.setup.long_episodes", lambda *given: None)
    done = rlplug(
        *("run", "--algo", "means", "--env", "Bursts-v0", "--quiet"),
        *("--set", "tracking.enabled=false"),
    )
    assert done.code == 1
    first, hint, recorded, run_id, *_ = done.err.splitlines()
    assert first == (
        "rlplug: error: environment 'Bursts-v0' failed in step after 0 steps: OSError: burst"
    )
    assert hint.startswith("  try: fix the environment")
    assert recorded == "  nothing is recorded; there is no checkpoint:"
    assert run_id.split()[0] == "run"


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ("Pendulum-v1", "it needs discrete actions, found Box"),
        ("CartPole-v1", "episodes have one step; here they go on"),
        (
            "LinearBandit-v1",
            "unknown environment 'LinearBandit-v1'",
        ),
    ],
)
def test_an_environment_that_does_not_fit_exits_with_2(rlplug: Cli, env: str, said: str) -> None:
    for more in ([], ["--dry-run"]):
        done = rlplug("run", "--algo", "means", "--env", env, *more)
        assert (done.code, done.out) == (2, "")
        assert said in done.err


def test_a_run_imports_neither_the_compiler_nor_mlflow_where_it_uses_none(tmp_path: Path) -> None:
    script = """
        import sys
        import rlplug
        from rlplug.learner.device import without_compiler
        from torch.optim import Optimizer

        off = {"tracking.enabled": False, "evaluation.episodes": 1}
        names = set(vars(Optimizer.zero_grad.__wrapped__))
        rlplug.run("ppo", "CartPole-v1", steps=256, options={"n_steps": 32, **off})
        rlplug.run("dqn", "CartPole-v1", steps=150, options={"learning_starts": 100, **off})
        rlplug.run("a2c", "CartPole-v1", steps=100, options=off)
        # Also while another run is in progress, which an add-on may start.
        with without_compiler(), without_compiler():
            pass
        assert {"torch._dynamo", "mlflow"} & set(sys.modules) == set()
        assert set(vars(Optimizer.zero_grad.__wrapped__)) == names
    """
    command = [sys.executable, "-c", inspect.cleandoc(script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# -- the guide ----------------------------------------------------------------------------------


def guide_block(language: str, index: int) -> str:
    guide = (ROOT / "docs" / "hooks.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", guide, re.DOTALL)[index]


def test_the_plugins_of_the_guide_work_as_written(tmp_path: Path, rlplug: Cli) -> None:
    package = tmp_path / "rlplug_softmax"
    package.mkdir()
    (package / "__init__.py").write_text(guide_block("python", 0))
    (tmp_path / "pyproject.toml").write_text(guide_block("toml", 0))
    scope: dict[str, Any] = {}
    exec(guide_block("python", 1), scope)
    sys.path.insert(0, str(tmp_path))
    try:
        from rlplug_softmax import Softmax  # type: ignore[import-not-found] # written above
    finally:
        sys.path.remove(str(tmp_path))
    random = 0.0
    options = {**OFF, "env.noise": 0.0}
    learned = run(Softmax, steps=20_000, options=options)
    assert learned.metrics["rollout/reward_mean"] > random + 0.35
    noise = scope["GradNoise"](scope["GradNoiseConfig"](scale=0.0))
    neutral = run(Softmax, steps=2_000, addons=[noise], options=options)
    alone = run(Softmax, steps=2_000, options=options)
    assert neutral.metrics["rollout/regret_total"] == alone.metrics["rollout/regret_total"]


def test_an_argument_is_not_given_again_among_the_options() -> None:
    for path in ("run.steps", "steps"):
        with pytest.raises(ConfigError, match=r"steps +is given twice"):
            run("linucb", Steady, steps=64, options={**OFF, path: 64})


def test_steps_and_seed_may_be_numpy_s_whole_numbers_and_nothing_else() -> None:
    given: Any = {"steps": numpy.int64(64), "seed": numpy.int32(3)}
    assert run("linucb", Steady, options=OFF, **given).step == 64
    wrong: Any = 1e3
    with pytest.raises(TypeError):
        run("linucb", Steady, steps=wrong, options=OFF)
