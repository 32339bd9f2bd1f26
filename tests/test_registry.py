from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import attrs
import pytest

from rlplug import AddOn, Algorithm, Registry
from rlplug.errors import PluginError
from rlplug.registry import ADDON, ALGORITHM, FoundPlugin, core_version


class Mine(Algorithm):
    """Mine alone."""


class Watcher(AddOn):
    """Watches."""


def test_installed_distributions_are_found_without_importing_them(installed: Path) -> None:
    found = Registry.installed().find(ALGORITHM, "good")
    assert (found.target, found.package) == ("good_plugin:Good", "rlplug-good 0.1.0")
    assert found.label == "algorithm 'good' (rlplug-good 0.1.0)"
    assert "good_plugin" not in sys.modules


def test_loading_gives_the_class_the_entry_point_names(installed: Path) -> None:
    registry = Registry.installed()
    loaded = registry.load(registry.find(ALGORITHM, "good"))
    assert loaded.__name__ == "Good"
    assert issubclass(loaded, Algorithm)


def test_a_registry_of_classes_needs_no_installation() -> None:
    registry = Registry.of(my_own=Mine, watcher=Watcher)
    assert registry.load(registry.find(ALGORITHM, "my-own")) is Mine
    assert registry.load(registry.find(ADDON, "watcher")) is Watcher


def test_an_editable_install_seen_twice_is_one_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, name in (("a", "rlplug_twice.egg-info"), ("b", "rlplug_twice-0.1.0.dist-info")):
        info = tmp_path / folder / name
        info.mkdir(parents=True)
        metadata = "Metadata-Version: 2.1\nName: rlplug-twice\nVersion: 0.1.0\n"
        (info / "PKG-INFO").write_text(metadata)
        (info / "METADATA").write_text(metadata)
        (info / "entry_points.txt").write_text("[rlplug.algorithms]\ntwice = twice:X\n")
        monkeypatch.syspath_prepend(str(tmp_path / folder))
    assert Registry.installed().find(ALGORITHM, "twice").distribution == "rlplug-twice"


def test_two_packages_with_one_name_are_refused_when_the_name_is_used(installed: Path) -> None:
    with pytest.raises(PluginError) as raised:
        Registry.installed().find(ALGORITHM, "twin")
    assert str(raised.value) == (
        "algorithm 'twin' is provided by 2 packages:\n"
        "  twin-one 0.1.0  (twin_one:Good)\n"
        "  twin-two 0.1.0  (twin_two:Good)\n"
        "  choose one, for example --algo twin-two:twin, or uninstall the other"
    )


def test_a_package_prefix_chooses_between_two(installed: Path) -> None:
    assert Registry.installed().find(ALGORITHM, "twin-one:twin").target == "twin_one:Good"


def test_an_unknown_name_gets_a_suggestion_and_the_list() -> None:
    with pytest.raises(PluginError) as raised:
        Registry.of(dqn=Mine, linucb=Mine).find(ALGORITHM, "dqnn")
    assert str(raised.value) == (
        "unknown algorithm 'dqnn'. Did you mean 'dqn'?\n"
        "  installed: dqn, linucb\n"
        "  see: rlplug plugins list"
    )


def test_an_add_on_is_no_algorithm() -> None:
    with pytest.raises(PluginError) as raised:
        Registry.of(mine=Mine, watcher=Watcher).find(ALGORITHM, "watcher")
    told = "'watcher' is an add-on, not an algorithm.\n  try: --with watcher"
    assert str(raised.value) == told


def test_a_core_that_is_a_folder_alone_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(PluginError, match=r"not installed\.\n  try: pip install -e \."):
        core_version()


def test_nothing_installed_says_what_to_install() -> None:
    with pytest.raises(PluginError, match=r"^no algorithm is installed\.\n  try: pip install"):
        Registry(()).find(ALGORITHM, "linucb")


def test_a_plugin_for_another_core_is_refused_before_it_is_imported(installed: Path) -> None:
    registry = Registry.installed()
    with pytest.raises(PluginError) as raised:
        registry.load(registry.find(ALGORITHM, "future"))
    assert str(raised.value) == (
        "algorithm 'future' (rlplug-future 0.9.0) is incompatible with this rlplug:\n"
        "  it needs rlplug<0.10,>=0.9, this is rlplug 0.1.0.\n"
        "  try: pip install --upgrade rlplug-future"
    )
    assert "future_plugin" not in sys.modules


@pytest.mark.parametrize(
    ("core", "fits"), [("0.3.0", False), ("0.2.9", True), ("0.2.0.dev1", False), ("0.1.9", False)]
)
def test_the_running_core_is_compared_with_the_declared_range(core: str, fits: bool) -> None:
    plugin = FoundPlugin(
        kind=ALGORITHM,
        name="x",
        target="x:X",
        distribution="rlplug-x",
        version="1",
        requires=("torch>=2", "rlplug-helper>9", "rlplug>=0.2,<0.3 ; python_version >= '3.11'"),
    )
    assert (plugin.incompatibility(core) is None) is fits


