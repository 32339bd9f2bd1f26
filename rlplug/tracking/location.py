"""Where runs are kept: the runs folder and the tracking URI, and whether both can be used."""

from __future__ import annotations

import json
import os
import socket
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import attrs

from rlplug.config.secrets import MASK
from rlplug.config.secrets import without_secrets as without_secrets
from rlplug.durable import absolute_path
from rlplug.errors import RequestError
from rlplug.review.record import ABOUT, RunAbout

RUN = "run.json"
"""The file that makes a folder that of a run."""
PROBE_SECONDS = 3.0

AWAY = (
    "try: start the server, correct tracking.uri or MLFLOW_TRACKING_URI, or "
    "--set tracking.offline_ok=true, with which a run goes on and rlplug runs sync uploads it later"
)
"""What to do about a server that does not answer."""

_DATABASES = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
_SQLITE = "sqlite:///"


def runs_folder(given: Path | None = None) -> Path:
    """The absolute runs folder: the argument, else RLPLUG_HOME, else ./rlplug_runs."""
    if given is not None:
        return absolute_path(given, "the runs folder")
    return absolute_path(Path(os.environ.get("RLPLUG_HOME") or "rlplug_runs"), "RLPLUG_HOME")


def tracking_uri(option: str, root: Path) -> str:
    """The MLflow tracking URI: the option, else MLFLOW_TRACKING_URI, else a database in `root`."""
    given = os.environ.get("MLFLOW_TRACKING_URI", "").strip()
    uri, source = (option.strip(), "tracking.uri") if option else (given, "MLFLOW_TRACKING_URI")
    if not uri:
        return f"{_SQLITE}{root / 'mlflow.db'}"
    uri = _with_password(uri, source, given)
    try:
        # Parsed only when it is read.
        urlsplit(uri).port  # noqa: B018
    except ValueError:
        # Its message would quote a part of a password.
        raise RequestError(
            f"{source} {without_secrets(uri)!r} is not a valid URI.",
            "try: percent-encode special characters of the password: / as %2F, ? as %3F, # as %23",
        ) from None
    scheme, file = uri.partition(":")[0].partition("+")[0], sqlite_file(uri)
    if scheme in ("http", "https"):
        return uri.rstrip("/")
    if scheme in ("databricks", *_DATABASES):
        return uri
    if file is not None and file.name and file.name != ":memory:":
        return f"{_SQLITE}{absolute_path(file, source)}"
    raise RequestError(
        f"{source} {without_secrets(uri)!r} is not the URI of an MLflow server or database.",
        f"try: {_SQLITE}/absolute/path/mlflow.db, http://host:port or postgresql://user@host/name",
    )


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
        facts = read_object(path / RUN)
        names = [field.name for field in attrs.fields(cls) if field.name not in ("path", ABOUT)]
        values = {name: str(facts.get(name, "")) for name in names}
        return cls(path=path, about=RunAbout.read(facts.get(ABOUT)), **values) if facts else None

    def tracking_uri(self, option: str) -> str:
        """Where the run is recorded, with the password that its folder does not keep.

        The option, else what `run.json` says, else the settings that hold now, as the folder or
        the server may have moved.
        """
        now = tracking_uri(option, self.path.parent.parent)
        if option or without_secrets(now) == self.uri or not self.uri:
            return now
        if MASK in self.uri:
            return tracking_uri(self.uri, self.path.parent.parent)
        return now if is_missing(self.uri) else self.uri


def recorded_id(path: Path) -> str:
    """The id that a run was started with, also in a renamed folder; empty if it is not recorded."""
    return str(read_object(path / RUN).get("run_id", ""))


def read_object(file: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if there is none."""
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def runs_in(root: Path) -> list[RunFolder]:
    """The runs in a runs folder, newest first, without asking MLflow."""
    files = sorted(root.glob(f"work/*/{RUN}"), key=lambda file: -file.stat().st_mtime)
    runs = [run for run in (RunFolder.read(file.parent) for file in files) if run is not None]
    # By the files' times only where runs began in the same second: copying changes those.
    return sorted(runs, key=lambda run: run.started, reverse=True)


def is_http(uri: str) -> bool:
    """Whether the URI is of a server, not of a database."""
    return uri.startswith(("http://", "https://"))


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
    try:
        work.mkdir(parents=True, exist_ok=True)
        # It has no name, so that a killed process leaves nothing.
        with TemporaryFile(dir=work) as probe:
            # More than a block, so that a full disk is found now.
            probe.write(b"\0" * 65_536)
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        raise RequestError(
            f"the runs folder {root} is not writable: {error.strerror or error}.",
            "try: free disk space, set its permissions, or RLPLUG_HOME=/another/folder rlplug run",
        ) from error


def check_reachable(uri: str) -> None:
    """Raise if a server does not answer, before MLflow retries for minutes; others MLflow opens."""
    address = urlsplit(uri)
    port = address.port or _DATABASES.get(address.scheme.partition("+")[0])
    try:
        if is_http(uri):
            host = address.netloc.rpartition("@")[2]
            url = f"{address.scheme}://{host}{address.path}/health"
            urllib.request.urlopen(url, timeout=PROBE_SECONDS).close()
        elif port and address.hostname:
            socket.create_connection((address.hostname, port), PROBE_SECONDS).close()
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        # What a server says of permissions and certificates, MLflow reports.
        if isinstance(error, urllib.error.HTTPError):
            error.close()
            if error.code not in (502, 503, 504):
                return
        if not isinstance(reason, ssl.SSLError):
            raise UnreachableError(
                f"the tracking URI {without_secrets(uri)} does not answer: {reason}.", AWAY
            ) from error


class UnreachableError(RequestError):
    """A server that does not answer."""


def _with_password(uri: str, source: str, given: str) -> str:
    """The URI with what was masked when it was recorded, from the environment."""
    if MASK not in uri:
        return uri
    if given != uri and without_secrets(given).rstrip("/") == uri.rstrip("/"):
        return given
    bare, names = uri.replace(f"{MASK}@", ""), ("TOKEN", "USERNAME", "PASSWORD")
    token, user, password = (os.environ.get(f"MLFLOW_TRACKING_{name}") for name in names)
    if MASK not in bare and is_http(bare) and (token or (user and password)):
        # MLflow reads these variables itself.
        return bare
    raise RequestError(
        f"{source} {uri!r} is without its password: passwords are not recorded.",
        "try: set MLFLOW_TRACKING_URI to the same URI with the password, or, of a server, "
        "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
    )
