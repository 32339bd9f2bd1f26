"""Options of pytest and hypothesis, and fixtures for the tests of the core and the plugins."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
import warnings
from pathlib import Path

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
