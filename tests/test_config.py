from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplug import AddOn, Algorithm, Module, Registry, option
from rlplug.config import at_least, between
from rlplug.config.options_table import markdown, rows
from rlplug.config.secrets import masked_toml
from rlplug.config.sources import parse_setting
from rlplug.config.strict import structure
from rlplug.errors import ConfigError, RequestError
from rlplug.runs.prepare import Prepared, prepare
from rlplug.runs.request import Request


@attrs.frozen(kw_only=True)
class Options:
    learning_rate: float = option(0.1, "Step size.", at_least(0), schedulable=True)
    gamma: float = option(0.99, "Weight of the future.", between(0, 1))
    double: bool = option(True, "Use two networks.")
    width: int = option(64, "Units.", at_least(1))
    hidden: tuple[int, ...] = option((64, 64), "Units per layer.")
    kind: Literal["joint", "disjoint"] = option("joint", "Which model.")
    actions: int | str = option("auto", "How many, or auto.")
    names: tuple[str, ...] = option((), "Texts.")
    words: list[str] = option([], "Texts in a list.")  # noqa: RUF009 # as a plugin may
    table: Mapping[str, int] = option(dict, "Numbers by name.", factory=True)


@attrs.frozen(kw_only=True)
class ScaleOptions:
    scale: float = option(1.0, "Factor.")
    num_envs: int = option(1, "A name that the core has, too.")


class Learns(Algorithm):
    """Learns."""

    Config = Options
    default_env = "LinearBandit-v0"
    default_steps = 5_000
    defaults = {"sampling.num_envs": 8}

    def build(self) -> Module:
        return Module()


class Scale(AddOn):
    """Scales."""

    Config = ScaleOptions


REGISTRY = Registry.of(learns=Learns, scale=Scale, widen=Scale)


def prepared(
    *settings: str, config: Path | None = None, addons: tuple[str, ...] = (), **run: Any
) -> Prepared:
    flags = {"algorithm": "learns", **run}
    if addons:
        flags["addons"] = list(addons)
    request = Request(
        config=config,
        flags={"run": flags},
        settings=tuple(parse_setting(text) for text in settings),
    )
    return prepare(request, REGISTRY)


def problems(*settings: str, **arguments: Any) -> dict[str, str]:
    with pytest.raises(ConfigError) as raised:
        prepared(*settings, **arguments)
    return {problem.path: problem.message for problem in raised.value.problems}


def test_an_algorithm_has_its_own_environment_steps_and_options_of_the_core() -> None:
    config = prepared().config
    assert (config.run.env, config.run.steps) == ("LinearBandit-v0", 5_000)
    assert config.sampling.num_envs == 8
    config = prepared("sampling.num_envs=2", env="CartPole-v1", steps=10).config
    assert (config.run.env, config.run.steps, config.sampling.num_envs) == ("CartPole-v1", 10, 2)


# -- strictness ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("double", "false", "expected bool, got str 'false'"),
        ("width", 1.7, "expected int, got float 1.7"),
        ("width", True, "expected int, got bool True"),
        ("width", 0, "must be at least 1, got 0"),
        ("gamma", 1.5, "must be between 0 and 1, got 1.5"),
        ("gamma", "high", "expected float, got str 'high'"),
        ("hidden", 64, "expected list of int, got int 64"),
        (
            "kind",
            "disjont",
            "expected one of 'joint', 'disjoint', got 'disjont', did you mean 'disjoint'?",
        ),
        ("actions", 1.5, "expected int or str, got float 1.5"),
        ("table", 3, "expected table of int, got int 3"),
        ("learning_rate", -1.0, "must be at least 0, got -1.0"),
        ("learning_rate", [[0, 0.1], [10, -1]], "must be at least 0, got -1.0"),
        ("learning_rate", [[5, 0.1]], "a schedule starts at step 0, this one at 5"),
        ("learning_rate", [[0, 1], [0, 2]], "the steps of a schedule must increase, got [0, 0]"),
        ("learning_rate", "abc", "expected float or a schedule, [[step, value], …], got str 'abc'"),
        ("learning_rate", [1, 2], "a schedule is a list of [step, value] pairs, got 1"),
        (
            "learning_rate",
            [[0.5, 1.0]],
            "a schedule's pairs are [whole number, number], got [0.5, 1.0]",
        ),
        (
            "learning_rate",
            [[0, True]],
            "a schedule's pairs are [whole number, number], got [0, True]",
        ),
        ("learning_rat", 0.1, "unknown option, did you mean 'learning_rate'?"),
    ],
)
def test_a_wrong_value_is_refused_with_its_reason(name: str, value: Any, complaint: str) -> None:
    config, found = structure(Options, {name: value}, "algorithm")
    assert config is None
    assert [(problem.path, problem.message) for problem in found] == [
        (f"algorithm.{name}", complaint)
    ]