def test_a_broken_installation_does_not_break_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {"half": "", "odd": "Name: odd\nRequires-Dist: rlplug >>> 1\n"}.items():
        folder = tmp_path / f"{name}-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(text)
        (folder / "entry_points.txt").write_text(f"[rlplug.algorithms]\n{name}=m:X\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry = Registry.installed()
    assert registry.find("algorithm", "half").package == "unknown"
    assert "'rlplug >>> 1', which is not a valid requirement" in str(
        registry.find("algorithm", "odd").incompatibility()
    )


def test_a_broken_installation_is_listed_also_after_mlflow_was_imported(tmp_path: Path) -> None:
    folder = tmp_path / "half-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("")
    (folder / "entry_points.txt").write_text("[rlplug.algorithms]\nhalf=m:X\n")
    # mlflow brings this backport, which then stands in for the standard library's.
    script = (
        "import importlib_metadata\n"
        "from rlplug import Registry\n"
        "print(Registry.installed().find('algorithm', 'half').package)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(tmp_path)},
    )
    assert done.stdout == "unknown\n"


def test_a_failing_import_names_the_plugin_the_cause_and_the_missing_package(
    installed: Path,
) -> None:
    registry = Registry.installed()
    with pytest.raises(PluginError) as raised:
        registry.load(registry.find(ALGORITHM, "raises"))
    assert str(raised.value) == (
        "algorithm 'raises' (rlplug-raises 0.1.0) could not be imported from 'raises_plugin:X':\n"
        "  ModuleNotFoundError: No module named 'no_such_package_anywhere'\n"
        "  try: pip install no_such_package_anywhere     (--debug shows the traceback)"
    )
    assert isinstance(raised.value.__cause__, ModuleNotFoundError)


def test_an_error_of_syntax_is_to_be_mended_not_installed_again(installed: Path) -> None:
    (file,) = installed.rglob("raises_plugin.py")
    file.write_text("class X:\n    def\n")
    registry = Registry.installed()
    with pytest.raises(PluginError) as raised:
        registry.load(registry.find(ALGORITHM, "raises"))
    assert f"try: mend line 2 of {file}" in str(raised.value)


def test_a_plugin_that_exits_on_import_does_not_end_the_program(installed: Path) -> None:
    registry = Registry.installed()
    with pytest.raises(PluginError, match="SystemExit: 7"):
        registry.load(registry.find(ALGORITHM, "exits"))


def test_what_a_plugin_prints_on_import_goes_to_stderr(
    installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    registry = Registry.installed()
    registry.load(registry.find(ALGORITHM, "prints"))
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "noise at import\n")


def test_a_class_that_is_no_algorithm_is_refused(installed: Path) -> None:
    registry = Registry.installed()
    with pytest.raises(PluginError) as raised:
        registry.load(registry.find(ALGORITHM, "stranger"))
    assert str(raised.value).startswith(
        "algorithm 'stranger' (rlplug-stranger 0.1.0): 'stranger_plugin:X' "
        "is not a subclass of rlplug.Algorithm."
    )


def config_of(**fields: Any) -> Any:
    return attrs.make_class("Config", fields, kw_only=True, frozen=True)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (dict, "Config is not an attrs class: decorate it with @attrs.frozen(kw_only=True)."),
        (config_of(a=attrs.field()), "has fields that are not made with rlplug.option: a."),
        (config_of(a=attrs.field(default=1)), "not made with rlplug.option: a."),
    ],
)
def test_options_that_nobody_could_set_are_refused(config: Any, said: str) -> None:
    plugin = type("Odd", (Algorithm,), {"Config": config})
    registry = Registry.of(odd=plugin)
    with pytest.raises(PluginError, match="algorithm 'odd'") as raised:
        registry.load(registry.find("algorithm", "odd"))
    assert said in str(raised.value)


def test_a_registry_of_something_that_is_no_class_is_refused() -> None:
    with pytest.raises(PluginError, match="'odd' must be a class, got 3"):
        Registry.of(odd=3)  # type: ignore[arg-type]


def test_a_name_in_capitals_gets_a_suggestion() -> None:
    with pytest.raises(PluginError, match=r"unknown algorithm 'PPO'\. Did you mean 'ppo'\?"):
        Registry.of(ppo=Algorithm).find("algorithm", "PPO")


def test_importing_rlplug_imports_nothing_heavy() -> None:
    script = (
        "import sys, rlplug\n"
        "print([m for m in ('torch', 'gymnasium', 'mlflow', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_plugin_is_shown_without_the_class_that_was_loaded() -> None:
    assert "loaded" not in repr(Registry.of(mine=Mine).find(ALGORITHM, "mine"))
