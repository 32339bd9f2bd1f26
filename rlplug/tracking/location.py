"""Where runs are kept: the runs folder and the tracking URI, and whether both can be used."""

from __future__ import annotations

import json
import os
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit
from urllib.request import url2pathname

import attrs

from rlplug.config.secrets import MASK, without_secrets
from rlplug.durable import absolute_path, write_durably
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
        facts = _facts(path)
        names = [one.name for one in attrs.fields(cls) if one.name not in ("path", ABOUT)]
        values = {name: str(facts.get(name, "")) for name in names}
        return cls(path=path, about=RunAbout.read(facts.get(ABOUT)), **values) if facts else None

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
    return str(_facts(path).get("run_id", ""))


def _facts(path: Path) -> dict[str, Any]:
    """The content of `run.json`; empty if it cannot be read."""
    try:
        facts = json.loads((path / "run.json").read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


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
    probe = root / "work" / f".probe-{os.getpid()}"
    try:
        probe.parent.mkdir(parents=True, exist_ok=True)
        try:
            # More than a block, so that a full disk is found now.
            write_durably(probe, b"\0" * 65_536)
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
    """Raise if a server does not answer, before MLflow retries for minutes; others MLflow opens."""
    address = urlsplit(uri)
    port = _DATABASES.get(address.scheme.partition("+")[0])
    try:
        if is_http(uri):
            _ask(address)
        elif port and address.hostname:
            place = address.hostname, address.port or port
            socket.create_connection(place, PROBE_SECONDS).close()
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        if not isinstance(reason, ssl.SSLError):  # MLflow has its own certificate settings
            shown = without_secrets(uri)
            raise UnreachableError(
                f"the tracking URI {shown} does not answer: {reason}.", AWAY
            ) from error


class UnreachableError(RequestError):
    """A server that does not answer."""


def _ask(address: SplitResult) -> None:
    """Ask a server whether it is there; what it says of permissions, MLflow reports."""
    host = address.netloc.rpartition("@")[2]
    try:
        url = f"{address.scheme}://{host}{address.path}/health"
        urllib.request.urlopen(url, timeout=PROBE_SECONDS).close()
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in _GATEWAY:
            raise OSError(str(error)) from error


def _with_secrets(uri: str, source: str, environ: Mapping[str, str]) -> str:
    """The URI with what was masked when it was recorded, from the environment."""
    if MASK not in uri:
        return uri
    given, bare = environ.get("MLFLOW_TRACKING_URI", "").strip(), uri.replace(f"{MASK}@", "")
    if given != uri and without_secrets(given).rstrip("/") == uri.rstrip("/"):
        return given
    hint = "try: set MLFLOW_TRACKING_URI to the same URI with the password"
    if MASK not in bare and is_http(bare):
        # MLflow reads these variables itself.
        names = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")
        if all(map(environ.get, names)) or environ.get("MLFLOW_TRACKING_TOKEN"):
            return bare
        hint += f", or {' and '.join(names)}"
    raise RequestError(
        f"{source} {uri!r} is without its password: passwords are not recorded.", hint
    )


def _checked(uri: str, source: str) -> str:
    shown, hint = without_secrets(uri), f"try: {_SQLITE}/absolute/path/mlflow.db"
    try:
        address = urlsplit(uri)
        _ = address.port  # parsed only when it is read
    except ValueError:
        # Its message would quote a password with such characters.
        raise RequestError(
            f"{source} {shown!r} is not a valid URI.",
            "try: percent-encode special characters of the password: / as %2F, ? as %3F, # as %23",
        ) from None
    scheme, file = address.scheme.partition("+")[0], uri.removeprefix(_SQLITE)
    if scheme in ("http", "https"):
        return uri.rstrip("/")
    if scheme == "databricks" or uri == "databricks" or scheme in _DATABASES:
        return uri
    if scheme == "sqlite" and file not in ("", ":memory:", uri):
        return f"{_SQLITE}{absolute_path(Path(file), source)}"
    if scheme == "sqlite":
        problem = "is an in-memory database: the run would be lost"
    elif scheme in ("", "file") or len(scheme) == 1:
        folder = absolute_path(address.path if scheme == "file" else uri, source)
        problem = "is a folder; MLflow no longer supports file stores"
        hint = f"try: {_SQLITE}{folder / 'mlflow.db'}"
    else:
        problem = "is not a valid MLflow tracking URI"
        hint += ", http://host:port or postgresql://user@host/database"
    raise RequestError(f"{source} {shown!r} {problem}.", hint)