def test_a_wrong_item_of_a_list_is_named_by_its_place() -> None:
    _, found = structure(Options, {"hidden": [64, "a", 3, 1.5]}, "algorithm")
    assert [tuple(problem) for problem in found] == [
        ("algorithm.hidden[1]", "expected int, got str 'a'"),
        ("algorithm.hidden[3]", "expected int, got float 1.5"),
    ]


def test_a_whole_number_is_a_float_and_lists_become_tuples() -> None:
    config, found = structure(Options, {"gamma": 1, "hidden": [3]}, "algorithm")
    assert found == []
    assert config is not None
    assert (type(config.gamma), config.hidden) == (float, (3,))


def test_all_problems_come_at_once_each_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "experiment.toml"
    path.write_text(
        "[algorithm]\nlearning_rat = 1\ndouble = 'false'\nhidden = [1, 'a']\n"
        "[sampling]\nnum_envs = 0\n"
    )
    with pytest.raises(ConfigError) as raised:
        prepared(config=path)
    assert str(raised.value) == (
        f"4 problems in {path} for algorithm 'learns' (not installed):\n"
        "  sampling.num_envs        must be at least 1, got 0\n"
        "  algorithm.learning_rat   unknown option, did you mean 'learning_rate'?\n"
        "  algorithm.double         expected bool, got str 'false'\n"
        "  algorithm.hidden[1]      expected int, got str 'a'\n"
        "  see: rlplug plugins show all, or rlplug plugins show learns"
    )


@pytest.mark.parametrize("value", [-1.0, float("nan")])
def test_options_made_by_hand_say_which_one_is_wrong(value: float) -> None:
    with pytest.raises(ValueError, match="must be") as raised:
        Options(learning_rate=value)
    assert raised.value.__notes__ == ["option 'learning_rate' of Options"]


# -- schedules ----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, [[0, 0.1], [10, math.inf]]])
def test_numbers_of_options_are_finite(value: Any) -> None:
    found = structure(Options, {"learning_rate": value}, "algorithm")[1]
    assert len(found) == 1
    assert found[0].message.startswith("must be a finite number, got ")


def test_an_option_may_be_infinite_where_its_default_is_or_where_it_says_so() -> None:
    @attrs.frozen(kw_only=True)
    class Unbounded:
        bound: float = option(math.inf, "No bound.")
        norm: float = option(2.0, "Which norm.", infinite=True)

    made, found = structure(Unbounded, {"bound": -math.inf, "norm": math.inf}, "own")
    assert not found
    assert made == Unbounded(bound=-math.inf, norm=math.inf)
    assert len(structure(Unbounded, {"bound": math.nan, "norm": math.nan}, "own")[1]) == 2


def test_conflicts_are_told_beside_mistakes_unless_they_are_about_them() -> None:
    @attrs.frozen(kw_only=True)
    class Range:
        low: float = option(0.0, "The lowest.")
        high: float = option(1.0, "The highest.")
        width: int = option(1, "Units.", at_least(1))

        def __attrs_post_init__(self) -> None:
            if self.low >= self.high:
                raise ValueError("low must be less than high")

    def said(**values: Any) -> list[str]:
        return [one.message for one in structure(Range, values, "own")[1]]

    conflict, mistake = "low must be less than high", "must be at least 1, got 0"
    assert said(low=3.0, high=2.0, width=0) == [mistake, conflict]
    assert said(low=3.0, high="x", width=0) == ["expected float, got str 'x'", mistake]


# -- sources ------------------------------------------------------------------------------------


