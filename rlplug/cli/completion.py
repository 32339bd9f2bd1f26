"""`rlplug completion`, and what a shell completes: plugins, runs, options, environments."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class

from rlplug.cli.command import Command
from rlplug.cli.parameters import debug_option
from rlplug.registry import ALGORITHM, FoundPlugin, Kind, Registry

__all__ = [
    "complete_environments",
    "complete_plugins",
    "complete_presets",
    "complete_runs",
    "complete_settings",
    "complete_spaces",
    "completion",
]

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

LAST = "last"
_NEWEST = 20
"""How many runs are offered before anything is typed."""

_BASH = """
%(complete_func)s() {
    local typed=${COMP_LINE:0:COMP_POINT} words word current prefix type value
    IFS=$' \\t\\n' read -ra words <<< "$typed"
    [[ $typed == *[[:space:]] ]] && words+=("")
    word=${words[-1]}
    # bash splits words at = : and @, too, and puts what it is given in place of the last part.
    current=${COMP_WORDS[COMP_CWORD]}
    [[ $current == [=:@] ]] && current=""
    prefix=${word%%"$current"}
    COMPREPLY=()
    while IFS=',' read -r type value; do
        if [[ $type == dir ]]; then compopt -o dirnames
        elif [[ $type == file ]]; then compopt -o default
        elif [[ $type == plain ]]; then
            COMPREPLY+=("${value#"$prefix"}")
        fi
    done < <(COMP_WORDS="$typed" COMP_CWORD=$((${#words[@]} - 1)) %(complete_var)s=bash_complete $1)
    [[ ${#COMPREPLY[@]} == 1 && $COMPREPLY == *[=@] ]] && compopt -o nospace
    return 0
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""


@add_completion_class
class _Bash(BashComplete):
    source_template = _BASH

    @staticmethod
    def _check_version() -> None:
        """click would start a bash to ask; 4.4, which it asks for, is of 2016."""


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@debug_option
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script with which a shell completes commands, options, plugins and runs.

    \b
    eval "$(rlplug completion bash)"         in ~/.bashrc
    eval "$(rlplug completion zsh)"          in ~/.zshrc, after compinit
    rlplug completion fish > ~/.config/fish/completions/rlplug.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, "rlplug", "_RLPLUG_COMPLETE").source())


def complete_plugins(*kinds: Kind) -> Complete:
    """The installed plugins of these kinds."""

    def complete(
        context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [
            CompletionItem(plugin.name, help=plugin.summary)
            for kind in kinds
            for plugin in Registry.installed().of_kind(kind)
            if plugin.name.startswith(incomplete)
        ]

    return complete


def complete_runs(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Runs of the runs folder by name, group or id; after `@`, their checkpoints."""
    from rlplug.tracking.location import runs_folder, runs_in

    with contextlib.suppress(OSError):
        runs = runs_in(runs_folder())
        named, at, _ = incomplete.rpartition("@")
        if at:
            of = [one.path for one in runs if named in (one.run_name, one.run_id[:8], LAST)][:1]
            return _items((f"{named}@{one}" for one in _checkpoints(of)), incomplete)
        found = {LAST: "the newest run"} if runs else {}
        for run in runs if incomplete else runs[:_NEWEST]:
            shown = f"{run.about.algorithm} on {run.about.env}, {run.started[:16]}"
            found.setdefault(run.run_name, shown)
            if run.about.group:
                found.setdefault(
                    run.about.group, "a study" if run.about.trial else "a group of seeds"
                )
            if incomplete:
                found.setdefault(f"best:{run.about.env}", "the best run in this environment")
                found.setdefault(run.run_id[:8] if len(incomplete) <= 8 else run.run_id, shown)
        return _items(found, incomplete)
    return []


def _checkpoints(runs: Iterable[Path]) -> Iterator[str]:
    for run in runs:
        yield from ("best", "last")
        for folder in sorted((run / "checkpoints").glob("step-*")):
            yield str(int(folder.name.removeprefix("step-")))


def complete_settings(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Options of the core and, after `--algo`, of the algorithm; after `=`, their values."""
    from rlplug.config.options_table import rows
    from rlplug.config.sections import CORE_SECTIONS

    known = {
        f"{section}.{row.name}": (row.type, row.help)
        for section, kind in CORE_SECTIONS.items()
        for row in rows(kind)
    }
    known |= {name: (kind, text) for name, kind, text in _of_algorithm(context)["options"]}
    name, given, _ = incomplete.partition("=")
    if given:
        kinds = known.get(name, ("", ""))[0].split(" or ")
        values = [one.strip("'") for one in kinds if one.startswith("'")]
        values += ["true", "false"] if "bool" in kinds else []
        return _items((f"{name}={one}" for one in values), incomplete)
    # Others put a space after it, which would have to be deleted again.
    end = "=" if os.environ.get("_RLPLUG_COMPLETE", "").startswith("bash") else ""
    return _items({f"{one}{end}": text for one, (_, text) in known.items()}, incomplete)


def complete_spaces(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The options that can be searched; what they are searched in is not guessed."""
    return [] if "=" in incomplete else complete_settings(context, parameter, incomplete)


def complete_presets(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The presets of the algorithm that `--algo` names."""
    return _items(_of_algorithm(context)["presets"], incomplete)


def complete_environments(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The environments that are registered in Gymnasium."""

    def registered() -> list[str]:
        import gymnasium

        import rlplug.bandits  # noqa: F401

        return sorted(gymnasium.registry)

    return _items(_kept("environments", _installed(), registered), incomplete)


def _items(values: Mapping[str, str] | Iterable[str], begun: str = "") -> list[CompletionItem]:
    texts = values if isinstance(values, Mapping) else dict.fromkeys(values)
    return [
        CompletionItem(value, help=text) for value, text in texts.items() if value.startswith(begun)
    ]


def _of_algorithm(context: click.Context) -> dict[str, Any]:
    """The options and presets of the algorithm on the line; none where it names none."""
    nothing: dict[str, Any] = {"options": [], "presets": []}
    registry, name = Registry.installed(), context.params.get("algo")
    found = [one for one in registry.of_kind(ALGORITHM) if one.name == name]

    def read() -> dict[str, Any]:
        from rlplug.config.options_table import rows

        loaded = registry.load(found[0])
        options = [(row.name, row.type, row.help) for row in rows(loaded.Config)]
        return {"options": options, "presets": [*loaded.presets]}

    # Whatever is wrong with it is told when it is run.
    with contextlib.suppress(Exception):
        return _kept(f"algorithm-{name}", _sources(found[0]), read) if found else nothing
    return nothing


# -- what takes a second to find out --------------------------------------------------------------


def _kept(name: str, valid: str, find_out: Callable[[], Any]) -> Any:
    """What was found out before, as long as it is valid: importing a plugin takes a second."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    file = Path(cache, "rlplug", f"completion-{re.sub('[^a-z0-9-]', '_', name)}.json")
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        kept = json.loads(file.read_bytes())
        if kept["valid"] == valid:
            return kept["found"]
    found = find_out()
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps({"valid": valid, "found": found}))
        partial.replace(file)
    return found


def _installed() -> str:
    """Changes when something is installed."""
    folders = [Path(one) for one in sys.path if one]
    return _digest(one for one in folders if one.is_dir())


def _sources(plugin: FoundPlugin) -> str:
    """Changes when the plugin, its options or the core do."""
    package = plugin.target.partition(":")[0].partition(".")[0]
    files = [*Path(__file__).parent.parent.glob("config/*.py")]
    spec = find_spec(package)
    if spec is not None:
        for folder in spec.submodule_search_locations or ():
            files += Path(folder).rglob("*.py")
        # A module that is no package is one file.
        files += [Path(one) for one in [spec.origin] if one and Path(one).is_file()]
    return _digest(files)


def _digest(paths: Iterable[Path]) -> str:
    times = [f"{path} {path.stat().st_mtime_ns}" for path in sorted(paths)]
    return hashlib.sha256("\n".join(times).encode()).hexdigest()
