"""What everything stands on: durable files, numbers for people, errors, options, plugins."""

from __future__ import annotations

import hashlib
import math
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rlplug import AddOn, Algorithm
from rlplug.config.option import above, at_least, at_most, below, between, not_empty, one_of
from rlplug.config.schedule import Schedule, ScheduledValue
from rlplug.config.sources import Layers, parse_setting, parse_tags
from rlplug.config.toml import bare_key, toml_value
from rlplug.durable import is_unfinished, sync_all, unfinished, write_content, write_durably
from rlplug.errors import ConfigError, PluginError, Problem, RequestError, did_you_mean
from rlplug.quantities import (
    format_age,
    format_bytes,
    format_duration,
    format_number,
)
from rlplug.registry import FoundPlugin, Registry, is_name
from rlplug.scaffold import Names

# -- files -----------------------------------------------------------------------------------------


def test_a_file_is_on_the_disk_before_it_has_its_name_and_its_folder_after(
    tmp_path: Path, synced: list[int]
) -> None:
    write_durably(tmp_path / "a", b"one")
    assert synced == [(tmp_path / "a").stat().st_ino, tmp_path.stat().st_ino]
    write_durably(tmp_path / "a", b"two")
    assert (tmp_path / "a").read_bytes() == b"two"
    assert [one.name for one in tmp_path.iterdir()] == ["a"]


def test_a_file_that_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "kept").touch()
    with pytest.raises(OSError, match="directory"):
        write_durably(tmp_path / "a", b"new")
    assert [one.name for one in tmp_path.iterdir()] == ["a"]


def test_an_unfinished_file_is_known_by_its_name(tmp_path: Path) -> None:
    assert unfinished(tmp_path / "a.json").name == f"a.json.new-{os.getpid()}"
    assert is_unfinished(unfinished(tmp_path / "a.json"))
    for name in ("a.json", "a.new-x", ".new-3", "a.new-3.json"):
        assert not is_unfinished(tmp_path / name)


def test_many_files_and_folders_are_synced_at_once(tmp_path: Path, synced: list[int]) -> None:
    paths = [tmp_path / name for name in ("a", "b")]
    for path in paths:
        assert write_content(path, b"x") == hashlib.sha256(b"x").hexdigest()
    assert synced == []
    sync_all([*paths, tmp_path])
    assert sorted(synced) == sorted(one.stat().st_ino for one in (*paths, tmp_path))
    with pytest.raises(FileNotFoundError):
        sync_all([*paths, tmp_path / "c"])


# -- numbers for people ----------------------------------------------------------------------------


NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("shown", "value", "text"),
    [
        (format_bytes, 999, "999 bytes"),
        (format_bytes, 9_949, "9.9 kB"),
        (format_bytes, 10_000, "10 kB"),
        (format_bytes, 5_000e12, "5,000 TB"),
        (format_duration, 59.5, "1:00"),
        (format_duration, 11_230, "3:07:10"),
        (format_number, None, ""),
        (format_number, -math.inf, "-inf"),
        (format_number, 999.94, "999.9"),
        (format_number, -999.95, "-1,000"),
        *(
            (lambda age: format_age((NOW - timedelta(minutes=age)).isoformat(), NOW), age, text)
            for age, text in (
                (0.9, "just now"),
                (59, "59 min ago"),
                (60, "1 h ago"),
                (1440 * 13.9, "13 d ago"),
                (1440 * 14, "2026-11-09"),
            )
        ),
        (lambda told: format_age(told, NOW), "never", ""),
    ],
)
def test_numbers_are_shown_as_people_read_them(shown: Any, value: Any, text: str) -> None:
    assert shown(value) == text


# -- errors ----------------------------------------------------------------------------------------


def test_errors_of_a_config_stand_below_each_other() -> None:
    two = ConfigError("x", [Problem("a", "wrong"), Problem("long", "too")], "try: this")
    assert str(two) == "2 problems in x:\n  a      wrong\n  long   too\n  try: this"
    assert two.problems == (Problem("a", "wrong"), Problem("long", "too"))
    assert two.exit_code == 2
    two.add_hint("last")
    assert str(two).endswith("\n  last")
    assert did_you_mean("Gama", ["alpha", "GAMMA"], sentence=True) == "Did you mean 'GAMMA'?"
    # Values of 100 kilobytes are cut.
    assert len(str(RequestError(f"option {'x' * 100_000} is unknown.", "y" * 100_000))) < 5_000


# -- options ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (at_least(1), [1, 2], [0.9]),
        (at_most(1), [1, 0], [1.1]),
        (above(1), [1.1], [1, 0]),
        (below(1), [0.9], [1, 2]),
        (between(1, 2), [1, 1.5, 2], [0.9, 2.1]),
        (one_of("ab"), ["a", "b"], ["c"]),
        (not_empty, ["a", [0]], ["", [], {}]),
    ],
)
def test_bounds_belong_to_what_they_bound_or_not(
    check: Any, good: list[Any], bad: list[Any]
) -> None:
    assert [check(value) for value in good] == [None] * len(good)
    assert all("must" in check(value) for value in bad)


