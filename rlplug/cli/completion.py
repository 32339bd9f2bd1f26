"""`rlplug completion`, and what a shell completes: plugins, runs, options, environments."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from rlplug.cli.command import Command
from rlplug.registry import Kind, Registry

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script with which a shell completes commands, options, plugins and runs.

    \b
    eval "$(rlplug completion bash)"         in ~/.bashrc
    eval "$(rlplug completion zsh)"          in ~/.zshrc, after compinit
    rlplug completion fish > ~/.config/fish/completions/rlplug.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, "rlplug", "_RLPLUG_COMPLETE").source())


def _completing(known: Callable[[], Mapping[str, str]]) -> Complete:
    """Completes words, which are known with a line of help each."""

    def complete(
        context: click.Context, parameter: click.Parameter, begun: str
    ) -> list[CompletionItem]:
        words = known()
        return [CompletionItem(word, help=words[word]) for word in words if word.startswith(begun)]

    return complete


def complete_plugins(*kinds: Kind) -> Complete:
    """The installed plugins of these kinds."""

    def known() -> dict[str, str]:
        found = Registry.installed().found
        return {plugin.name: plugin.summary for plugin in found if plugin.kind in kinds}

    return _completing(known)


def _runs() -> dict[str, str]:
    from rlplug.tracking.location import runs_folder, runs_in

    names: dict[str, str] = {"last": "the newest run"}
    with contextlib.suppress(OSError):
        for run in runs_in(runs_folder()):
            about = run.about
            names.setdefault(run.run_name, f"{about.algorithm} on {about.env}, {run.started[:16]}")
            names.setdefault(about.group, "a study" if about.trial else "a group")
            names.setdefault(run.run_id, run.run_name)
    return {name: text for name, text in names.items() if name}


def _settings() -> dict[str, str]:
    from rlplug.config.options_table import rows, sections

    return {
        f"{section}.{row.name}": row.help
        for section, kind in sections().items()
        for row in rows(kind)
    }


def _names() -> dict[str, str]:
    """Plugins, and sections of the core's options."""
    from rlplug.config.options_table import sections

    about = {name: (kind.__doc__ or "").partition("\n")[0] for name, kind in sections().items()}
    return about | {plugin.name: plugin.summary for plugin in Registry.installed().found}


def _environments() -> dict[str, Any]:
    import gymnasium

    import rlplug.bandits  # noqa: F401 # it registers its environments

    return dict.fromkeys(sorted(gymnasium.registry))


complete_runs = _completing(_runs)
complete_settings = _completing(_settings)
complete_names = _completing(_names)
complete_environments = _completing(_environments)
