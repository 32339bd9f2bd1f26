"""What `rlplug plugins list` and `rlplug plugins show` print, to the letter."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click import Context

from rlplug.cli.main import cli, main

Cli = Callable[..., Any]

GOOD = """\
algorithm 'good' (rlplug-good 0.1.0)  A plugin for a test
class    good_plugin:Good
default  LinearBandit-v0, 1,000 steps

Learns well enough for a test.

By steps along [bold], as they were.

Hooks
  build

Options
  name           type                           default
  learning_rate  float or schedule, at least 0  0.1       Step size.
  gamma          float, between 0 and 1         0.99      Weight of the future.
  double         bool                           true      Use two networks.
  hidden         list of int                    [64, 64]  Units per layer.
  options of every run: rlplug options

Presets, named sets of options: rlplug run --algo good --preset small
  small
    gamma = 0.5
    hidden = [8]

As run.toml, to copy: rlplug run --config run.toml
[run]
algorithm = "good"
env = "LinearBandit-v0"

[algorithm]
learning_rate = 0.1
gamma = 0.99
double = true
hidden = [
    64,
    64,
]

# sampling.num_envs = 4     (this algorithm's default)
"""

QUIET = """\
add-on 'quiet' (rlplug-quiet 0.1.0)  A plugin for a test
class    quiet_plugin:Quiet

Does nothing.

Hooks
  update_finished

Options
  none

As run.toml, to copy: rlplug run --config run.toml
[run]
addons = [
    "quiet",
]

[addons.quiet]
"""


@pytest.mark.parametrize(("name", "page"), [("good", GOOD), ("quiet", QUIET)])
def test_show_prints_one_page_per_plugin(
    rlplug: Cli, installed: Path, name: str, page: str
) -> None:
    done = rlplug("plugins", "show", name)
    assert (done.code, done.out, done.err) == (0, page, "")


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> list[str]:
    """The lines that `rlplug plugins list` prints on a terminal of this width."""
    ours, theirs = os.openpty()
    monkeypatch.setenv("COLUMNS", str(columns))
    with os.fdopen(theirs, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr("sys.stdout", terminal)
        with pytest.raises(SystemExit) as left:
            main(["plugins", "list"])
        assert left.value.code == 0
        # What was written may arrive in parts, each of which ends anywhere.
        terminal.write("\0")
        terminal.flush()
        text = b""
        while not text.endswith(b"\0"):
            text += os.read(ours, 65536)
    os.close(ours)
    return text.decode().rstrip("\0").replace("\r", "").split("\n")


def add_ons(lines: list[str]) -> list[str]:
    """The table of add-ons without colours, below an empty line."""
    plain = [re.sub(r"\x1b\[\d+m", "", line) for line in lines]
    start = next(number for number, line in enumerate(plain) if line.startswith("ADD-ON"))
    assert plain[start - 1] == ""
    return plain[start:]


def test_list_wraps_its_last_column_to_the_terminal(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = add_ons(on_a_terminal(monkeypatch, 10))
    column = narrow[0].index("STATUS") + len("STATUS  ")
    # No terminal is so narrow that less than 24 characters are left for it.
    assert [line[column:] for line in narrow[1:4]] == [
        "names are lower case",
        "letters, digits and",
        "dashes",
    ]
    assert [line[:column].split() for line in narrow[1:4]] == [
        ["Odd_name", "rlplug-odd", "0.1.0", "odd"],
        [],
        [],
    ]
    assert ["quiet", "rlplug-quiet", "0.1.0", "ok"] in [line[:column].split() for line in narrow]
    # The first line of the text has 29 characters with "letters," and 20 without.
    for room, first in ((29, "names are lower case letters,"), (28, "names are lower case")):
        lines = add_ons(on_a_terminal(monkeypatch, column + room))
        assert lines[1][column:] == first


def test_list_is_coloured_on_a_terminal_where_that_is_wanted(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = "\n".join(on_a_terminal(monkeypatch, 200))
    assert re.search(r"^\x1b\[1mADD-ON +PACKAGE +STATUS\x1b\[0m$", text, re.MULTILINE)
    assert "  \x1b[33modd   \x1b[0m  names" in text
    assert "  \x1b[32mok    \x1b[0m  A plugin" in text
    assert "  \x1b[31mclash \x1b[0m  twin-one" in text
    assert "  \x1b[31munfit \x1b[0m  needs" in text
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in "\n".join(on_a_terminal(monkeypatch, 200))


def test_a_reader_that_has_left_is_told_nothing(
    installed: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for line in ("plugins list", "plugins show good", "options", "--version", "plugins hooks"):
        reading, writing = os.pipe()
        os.close(reading)
        with os.fdopen(writing, "w", encoding="utf-8") as stream:
            monkeypatch.setattr("sys.stdout", stream)
            with pytest.raises(SystemExit) as left:
                main(line.split())
            # What is written from now on goes nowhere.
            stream.write("more")
        assert (left.value.code, capfd.readouterr().err) == (0, "")


def test_the_names_of_plugins_are_completed_by_their_kind(installed: Path) -> None:
    context = Context(cli)

    def completed(command: str, parameter: str, begun: str) -> list[tuple[Any, Any]]:
        group, _, name = command.rpartition(" ")
        found: Any = cli if not group else cli.commands[group]
        (one,) = [part for part in found.commands[name].params if part.name == parameter]
        return [(item.value, item.help) for item in one.shell_complete(context, begun)]

    assert completed("run", "algo", "goo") == [("good", "A plugin for a test")]
    assert completed("run", "algo", "quie") == []
    assert completed("run", "addons", "quie") == [("quiet", "A plugin for a test")]
    assert completed("plugins show", "name", "goo") == [("good", "A plugin for a test")]
    assert completed("plugins show", "name", "quie") == [("quiet", "A plugin for a test")]
    assert completed("options", "section", "e") == [("env", None), ("evaluation", None)]