def test_a_schedule_is_linear_between_its_points_and_constant_after_them() -> None:
    schedule = Schedule([(0, 1.0), (10, 2.0), (20, 0.0)])
    assert [schedule.at(step) for step in (0, 5, 10, 15, 20, 99)] == [1.0, 1.5, 2.0, 1.0, 0.0, 0.0]
    value = ScheduledValue(schedule.at(5), schedule)
    assert (value.at(10), (value * 2).at(10), (2 * value).at(5), (value / 4).at(10)) == (
        2.0,
        4.0,
        3.0,
        0.5,
    )
    assert float(value / 4) == 0.375
    for pairs in ([], [(1, 1.0)], [(0, 1.0), (0, 2.0)], [(0, 1.0), (5, 2.0), (4, 2.0)]):
        with pytest.raises(ValueError, match="schedule"):
            Schedule(pairs)


def test_later_layers_override_earlier_ones_each_with_its_origin() -> None:
    layers = Layers()
    layers.merge({"env": {"arguments": {}}, "run": {"steps": 1}}, "file")
    layers.put(("env", "arguments", "arms"), 4, "--set")
    layers.merge({"env": {"arguments": {"arms": 5, "n": 1}}, "run": {"env": "E"}}, "again")
    assert layers.values == {
        "env": {"arguments": {"arms": 5, "n": 1}},
        "run": {"steps": 1, "env": "E"},
    }
    assert layers.origins[("env", "arguments", "arms")] == "again"
    assert layers.section("run", "steps", "x") == {}
    layers.put(("run",), 3, "replaced")
    layers.put(("run", "seed"), 4, "below")
    other = Layers()
    other.put(("run", "seed"), 5, "other")
    layers.merge_layers(other)
    assert layers.section("run") == {"seed": 5}
    assert layers.origins[("run", "seed")] == "other"


@pytest.mark.parametrize(
    ("text", "value"),
    [("a=1", 1), ("a = [1, 2] ", [1, 2]), ("a= x y ", "x y"), ("a=", ""), ("a=b=c", "b=c")],
)
def test_a_setting_is_toml_or_else_text(text: str, value: Any) -> None:
    setting = parse_setting(text)
    assert (setting.key, setting.value) == ("a", value)


def test_settings_and_tags_without_a_key_or_given_twice_are_refused() -> None:
    assert parse_tags([" a =1=2", "b="]) == {"a": "1=2", "b": ""}
    for parse, given in ((parse_setting, "a"), (parse_setting, " =1"), (parse_tags, ["=1"])):
        with pytest.raises(RequestError, match="takes KEY=VALUE"):
            parse(given)
    with pytest.raises(RequestError, match="twice"):
        parse_tags(["a=1", "a =2"])


def test_values_are_written_as_toml_in_one_line() -> None:
    value = {"a": [True, 1, 0.5, "ü\n"], "b c": {"d": False}}
    assert toml_value(value) == '{a = [true, 1, 0.5, "ü\\n"], "b c" = {d = false}}'
    assert (bare_key("a-b_1"), bare_key("a.b")) == ("a-b_1", '"a.b"')


# -- plugins ---------------------------------------------------------------------------------------


def found(distribution: str = "rlplug-x", **more: Any) -> FoundPlugin:
    return FoundPlugin(
        **{
            "kind": "algorithm",
            "name": "x",
            "target": "x:X",
            "distribution": distribution,
            "version": "1.0",
            **more,
        }
    )


@pytest.mark.parametrize(
    ("requires", "reason"),
    [
        ((), None),
        (("numpy<1", "rlplug-other<0.1"), None),
        (("rlplug>=0.1,<0.4",), None),
        (("RLPlug <0.3",), "needs rlplug<0.3, this is 0.3.2"),
        (('rlplug<0.1; python_version < "3"', "rlplug>0.3"), None),
        (("rlplug>>1",), "needs 'rlplug>>1', which is not a valid requirement, this is 0.3.2"),
        (("rlplug>0.3", "rlplug[gpu]<0.2"), "needs rlplug<0.2, this is 0.3.2"),
    ],
)
def test_a_plugin_fits_the_core_if_all_its_requirements_do(
    requires: tuple[str, ...], reason: str | None
) -> None:
    assert found(requires=requires).incompatibility("0.3.2") == reason


def test_the_main_plugin_of_a_package_bears_its_name() -> None:
    for distribution in ("rlplug-x", "RLplug_X", "x"):
        assert found(distribution).bears_name_of_package
    assert not found("rlplug-x-more").bears_name_of_package
    assert [is_name(name) for name in ("a-1", "A", "1a", "a_b", "a\n")] == [True] + [False] * 4


