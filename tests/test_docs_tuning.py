"""The commands, the file and the options of docs/tuning.md are accepted."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import attrs
import pytest

from rlplug.cli.tune import parse_spaces
from rlplug.config.sections import TuneSection
from rlplug.registry import Registry
from rlplug.runs.groups.asked import search_of
from rlplug.runs.request import Request

PAGE = (Path(__file__).parent.parent / "docs" / "tuning.md").read_text(encoding="utf-8")
COMMANDS = [
    line
    for block in re.findall(r"```bash\n(.*?)```", PAGE, re.S)
    for line in block.replace("\\\n", " ").splitlines()
    if line.startswith("rlplug tune")
]


@pytest.mark.parametrize("line", COMMANDS)
def test_the_studies_of_the_page_are_accepted(line: str) -> None:
    words = shlex.split(line)[2:]
    given = list(zip(words[::2], words[1::2], strict=True))
    flags = {name.removeprefix("--"): value for name, value in given if name != "--space"}
    run = {"algorithm": flags["algo"], "env": flags.get("env", "LinearBandit-v0")}
    section: dict[str, Any] = {
        "space": parse_spaces(tuple(x for name, x in given if name == "--space"))
    }
    section |= {"metric": flags["metric"]} if "metric" in flags else {}
    asked = search_of(Request(flags={"run": run}), section, Registry.installed())
    assert asked.search is not None
    assert len(asked.search.space) == len(section["space"]) > 0


def test_the_file_of_the_page_is_accepted(tmp_path: Path) -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.S)
    file = tmp_path / "tune.toml"
    file.write_text(text)
    asked = search_of(Request(config=file), {}, Registry.installed())
    names = [*tomllib.loads(text)["tune"]["space"]]
    assert asked.search is not None
    assert [name.partition(".")[0] for name in asked.search.space] == names
    assert asked.search.section.trials == 40
    assert asked.evaluate_every == 5000


def test_every_option_of_a_study_named_on_the_page_exists() -> None:
    fields = set(attrs.fields_dict(TuneSection))
    assert set(re.findall(r"`tune\.(\w+)`", PAGE)) <= fields
    assert set(re.findall(r"`(\w+_options)`", PAGE)) <= fields