def test_flags_and_set_win_over_the_file_and_the_file_over_the_plugin(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[run]\nseed = 1\nsteps = 10\n[algorithm]\ngamma = 0.5\nwidth = 3\n")
    result = prepared("gamma=0.7", config=path, steps=20)
    assert (result.config.algorithm.gamma, result.config.algorithm.width) == (0.7, 3)
    assert (result.config.run.steps, result.config.run.seed) == (20, 1)
    assert result.config.sampling.num_envs == 8
    origins = result.origins
    assert origins["algorithm.gamma"] == "--set"
    assert origins["algorithm.width"] == str(path)
    assert origins["run.algorithm"] == "command line"
    assert origins["sampling.num_envs"] == "default of learns"
    assert origins["algorithm.double"] == "default"


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("gamma=0.9", "gamma", 0.9),
        ("double=false", "double", False),
        ("hidden=[1, 2]", "hidden", [1, 2]),
        ("env.path=/tmp/a b.csv", "env.path", "/tmp/a b.csv"),
        ("kind=joint", "kind", "joint"),
        ('kind="joint"', "kind", "joint"),
        ("tag=a=b", "tag", "a=b"),
        ("learning_rate=[[0, 0.1], [100, 0.0]]", "learning_rate", [[0, 0.1], [100, 0.0]]),
    ],
)
def test_a_setting_is_read_as_toml_or_else_as_text(text: str, key: str, value: Any) -> None:
    setting = parse_setting(text)
    assert (setting.key, setting.value) == (key, value)


@pytest.mark.parametrize("key", ["algorithm", "addons"])
def test_who_takes_part_is_no_bare_setting(key: str) -> None:
    assert problems(f"{key}=3")[key].startswith("cannot be set here: use --")


def test_a_bare_key_is_the_algorithms_or_that_of_the_one_section_that_has_it() -> None:
    config = prepared("gamma=0.5", "num_envs=2", "seed=4").config
    assert (config.algorithm.gamma, config.sampling.num_envs, config.run.seed) == (0.5, 2, 4)


def test_an_option_that_is_given_twice_is_refused_however_it_is_given() -> None:
    twice = "is given twice, also as"
    assert problems("num_envs=2", "num_envs=2") == {"num_envs": f"{twice} 'num_envs'"}
    assert problems("num_envs=2", "sampling.num_envs=4") == {
        "sampling.num_envs": f"{twice} 'num_envs'"
    }
    assert problems("run.steps=3", "seed=4", steps=3, seed=4) == {
        "run.steps": f"{twice} 'steps'",
        "seed": f"{twice} 'seed'",
    }
    assert problems("tracking.tags.a='1'", "tracking.tags={b='2'}") == {
        "tracking.tags": f"{twice} 'tracking.tags.a'"
    }


def test_a_bare_key_that_two_sections_have_is_refused_naming_both() -> None:
    assert problems("num_envs=2", addons=("scale",)) == {
        "num_envs": "is ambiguous: sampling.num_envs and addons.scale.num_envs; name the section"
    }


def test_unknown_keys_and_sections_get_suggestions() -> None:
    assert problems("gama=1", "algoritm.gamma=1", "sampling.num_env=1") == {
        "gama": "unknown option, did you mean 'gamma'?",
        "algoritm.gamma": "unknown section 'algoritm', did you mean 'algorithm'?",
        "sampling.num_env": "unknown option, did you mean 'num_envs'?",
    }