class Mine(Algorithm):
    """My own.

    More of it.
    """


class Extra(AddOn):
    """Beside it."""


def test_classes_are_described_by_what_they_are() -> None:
    registry = Registry.of(my_own=Mine, extra=Extra)
    one, two = registry.found
    assert (one.kind, one.name, one.summary, one.version) == ("algorithm", "my-own", "My own.", "")
    assert (two.kind, two.package, two.target) == ("addon", "not installed", f"{__name__}:Extra")
    assert registry.of_kind("addon") == (two,)
    assert registry.named("extra") is two
    assert registry.named("my-own") is one
    assert registry.load(one) is Mine
    assert [plugin for plugin, _ in registry.others("algorithm", "none")] == [one]
    assert not list(registry.others("algorithm", "my-own"))


def test_what_is_not_there_is_named_with_what_is() -> None:
    registry = Registry.of(my_own=Mine, extra=Extra)
    for kind, name, said in (
        ("algorithm", "my-wn", "unknown algorithm 'my-wn'. Did you mean 'my-own'?"),
        ("addon", "my-own", "is an algorithm, not an add-on"),
        ("algorithm", "extra", "is an add-on, not an algorithm"),
        ("algorithm", "other:my-own", "unknown algorithm 'other:my-own'"),
    ):
        with pytest.raises(PluginError) as raised:
            registry.find(kind, name)  # type: ignore[arg-type]
        assert said in str(raised.value)
    with pytest.raises(PluginError, match="no algorithm is installed"):
        Registry(()).find("algorithm", "x")
    with pytest.raises(PluginError, match="unknown add-on 'x'"):
        Registry(()).find("addon", "x")


def test_of_two_packages_with_one_name_one_has_to_be_chosen() -> None:
    twins = Registry((found("rlplug-x"), found("Long.Name", version="2")))
    with pytest.raises(PluginError) as raised:
        twins.find("algorithm", "x")
    assert raised.value.hints[0] == "rlplug-x 1.0  (x:X)"
    assert raised.value.hints[1] == "Long.Name 2  (x:X)"
    assert "--algo Long.Name:x" in raised.value.hints[2]
    assert twins.find("algorithm", "long_name:x").distribution == "Long.Name"


def test_the_missing_packages_of_a_recorded_run_are_named() -> None:
    registry = Registry.of(extra=Extra)
    made = {"extra": "rlplug-extra 1", "gone": "rlplug-gone 2.0", "mine": "not installed"}
    with pytest.raises(PluginError) as raised, registry.made_with(made):
        registry.find("algorithm", "gone")
    hints = [hint for hint in raised.value.hints if hint.startswith("it was made")]
    assert hints == ["it was made with rlplug-gone 2.0: pip install rlplug-gone==2.0"]


def test_errors_of_a_plugin_name_it_and_those_of_rlplug_stay_as_they_are() -> None:
    plugin = found()
    for error in (ValueError("no"), SystemExit(3)):
        with (
            pytest.raises(PluginError, match="failed in 'build'") as failed,
            plugin.calling("build"),
        ):
            raise error
        assert failed.value.message == "algorithm 'x' (rlplug-x 1.0) failed in 'build':"
    known = RequestError("mine")
    with pytest.raises(RequestError) as raised, plugin.calling("build"):
        raise known
    assert raised.value is known


@pytest.mark.parametrize(
    ("given", "suggested"),
    [
        ("MyAlgo", "my-algo"),
        ("my__algo", "my-algo"),
        ("1st", "st"),
        ("", "my-algorithm"),
        ("a" * 51, "a" * 50),
    ],
)
def test_the_nearest_valid_name_is_suggested(given: str, suggested: str) -> None:
    with pytest.raises(RequestError) as raised:
        Names.of(given, "algorithm")
    assert raised.value.hints == (f"try: rlplug plugins new {suggested}",)


def test_a_plugin_s_names_follow_from_one() -> None:
    names = Names.of("rlplug-my-algo", "algorithm", {"MyAlgo"})
    assert (names.plugin, names.class_name) == ("my-algo", "MyAlgoAlgorithm")
    assert (names.distribution, names.package) == ("rlplug-my-algo", "rlplug_my_algo")
    assert Names.of("none", "addon").class_name == "NoneAddOn"
    assert Names.of("a" * 50, "addon").class_name == "A" + "a" * 49
    with pytest.raises(RequestError, match="the name 'mine' is taken:") as raised:
        Names("mine", "Mine").check_not_taken(Registry.of(mine=Mine))
    assert raised.value.hints[0] == "algorithm 'mine' (not installed) is installed"
    Names("none-such", "NoneSuch").check_not_taken(Registry.of(mine=Mine))
