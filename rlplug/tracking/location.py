"""Where runs are kept: the runs folder and the tracking URI, and whether both can be used."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import attrs

from rlplug.config.secrets import MASK, without_secrets
from rlplug.durable import absolute_path
from rlplug.errors import RequestError
from rlplug.review.record import ABOUT, RunAbout

__all__ = [
    "AWAY",
    "RunFolder",
    "UnreachableError",
    "check_exists",
    "check_reachable",
    "check_writable",
    "default_folder",
    "is_http",
    "is_missing",
    "local_folder",
    "recorded_id",
    "runs_folder",
    "runs_in",
    "sqlite_file",
    "tracking_uri",
    "without_secrets",
]

PROBE_SECONDS = 3.0
_GATEWAY = (502, 503, 504)
"""What a proxy answers in place of a server that is away."""

AWAY = (
    "try: start the server, correct tracking.uri or MLFLOW_TRACKING_URI, or "
    "--set tracking.offline_ok=true, with which a run goes on and rlplug runs sync uploads it later"
)
"""What to do about a server that does not answer."""

_DATABASES = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
_SQLITE = "sqlite:///"


def runs_folder(given: Path | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """The absolute runs folder: the argument, else RLPLUG_HOME, else ./rlplug_runs."""
    return default_folder(environ) if given is None else absolute_path(given, "the runs folder")


def default_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The default runs folder."""
    return absolute_path(Path(environ.get("RLPLUG_HOME") or "rlplug_runs"), "RLPLUG_HOME")


def tracking_uri(option: str, root: Path, environ: Mapping[str, str] = os.environ) -> str:
    """The MLflow tracking URI: the option, else MLFLOW_TRACKING_URI, else a database in `root`."""
    for uri, source in (
        (option, "tracking.uri"),
        (environ.get("MLFLOW_TRACKING_URI", ""), "MLFLOW_TRACKING_URI"),
    ):
        if uri:
            return _checked(_with_secrets(uri.strip(), source, environ), source)
    return f"{_SQLITE}{root / 'mlflow.db'}"


@attrs.frozen(kw_only=True)
class RunFolder:
    """A run's folder and what its `run.json` says."""

    path: Path
    run_name: str
    uri: str
    """Where it is recorded, without passwords."""
    experiment: str
    experiment_id: str
    """Empty: it is not in MLflow, or not yet."""
    tracked_id: str
    """Its id in MLflow, if it was created there late; empty: that of its folder."""
    started: str
    about: RunAbout

    @property
    def run_id(self) -> str:
        return self.path.name

    @property
    def id_in_mlflow(self) -> str:
        return self.tracked_id or self.run_id

    @property
    def is_tracked(self) -> bool:
        """Whether it is in MLflow, or will be when MLflow answers."""
        return bool(self.experiment_id or self.uri)

    @classmethod
    def read(cls, path: Path) -> RunFolder | None:
        """The run of a folder; None if it has no valid `run.json`."""
        names = [one.name for one in attrs.fields(cls) if one.name not in ("path", ABOUT)]
        try:
            facts = _facts(path)
            values = {name: str(facts.get(name, "")) for name in names}
            return cls(path=path, about=RunAbout.read(facts.get(ABOUT)), **values)
        except (OSError, ValueError, AttributeError, RecursionError):
            return None

    def tracking_uri(self, option: str, environ: Mapping[str, str] = os.environ) -> str:
        """Where the run is recorded, with the password that its folder does not keep.

        The option, else what `run.json` says, else the settings that hold now, as the folder or
        the server may have moved.
        """
        now = tracking_uri(option, self.path.parent.parent, environ)
        if option or without_secrets(now) == self.uri or not self.uri:
            return now
        if MASK in self.uri:
            return tracking_uri(self.uri, self.path.parent.parent, environ)
        file = sqlite_file(self.uri)
        return self.uri if file is None or file.exists() else now


def recorded_id(path: Path) -> str:
    """The id that a run was started with, also in a renamed folder; empty if it is not recorded."""
    try:
        return str(_facts(path).get("run_id", ""))
    except (OSError, ValueError, AttributeError, RecursionError):
        return ""


def _facts(path: Path) -> Any:
    return json.loads((path / "run.json").read_text())


def runs_in(root: Path) -> list[RunFolder]:
    """The runs in a runs folder, newest first, without asking MLflow."""
    files = sorted(root.glob("work/*/run.json"), key=lambda file: -file.stat().st_mtime)
    found = (RunFolder.read(file.parent) for file in files)
    runs = [run for run in found if run is not None]
    # By the files' times only where runs began in the same second: copying changes those.
    return sorted(runs, key=lambda run: run.started, reverse=True)


def is_http(uri: str) -> bool:
    """Whether the URI is of a server, not of a database."""
    return urlsplit(uri).scheme in ("http", "https")


def sqlite_file(uri: str) -> Path | None:
    """The database file of a SQLite URI."""
    return Path(uri.removeprefix(_SQLITE)) if uri.startswith(_SQLITE) else None


def is_missing(uri: str) -> bool:
    """Whether the URI is of a database in a file that does not exist."""
    file = sqlite_file(uri)
    return file is not None and not file.exists()


def local_folder(uri: str) -> Path | None:
    """The folder of a `file:` URI or a path; None for storage elsewhere."""
    parts = urlsplit(uri)
    if parts.scheme == "file":
        return Path(url2pathname(parts.path))
    return Path(uri) if uri.startswith("/") else None


