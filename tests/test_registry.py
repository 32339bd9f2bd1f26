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
from rlplug.registry import ALGORITHM, core_version


class Mine(Algorithm):
    """Mine alone."""


class Watcher(AddOn):
    """Watches."""


def test_installed_distributions_are_found_without_importing_them(installed: Path) -> None:
    found = Registry.installed().find(ALGORITHM, "good")
    assert (found.target, found.package) == ("good_plugin:Good", "rlplug-good 0.1.0")
    assert found.label == "algorithm 'good' (rlplug-good 0.1.0)"
    assert "good_plugin" not in sys.modules


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


def test_a_core_that_is_a_folder_alone_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(PluginError, match=r"not installed\.\n  try: pip install -e \."):
        core_version()


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


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("future", ("(rlplug-future 0.9.0)", "needs rlplug<0.10,>=0.9", "this is rlplug 0.1.0")),
        (
            "raises",
            ("'raises_plugin:X'", "ModuleNotFoundError", "install no_such_package_anywhere"),
        ),
        ("exits", ("SystemExit: 7",)),
        ("stranger", ("'stranger_plugin:X'", "subclass of rlplug.Algorithm")),
    ],
)
def test_plugins_that_cannot_be_loaded_are_refused(
    name: str, told: tuple[str, ...], installed: Path
) -> None:
    registry = Registry.installed()
    with pytest.raises(PluginError, match=f"algorithm '{name}'") as raised:
        registry.load(registry.find(ALGORITHM, name))
    assert all(part in str(raised.value) for part in told)
    # What is for another core is not even imported.
    assert "future_plugin" not in sys.modules


def test_what_a_plugin_prints_on_import_goes_to_stderr(
    installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    registry = Registry.installed()
    registry.load(registry.find(ALGORITHM, "prints"))
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "noise at import\n")


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


def test_importing_rlplug_imports_nothing_heavy() -> None:
    script = (
        "import sys, rlplug\n"
        "print([m for m in ('torch', 'gymnasium', 'mlflow', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
