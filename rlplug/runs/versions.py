"""What must be the same in all processes of a run: versions of Python, packages and plugins."""

from __future__ import annotations

import platform
import socket
from collections.abc import Iterable, Mapping
from importlib.metadata import version

from rlplug.errors import RequestError
from rlplug.registry import FoundPlugin

__all__ = ["installed_versions", "refuse_other_versions"]


def installed_versions(plugins: Iterable[FoundPlugin]) -> dict[str, str]:
    """Those that are installed here; nothing is imported."""
    major, minor, _ = platform.python_version_tuple()
    return {
        "Python": f"{major}.{minor}",
        **{name: f"{name} {version(name)}" for name in ("rlplug", "torch")},
        **{f"plugin {one.name!r}": one.package for one in plugins},
    }


def refuse_other_versions(here: Mapping[str, str], there: Mapping[str, str]) -> None:
    """Raise if one differs from that of the process that started the run."""
    for name, wanted in there.items():
        if here.get(name) != wanted:
            raise RequestError(
                f"{name} is {here.get(name, 'absent')} on host {socket.gethostname()}, but "
                f"{wanted} where the run was started.",
                "try: the same versions on all hosts",
            )
