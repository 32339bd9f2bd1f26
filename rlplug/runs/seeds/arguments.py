"""A request as arguments of `rlplug`, for a process that carries it out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlplug.config.sources import parse_setting
from rlplug.config.toml import toml_value
from rlplug.runs.request import FLAGS, Request

__all__ = ["arguments_of", "name_of_seed", "resume_arguments"]


def arguments_of(request: Request, seed: int) -> tuple[str, ...]:
    """`run --algo a2c … --seed 3`: the request with this seed."""
    flags = {**request.flags, "run": {**request.flags.get("run", {}), "seed": seed}}
    return ("run", *_of_request(request, flags, seed))


def resume_arguments(
    run: str, request: Request, *, steps: int = 0, allow_drift: bool = False
) -> tuple[str, ...]:
    """`resume RUN …`, with the settings of the request."""
    options = [*(["--steps", str(steps)] if steps else []), *_settings(request)]
    return ("resume", run, *options, *(["--allow-drift"] if allow_drift else []))


def name_of_seed(name: str, seed: int) -> str:
    """What the run of a seed is called, of several that were given one name."""
    return f"{name}-s{seed}"


def _of_request(request: Request, flags: Mapping[str, Any], seed: int) -> Iterator[str]:
    if request.config is not None:
        yield from ("--config", str(request.config))
    for name, value in flags["run"].items():
        for one in value if isinstance(value, list) else [value]:
            yield from (FLAGS[name], str(one))
    for file in flags.get("data", {}).get("files", ()):
        yield from (FLAGS["files"], file)
    for name, value in flags.get("scale", {}).items():
        yield from (FLAGS[name], str(value))
    folder = flags.get("sampling", {}).get("record")
    if folder:
        yield from (FLAGS["record"], f"{folder}/seed-{seed}")
    tracking = flags.get("tracking", {})
    for name, value in tracking.get("tags", {}).items():
        yield from (FLAGS["tags"], f"{name}={value}")
    if "run_name" in tracking:
        yield from (FLAGS["run_name"], name_of_seed(tracking["run_name"], seed))
    yield from _settings(request)


def _settings(request: Request) -> Iterator[str]:
    for setting in request.settings:
        yield from ("--set", f"{setting.key}={_as_text(setting.value)}")


def _as_text(value: Any) -> str:
    """A value as `--set` parses it; texts as they are, where that gives the same text."""
    if isinstance(value, str) and parse_setting(f"key={value}").value == value:
        return value
    return toml_value(value)
