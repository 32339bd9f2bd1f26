"""What a real run writes, on disk and to a real MLflow server, holds no password."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import attrs
import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplug import Acted, Algorithm, Module, hookimpl, option, run
from rlplug.errors import RequestError
from rlplug.feeds import Stream
from rlplug.tracking.location import tracking_uri
from tests.warm import Forked, Warm

BEGIN, END = "ZQXJKVWB", "BWVKJXQZ"


Run = Callable[..., Forked]


@pytest.fixture
def rlplug_run(site: Path, tmp_path: Path, warm: Warm) -> Run:
    """Run `rlplug run` in a process of its own until it ends."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    kept["RLPLUG_HOME"] = str(tmp_path / "runs")

    def run(*arguments: str, **environ: str) -> Forked:
        environ = {**kept, **environ}
        done = warm.start("run", *arguments, cwd=tmp_path, environ=environ, paths=[site])
        done.wait()
        return done

    return run


def files_with_secrets(*folders: Path) -> list[str]:
    return [
        str(file)
        for folder in folders
        for file in folder.rglob("*")
        if file.is_file()
        and (BEGIN.encode() in (held := file.read_bytes()) or END.encode() in held)
    ]


def test_a_server_with_a_password_is_recorded_without_it_and_used_again(
    rlplug_run: Run, served: str, served_folder: Path, tmp_path: Path
) -> None:
    port = urlsplit(served).port
    uri = f"http://me:{BEGIN}a@b'c%2Fd%3Fe\"f{END}@127.0.0.1:{port}"
    options = ("--steps", "60", "--set", "checkpoint.every=20")
    first = rlplug_run(
        *("--algo", "means", *options, "--debug"),
        *("--set", "fail_at=50", "--set", f"tracking.uri={uri}", "--tag", f"source={uri}/x"),
    )
    # It fails, so that there is a traceback, too.
    assert first.returncode == 1, first.err
    assert "ArithmeticError: planted" in first.err
    assert BEGIN not in first.out + first.err
    (folder,) = (tmp_path / "runs" / "work").iterdir()
    facts = json.loads((folder / "run.json").read_text())
    assert facts["uri"] == f"http://***@127.0.0.1:{port}"
    assert "tracking.uri=http://***@127.0.0.1" in facts["command"]
    assert (folder / "checkpoints" / "step-000000000040" / "config.toml").exists()
    assert (folder / "logs" / "traceback.txt").exists()

    again = ("--config", str(folder / "config.toml"), "--set", "fail_at=0")
    refused = rlplug_run(*again)
    assert refused.returncode == 2
    assert "try: set MLFLOW_TRACKING_URI to the same URI with the password" in refused.err
    done = rlplug_run(*again, MLFLOW_TRACKING_URI=uri)
    assert done.returncode == 0, done.err
    assert f"http://127.0.0.1:{port}/#/experiments/" in done.out
    assert BEGIN not in refused.err + done.out + done.err
    assert files_with_secrets(tmp_path / "runs", served_folder) == []


def test_a_run_without_mlflow_records_no_secret_of_its_options_either(
    rlplug_run: Run, tmp_path: Path
) -> None:
    uri = f"postgresql://me:{BEGIN} a@b/c'd?e\\f{END}@db/x?sslmode=require&password={BEGIN}"
    config = tmp_path / "mine.toml"
    values = {"run": {"algorithm": "means"}, "tracking": {"uri": uri, "enabled": False}}
    config.write_text("".join(f"[{a}]\n{_lines(b)}\n" for a, b in values.items()))
    done = rlplug_run("--config", str(config), "--steps", "20")
    assert done.returncode == 0, done.err
    assert files_with_secrets(tmp_path / "runs") == []
    shown = rlplug_run("--config", str(config), "--steps", "20", "--dry-run")
    assert 'uri = "postgresql://***@db/x?sslmode=require&password=***"' in shown.out


def _lines(values: Any) -> str:
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())


@pytest.mark.parametrize("character", ["/x", "?x", "#x", "[", "\N{ACCOUNT OF}"])
@pytest.mark.parametrize("scheme", ["http", "postgresql"])
def test_a_uri_that_cannot_be_parsed_is_refused_without_its_password(
    scheme: str, character: str
) -> None:
    uri = f"{scheme}://me:{BEGIN}{character}{END}@host/x"
    with pytest.raises(RequestError, match="is not a valid URI") as raised:
        tracking_uri(uri, Path("/runs"))
    assert raised.value.__cause__ is None
    assert BEGIN not in str(raised.value)
    assert END not in str(raised.value)


class Bare(Module):
    """Chooses action 0."""

    def forward_exploration(self, act: Any) -> Acted:
        return Acted(numpy.zeros(len(act.observations), numpy.int64))

    forward_inference = forward_exploration


@attrs.frozen(kw_only=True)
class Source:
    uri: str = option("", "Where the data is.")


class Reads(Algorithm):
    """Learns nothing, for its data cannot be reached."""

    Config: ClassVar[type[Source]] = Source
    config: Source

    def feed(self) -> Stream:
        return Stream(one_step_episodes=True)

    @hookimpl
    def build(self) -> Module:
        return Bare()

    @hookimpl
    def configure_optimizers_for_module(self) -> None:
        return None

    @hookimpl
    def additional_update(self, timestep: int, config: Source) -> None:
        if timestep == 20:
            raise OSError(f"cannot read {config.uri!r}")


characters = st.characters(min_codepoint=33, exclude_categories=("Z", "C"))


@settings(max_examples=4, deadline=None)
@given(st.text(characters, max_size=12).map(lambda text: f"{BEGIN}{text}{END}"))
def test_no_file_of_a_real_run_holds_any_password(
    tmp_path_factory: pytest.TempPathFactory, password: str
) -> None:
    home = tmp_path_factory.mktemp("runs")
    uri = f"mysql://me:{password}@host/db?password={password.replace('&', '')}"
    options = {
        "tracking.enabled": False,
        "tracking.uri": uri,
        "algorithm.uri": uri,
        "checkpoint.every": 10,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLPLUG_HOME", str(home))
        with pytest.raises(OSError, match="cannot read"):
            run(Reads, "LinearBandit-v0", steps=30, options=options, tags={"source": uri})
    files = [file for file in home.rglob("*") if file.is_file()]
    assert {"config.toml", "run.json", "traceback.txt", "manifest.json"} <= {
        file.name for file in files
    }
    assert files_with_secrets(home) == []