def test_the_options_of_an_add_on_are_in_a_section_of_the_add_ons(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[widen]\nscale = 2\n")
    assert problems("widen.scale=1", addons=("widen",), config=path) == {
        "widen.scale": "unknown section 'widen', options of an add-on are in 'addons.widen'",
        "widen": "unknown section, options of an add-on are in 'addons.widen'",
    }


def test_a_section_is_no_option() -> None:
    said = "is a section: name an option of it, as in 'sampling.OPTION'"
    assert problems("sampling=2") == {"sampling": said}
    said = "is a section: name an option of it, as in 'algorithm.OPTION'"
    assert problems("algorithm={gamma=0.5}") == {"algorithm": said}


@pytest.mark.parametrize("path", ["num_envs", "samplin.num_envs"])
def test_a_default_of_an_algorithm_that_no_section_takes_is_refused(path: str) -> None:
    strays = type("Strays", (Learns,), {"defaults": {path: 8}})
    with pytest.raises(ConfigError) as raised:
        prepare(Request(flags={"run": {"algorithm": "strays"}}), Registry.of(strays=strays))
    assert [problem.path for problem in raised.value.problems] == [path.partition(".")[0]]


def test_options_of_an_add_on_that_takes_no_part_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[addons.scale]\nscale = 2\n[algoritm]\n[tracking.deep]\nx = 1\n")
    assert problems(config=path) == {
        "addons.scale": "this add-on is not used: add --with scale",
        "algoritm": "unknown section, did you mean 'algorithm'?",
        "tracking.deep": "unknown option",
    }


class Other(Learns):
    """Learns otherwise."""

    @attrs.frozen(kw_only=True)
    class Config:
        learning_rate: float = option(0.1, "Step size.")
        buffer_size: int = option(8, "Rows.")
        tau: float = option(1.0, "Rate.")


class Third(Learns):
    """Has no options that the others lack."""


OTHERS = Registry.of(learns=Learns, other=Other, third=Third, scale=Scale)


def refused(request: Request) -> dict[str, str]:
    with pytest.raises(ConfigError) as raised:
        prepare(request, OTHERS)
    return {problem.path: problem.message for problem in raised.value.problems}


def test_an_unknown_option_names_who_has_it_or_what_it_is_called_here(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[algorithm]\nbuffer_size = 4\n[run]\nalgorithm = 'learns'\ndevice = 'cpu'\n")
    settings = (
        "tau=0.5",
        "lr=0.1",
        "n_envs=4",
        "polyak=0.5",
        "replay_size=4",
        "hidden_sizes=[4]",
        "algorithm.num_envs=3",
        "scale=1",
    )
    assert refused(Request(config=path, settings=tuple(map(parse_setting, settings)))) == {
        "tau": "unknown option: 'tau' is an option of other",
        "lr": "unknown option, did you mean 'learning_rate'?",
        "n_envs": "unknown option, did you mean 'num_envs'?",
        "polyak": "unknown option: 'tau' is an option of other",
        "replay_size": "unknown option: 'buffer_size' is an option of other",
        "hidden_sizes": "unknown option, did you mean 'hidden'?",
        "algorithm.num_envs": "unknown option: 'num_envs' is an option of [sampling], add-on scale",
        "scale": "unknown option: 'scale' is an option of add-on scale",
        "run.device": "unknown option: 'device' is an option of [compute]",
        "algorithm.buffer_size": "unknown option: 'buffer_size' is an option of other",
    }


def test_a_file_of_another_algorithm_is_used_where_its_options_are_known(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[run]\nalgorithm = 'other'\n[algorithm]\nlearning_rate = 0.5\n")
    assert prepared(config=path).config.algorithm.learning_rate == 0.5


def test_broken_toml_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text("[run]\nseed = \n")
    with pytest.raises(RequestError, match=r"broken.toml' is not valid TOML: .*line 2"):
        prepared(config=path)


def test_what_stands_in_place_of_a_section_is_not_replaced_by_flags(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("sampling = 'fast'\n[[run]]\nsteps = 3\n")
    found = problems(config=path, steps=9)
    assert found == {
        "run": "expected a section [run], got [{'steps': 3}]",
        "sampling": "expected a section [sampling], got 'fast'",
    }


# -- writing back -------------------------------------------------------------------------------

texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12)


@given(
    rate=st.one_of(
        st.floats(0, 1e9),
        st.lists(
            st.tuples(st.integers(1, 10**6), st.floats(0, 1)), unique_by=lambda pair: pair[0]
        ).map(lambda pairs: [[0, 1.0], *map(list, sorted(pairs))]),
    ),
    hidden=st.lists(st.integers(-(2**40), 2**40)),
    names=st.lists(texts),
    actions=st.one_of(st.integers(-9, 9), texts),
    tags=st.dictionaries(texts, texts, max_size=3),
    seed=st.integers(0, 2**63 - 1),
)
def test_the_resolved_config_written_as_toml_gives_the_same_run(
    tmp_path_factory: pytest.TempPathFactory, **drawn: Any
) -> None:
    algorithm = {
        "learning_rate": drawn["rate"],
        "hidden": drawn["hidden"],
        "names": drawn["names"],
        "actions": drawn["actions"],
    }
    flags = {
        "run": {"algorithm": "learns", "addons": ["scale"], "seed": drawn["seed"]},
        "algorithm": algorithm,
        "tracking": {"tags": drawn["tags"]},
        "env": {"num_arms": 3},
    }
    first = prepare(Request(flags=flags), REGISTRY).config
    path = tmp_path_factory.mktemp("toml") / "resolved.toml"
    path.write_text(masked_toml(first), encoding="utf-8")
    again = prepare(Request(config=path), REGISTRY).config
    assert again == first
    assert masked_toml(again) == masked_toml(first)


def test_the_options_table_says_type_default_and_help() -> None:
    first, *_ = rows(Options)
    assert (first.name, first.default) == ("learning_rate", "0.1")
    assert first.type == "float or schedule, at least 0"
    assert "| `kind` | 'joint' or 'disjoint' | `\"joint\"` | Which model. |" in markdown(Options)
