"""Options of pytest and hypothesis, and fixtures for the tests of the core and the plugins."""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import tempfile
import warnings
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

# Tests make millions of objects, most of which stay: looking for garbage took 6% of the time.
gc.set_threshold(10_000, 20, 50)

MOST = 8
"""Every process imports torch: on many cores they would want more memory than they save time."""


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One more than there are cores, as tests also wait for what they have started.

    None where only files are named: what tests print is seen, and at once.
    """
    here = config.invocation_params.dir
    if all((here / Path(named.partition("::")[0])).is_file() for named in config.args):
        return 0
    # Together they use every core as it is.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return min(len(os.sched_getaffinity(0)) + 1, MOST)


def pytest_collection_finish() -> None:
    """What was imported and collected stays."""
    gc.freeze()


def pytest_configure() -> None:
    """Signals have their effect, also where the shell started this in the background.

    What is signed here has a key of its own, which processes of the tests share.
    """
    os.environ["XDG_CONFIG_HOME"] = os.environ.get("RLPLUG_TEST_CONFIG") or tempfile.mkdtemp()
    os.environ["RLPLUG_TEST_CONFIG"] = os.environ["XDG_CONFIG_HOME"]
    defaults = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    for number, default in defaults.items():
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, default)


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database without runs: migrated once, copied for every test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow import MlflowClient

        file = tmp_path_factory.mktemp("store") / "mlflow.db"
        MlflowClient(f"sqlite:///{file}")
    return file


@pytest.fixture
def home(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of runs, with a database without any, for each test."""
    folder = tmp_path / "runs"
    folder.mkdir()
    shutil.copy(empty_store, folder)
    monkeypatch.setenv("RLPLUG_HOME", str(folder))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return folder


@pytest.fixture
def curves() -> None:
    """Learning curves of runs are plotted as they are."""


@pytest.fixture(autouse=True)
def blank_curves(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests get an empty plot: the curve would take a tenth of their time."""
    if "curves" in request.fixturenames:
        return
    from matplotlib.figure import Figure

    blank = Figure(figsize=(1, 1))
    monkeypatch.setattr("rlplug.tracking.report_file.draw", lambda *_: blank)


class Readme:
    """A README whose tables and example are compared with the code."""

    def __init__(self, path: Path) -> None:
        self.text = path.read_text(encoding="utf-8")

    def section(self, title: str) -> str:
        """The text under a heading."""
        (text,) = re.findall(rf"^## {title}\n(.*?)(?:^## |\Z)", self.text, re.MULTILINE | re.DOTALL)
        return str(text)

    def rows(self, title: str) -> dict[str, str]:
        """The rows of a section's table by their first column, a name in backticks."""
        return dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", self.section(title), re.MULTILINE))

    def option_rows(self, config: type[Any]) -> dict[str, str]:
        """The rows that describe all options of a plugin."""
        return {
            field.name: f"{self.value(field.default)} | {field.metadata['help']}"
            + (" Takes a schedule." if field.metadata["schedulable"] else "")
            for field in attrs.fields(config)
        }

    def value(self, default: Any) -> str:
        """A default as TOML has it, but texts without quotation marks."""
        if isinstance(default, bool):
            return str(default).lower()
        if isinstance(default, tuple):
            return str(list(default))
        return str(default) or '""'


@pytest.fixture
def readme(request: pytest.FixtureRequest) -> Readme:
    """The README.md of the distribution that the test belongs to."""
    paths = (folder / "README.md" for folder in request.path.parents)
    return Readme(next(path for path in paths if path.exists()))


@pytest.fixture
def example(
    readme: Readme,
    tmp_path: Path,
    empty_store: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> tuple[str, str]:
    """What the only Python block of the README prints, and what its comment says it prints."""
    (code,) = re.findall(r"```python\n(.*?)```", readme.text, re.DOTALL)
    (promised,) = re.findall(r"print\(.*\)  # (.*)", code)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rlplug_runs").mkdir()
    shutil.copy(empty_store, tmp_path / "rlplug_runs")
    exec(compile(code, "README.md", "exec"), {})
    return capsys.readouterr().out.strip(), promised
