"""What a run shows while it works: lines for what takes long, and a bar that fits."""

from __future__ import annotations

import gc
import io
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from rlplug.config.sections import RunConfig, RunSection
from rlplug.hooks.events import RunInfo
from rlplug.plugin import NoOptions
from rlplug.tracking.console import Activities, Console

Cli = Callable[..., Any]


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """What was drawn, without colours and movements of the cursor."""
        plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.getvalue())
        return [line for line in re.split(r"[\r\n]+", plain) if line.strip()]


def run_info(step: int, feed: str = "") -> RunInfo:
    config = RunConfig(run=RunSection(algorithm="ppo"), algorithm=NoOptions())
    return RunInfo(
        run_id="0123456789abcdef",
        folder=Path(),
        config=config,
        participants=(),
        hook_order={},
        environment="Pendulum-v1",
        feed=feed,
        steps=300_000,
        progress=lambda: step,
    )


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert condition()


# -- what takes long ----------------------------------------------------------------------------


def test_only_what_takes_over_a_second_is_told_of_with_how_far_it_is() -> None:
    told: list[str] = []
    activities = Activities(told.append)
    with activities.doing("saving a checkpoint"):
        assert not activities.long
    with activities.doing("evaluating", lambda: "3 of 10 episodes"):
        wait_for(lambda: told)
        assert activities.long == "evaluating: 3 of 10 episodes"
    assert told == ["evaluating: 3 of 10 episodes"]
    assert not activities.long


def test_what_takes_much_longer_is_told_of_again_with_how_long() -> None:
    told: list[str] = []
    with Activities(told.append).doing("opening MLflow"):
        wait_for(lambda: len(told) == 2)
    assert told[0] == "opening MLflow …"
    assert re.fullmatch("opening MLflow … for 0:0[0-9]", told[1])


# -- the bar ------------------------------------------------------------------------------------


def drawn(width: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    terminal = Terminal()
    console = Console(terminal)
    console.evaluation_finished({"rollout/return_mean": -1183.4, "eval/return_mean": -1140.2})
    console.run_started(run_info(135_000))
    wait_for(lambda: "eval" in terminal.getvalue())
    console.close()
    return terminal.lines()


@pytest.mark.parametrize(
    ("width", "bar", "shown"),
    [
        (120, 24, ("135,000/300,000 steps", "steps/s", "left")),
        (60, 14, ("left",)),
        (45, 0, ("left",)),
        (38, 0, ()),
    ],
)
def test_the_bar_shrinks_and_parts_are_left_out_until_the_line_fits_and_the_numbers_stay(
    monkeypatch: pytest.MonkeyPatch, width: int, bar: int, shown: tuple[str, ...]
) -> None:
    line = next(line for line in drawn(width, monkeypatch) if "%" in line)
    assert len(line) < width
    assert abs(sum(line.count(mark) for mark in "━─") - bar) <= 2
    assert all(part in line for part in (*shown, " 45%", "return -1,183", "eval -1,140"))
    parts = ("135,000/300,000 steps", "steps/s", "left")
    assert not any(part in line for part in parts if part not in shown)


def test_titles_and_paths_are_not_broken_in_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    terminal = Terminal()
    console = Console(terminal)
    console.run_started(run_info(0, feed="a replay buffer of 100,000 transitions in 12 MB"))
    console.say("/a/very/long/path/of/a/run/that/does/not/fit/into/forty/columns")
    console.close()
    text = "\n".join(terminal.lines())
    assert "on Pendulum-v1, 300,000 steps, seed 0, run 01234567" in text
    assert "a replay buffer of 100,000 transitions in 12 MB" in text
    assert "/a/very/long/path/of/a/run/that/does/not/fit/into/forty/columns" in text


def test_the_bar_says_what_is_done_besides_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    terminal = Terminal()
    console = Console(terminal)
    console.run_started(run_info(300_000))
    with console.activities.doing("closing", lambda: "3 files to upload"):
        wait_for(lambda: "closing: 3 files to upload" in terminal.getvalue())
    console.close()


def test_evaluating_has_a_bar_of_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    terminal = Terminal()
    console = Console(terminal)
    console.episodes_started(100, lambda: 25)
    wait_for(lambda: "left" in terminal.getvalue())
    console.close()
    assert re.match(r"━{5}─{14}  evaluating  25/100 episodes  0:0\d left", terminal.lines()[-1])


def test_numbers_on_lines_have_thousands_and_no_exponent() -> None:
    stream = io.StringIO()
    console = Console(stream)
    console.run_started(run_info(0))
    metrics: Mapping[str, float] = {"rollout/return_mean": -1183.4, "time/steps_per_second": 8e3}
    console.metrics_reported(30_000, metrics)
    assert "return -1,183" in stream.getvalue()


def test_a_reader_that_has_gone_does_not_stop_the_console() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    console = Console(Gone())
    console.say("preparing …")
    console.say("preparing …")


# -- the start and the end of the process ---------------------------------------------------------


def test_what_is_prepared_is_said_before_anything_heavy_is_imported() -> None:
    script = (
        "import sys\n"
        "class Said:\n"
        "    def isatty(self): return False\n"
        "    def flush(self): pass\n"
        "    def write(self, text):\n"
        "        sys.stdout.write(text)\n"
        "        if text.startswith('preparing'):\n"
        "            heavy = {'torch', 'gymnasium', 'mlflow', 'numpy', 'rich'}\n"
        "            print(sorted(heavy & set(sys.modules)))\n"
        "            sys.exit()\n"
        "sys.stderr = Said()\n"
        "from rlplug.cli import main\n"
        "main(['run', '--algo', 'linucb', '--env', 'LinearBandit-v0', *sys.argv[1:]])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "preparing linucb on LinearBandit-v0 …\n[]\n"


def test_quiet_says_nothing(rlplug: Cli, store_root: Path) -> None:
    done = rlplug("run", "--algo", "linucb", "--steps", "10", "--quiet")
    assert (done.code, done.out, done.err) == (0, "", "")


def test_garbage_is_collected_while_a_run_trains(rlplug: Cli, store_root: Path) -> None:
    gc.disable()
    rlplug("run", "--algo", "linucb", "--steps", "10", "--quiet")
    assert gc.isenabled()


def test_files_that_a_plugin_left_open_are_complete_at_the_end(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from rlplug.cli import main\n"
        "class Plugin: pass\n"
        "def cyclic():\n"
        "    plugin = Plugin()\n"
        "    plugin.me = plugin\n"
        "    plugin.file = open(sys.argv.pop(), 'w')\n"
        "    plugin.file.write('the last line')\n"
        "    return plugin\n"
        "plugin = cyclic()\n"
        "main()\n"
    )
    file = tmp_path / "rows.csv"
    subprocess.run([sys.executable, "-c", script, "--version", str(file)], check=True)
    assert file.read_text() == "the last line"