def check_writable(root: Path) -> None:
    """Create the runs folder, or raise if it is not writable."""
    work = root / "work"
    probe = work / f".probe-{os.getpid()}"
    try:
        work.mkdir(parents=True, exist_ok=True)
        try:
            with probe.open("wb") as file:
                # More than a block, so that a full disk is found now.
                file.write(b"\0" * 65_536)
                file.flush()
                os.fsync(file.fileno())
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        raise RequestError(
            f"the runs folder {root} is not writable: {error.strerror or error}.",
            "try: free disk space, set its permissions, or RLPLUG_HOME=/another/folder rlplug run",
        ) from error


def check_exists(uri: str, run_id: str) -> None:
    """Raise if the database of a run is gone; opening it would create an empty one."""
    if is_missing(uri):
        raise RequestError(
            f"the database {sqlite_file(uri)}, in which run {run_id} is recorded, does not exist.",
            "try: put it back, or set tracking.uri or MLFLOW_TRACKING_URI to where it is",
        )


def check_reachable(uri: str) -> None:
    """Raise if the store at this URI is unreachable, before MLflow retries for minutes."""
    file = sqlite_file(uri)
    if file is not None:
        _check_sqlite(file)
    elif is_http(uri):
        _check_server(uri)
    else:
        _check_database(uri)


def _with_secrets(uri: str, source: str, environ: Mapping[str, str]) -> str:
    """The URI with what was masked when it was recorded, from the environment."""
    if MASK not in uri:
        return uri
    given = environ.get("MLFLOW_TRACKING_URI", "").strip()
    if given != uri and without_secrets(given).rstrip("/") == uri.rstrip("/"):
        return given
    bare = uri.replace(f"{MASK}@", "")
    names = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")
    logged_in = all(map(environ.get, names)) or environ.get("MLFLOW_TRACKING_TOKEN")
    if MASK not in bare and is_http(bare) and logged_in:
        return bare  # MLflow reads these variables itself
    others = f", or {names[0]} and {names[1]}" if MASK not in bare and is_http(bare) else ""
    raise RequestError(
        f"{source} {uri!r} is without its password: passwords are not recorded.",
        f"try: set MLFLOW_TRACKING_URI to the same URI with the password{others}",
    )


def _checked(uri: str, source: str) -> str:
    try:
        address = urlsplit(uri)
        _ = address.port  # parsed only when it is read
    except ValueError:
        # Its message would quote a password with such characters.
        raise RequestError(
            f"{source} {without_secrets(uri)!r} is not a valid URI.",
            "try: percent-encode special characters of the password: / as %2F, ? as %3F, # as %23",
        ) from None
    scheme = address.scheme.partition("+")[0]
    if scheme in ("http", "https"):
        return uri.rstrip("/")
    if scheme == "databricks" or uri == "databricks" or scheme in _DATABASES:
        return uri
    shown = without_secrets(uri)
    if scheme == "sqlite":
        name = uri.removeprefix(_SQLITE)
        if name in ("", ":memory:", uri):
            raise RequestError(
                f"{source} {shown!r} is an in-memory database: the run would be lost.",
                "try: sqlite:////absolute/path/mlflow.db",
            )
        return f"{_SQLITE}{absolute_path(Path(name), source)}"
    if scheme in ("", "file") or len(scheme) == 1:
        folder = absolute_path(urlsplit(uri).path if scheme == "file" else uri, source)
        raise RequestError(
            f"{source} {shown!r} is a folder; MLflow no longer supports file stores.",
            f"try: {_SQLITE}{folder / 'mlflow.db'}",
        )
    raise RequestError(
        f"{source} {shown!r} is not a valid MLflow tracking URI.",
        "try: http://host:port, sqlite:////path/mlflow.db or postgresql://user@host/database",
    )


def _check_sqlite(file: Path) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(file, timeout=PROBE_SECONDS)
        try:
            connection.execute("PRAGMA schema_version").fetchone()
            # Acquires and releases the write lock, which fails for a read-only file.
            connection.execute("BEGIN IMMEDIATE")
            connection.rollback()
        finally:
            connection.close()
    except (OSError, sqlite3.Error) as error:
        if "locked" in str(error):
            return  # another process is writing; MLflow waits longer than this probe
        raise RequestError(
            f"the tracking database {file} cannot be opened: {error}.",
            f"try: check that {file.parent} is writable and that the file is an MLflow "
            "database, or set another tracking.uri",
        ) from error


def _check_server(uri: str) -> None:
    request = urllib.request.Request(f"{uri}/health")
    address = urlsplit(uri)
    if address.username:
        host = address.netloc.rpartition("@")[2]
        request = urllib.request.Request(f"{address.scheme}://{host}{address.path}/health")
    try:
        urllib.request.urlopen(request, timeout=PROBE_SECONDS).close()
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in _GATEWAY:
            raise _unreachable(uri, error) from error
        # The server answers; MLflow reports permissions.
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLError):
            return  # MLflow has its own certificate settings
        raise _unreachable(uri, reason) from error


def _check_database(uri: str) -> None:
    address = urlsplit(uri)
    port = _DATABASES.get(address.scheme.partition("+")[0])
    if port is None or not address.hostname:
        return
    try:
        socket.create_connection((address.hostname, address.port or port), PROBE_SECONDS).close()
    except OSError as error:
        raise _unreachable(uri, error) from error


class UnreachableError(RequestError):
    """A server that does not answer."""


def _unreachable(uri: str, reason: object) -> UnreachableError:
    return UnreachableError(
        f"the tracking URI {without_secrets(uri)} does not answer: {reason}.", AWAY
    )
