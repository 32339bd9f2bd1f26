"""`rlplug plugins`: list, show, check and create plugins; print the hooks."""

from __future__ import annotations

import inspect
import json
import platform
import re
import shlex
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from rlplug.cli.command import Group
from rlplug.cli.completion import complete_names, complete_plugins
from rlplug.cli.options import JSON, OWN_SEED, option, with_options
from rlplug.cli.output import print_json, print_next, print_rows, print_table
from rlplug.errors import RequestError, RlplugError, did_you_mean
from rlplug.registry import (
    ADDON,
    ALGORITHM,
    FoundPlugin,
    Participant,
    Registry,
    is_name,
)

if TYPE_CHECKING:
    from rlplug.testing.report import Outcome

__all__ = ["plugins"]

_NAMES = complete_plugins(ALGORITHM, ADDON)
_REPORTED = ("rlplug", "torch", "gymnasium", "mlflow", "numpy")
"""Packages of which a report of a bug has the versions."""


@click.group(cls=Group, invoke_without_command=True)
@click.pass_context
def plugins(context: click.Context) -> None:
    """List, show, check and create plugins."""
    if context.invoked_subcommand is None:
        context.invoke(list_plugins)


# -- list ------------------------------------------------------------------------------------------


@plugins.command("list")
@with_options(option("--check", "Import each plugin, and print versions for bug reports."), JSON)
def list_plugins(check: bool = False, as_json: bool = False) -> int:
    """List the installed algorithms and add-ons.

    \b
    rlplug plugins list
    rlplug plugins list --check        exits with 1 if a plugin cannot be used
    """
    registry, rows = Registry.installed(), []
    for kind in (ALGORITHM, ADDON):
        for name, found in sorted(registry.grouped(kind).items()):
            status, detail = _state(found, registry if check else None)
            package = f"{len(found)} packages" if found[1:] else found[0].package
            row = {"kind": kind, "name": name, "package": package}
            rows.append({**row, "status": status, "detail": detail})
    if as_json:
        print_json(rows)
    else:
        if check:
            versions = {one.metadata["Name"]: one.version for one in metadata.distributions()}
            print_rows({name: versions.get(name, "not installed") for name in _REPORTED})
            click.echo(f"python     {platform.python_version()}\n")
        print_table(rows, spare=("package",))
        print_next("plugins show NAME")
    if not rows:
        raise RequestError("no plugins are installed.", "try: pip install rlplug-linucb")
    return int(check and any(row["status"] in ("clash", "unfit", "failed") for row in rows))


def _state(found: Sequence[FoundPlugin], checked_by: Registry | None) -> tuple[str, str]:
    """The status of the plugins of a name, and what is wrong with them."""
    plugin = found[0]
    unfit = plugin.incompatibility()
    if found[1:]:
        return "clash", ", ".join(one.package for one in found)
    if unfit is not None:
        return "unfit", unfit
    if not is_name(plugin.name):
        return "odd", "names are lower case letters, digits and dashes"
    if checked_by is None:
        return "ok", plugin.summary
    from rlplug.hooks.binding import deprecations

    try:
        warnings = "; ".join(deprecations(_participant(plugin, checked_by.load(plugin))))
    except RlplugError as error:
        return "failed", str(error)
    return ("warning", warnings) if warnings else ("ok", plugin.summary)


def _participant(found: FoundPlugin, kind: Any) -> Participant:
    with found.calling("__init__"):
        plugin = kind(kind.Config())
    return Participant(found, plugin, plugin.config)


# -- show ------------------------------------------------------------------------------------------


@plugins.command()
@click.argument("name", metavar="NAME|SECTION", shell_complete=complete_names)
@JSON
def show(name: str, as_json: bool) -> None:
    """Show the hooks, options and presets of a plugin, or a section of the core's options.

    \b
    rlplug plugins show ppo
    rlplug plugins show evaluation      or all, for the options of every section
    """
    from rlplug.config.options_table import rows, sections

    known, registry = sections(), Registry.installed()
    names = {plugin.name for plugin in registry.found}
    if name not in names and (name == "all" or name in known):
        shown = known if name == "all" else {name: known[name]}
        if as_json:
            print_json({key: rows(kind) for key, kind in shown.items()})
            return
        for key, kind in shown.items():
            about = (kind.__doc__ or "").strip().partition("\n")[0]
            click.echo(f"{click.style(f'[{key}]', bold=True)}  {about}")
            _print_options(kind)
            click.echo()
        print_next("run --algo NAME --set evaluation.every=1000")
        return
    near = did_you_mean(name, known, sentence=True)
    if near and not did_you_mean(name, names):
        raise RequestError(f"there is no section {name!r}. {near}", f"sections: {', '.join(known)}")
    found = registry.named(name)
    kind = registry.load(found)
    if as_json:
        facts = {"options": rows(kind.Config), "presets": getattr(kind, "presets", {})}
        print_json({"name": found.name, "hooks": _hooks(found, kind), **facts})
    else:
        _print_plugin(found, kind)


def _hooks(found: FoundPlugin, kind: Any) -> list[str]:
    """The hooks that the class implements, checked as in a run."""
    from rlplug.hooks.binding import bind

    bound = bind([_participant(found, kind)])
    return [hook for hook, implementations in bound.items() if implementations]


def _print_options(config: type[Any]) -> None:
    from rlplug.config.options_table import rows

    table = [
        {"  name": f"  {row.name}", "type": row.type, "default": row.default, "": row.help}
        for row in rows(config)
    ]
    print_table(table, shortened=("type",))
    if not table:
        click.echo("  none")


def _print_plugin(found: FoundPlugin, kind: Any) -> None:
    import tomli_w

    from rlplug.config.toml import plain

    def heading(text: str, more: str = "") -> None:
        click.echo(f"\n{click.style(text, bold=True)}{more}")

    hooks = ", ".join(_hooks(found, kind))
    click.echo(f"{click.style(found.label, bold=True)}  {found.summary}")
    click.echo(f"class    {found.target}")
    options = plain(kind.Config()) if attrs.fields(kind.Config) else {}
    file: dict[str, Any] = {"run": {"addons": [found.name]}, "addons": {found.name: options}}
    if found.kind == ALGORITHM:
        env = kind.default_env or "no environment: name one with --env"
        click.echo(f"default  {env}, {kind.default_steps:,} steps")
        run = {"algorithm": found.name} | ({"env": kind.default_env} if kind.default_env else {})
        file = {"run": run, "algorithm": options}
    if kind.__doc__:
        click.echo(f"\n{inspect.cleandoc(kind.__doc__)}")
    heading("Hooks", f"\n  {hooks}")
    heading("Options", "; of every run: rlplug plugins show all")
    _print_options(kind.Config)
    presets = getattr(kind, "presets", {})
    if presets:
        heading("Presets", f": rlplug run --algo {found.name} --preset {next(iter(presets))}")
    for name, values in presets.items():
        lines = (f"    {path} = {json.dumps(value)}" for path, value in values.items())
        click.echo("\n".join([f"  {name}", *lines]))
    heading("As a file", ": rlplug run --config run.toml")
    click.echo(tomli_w.dumps(file).rstrip())
    for path, value in getattr(kind, "defaults", {}).items():
        click.echo(f"\n# {path} = {json.dumps(value)}     (this algorithm's default)")
    how = f"--algo {found.name}" if found.kind == ALGORITHM else f"--algo NAME --with {found.name}"
    click.echo(f"\n# next: rlplug run {how}")


# -- check, new, hooks -----------------------------------------------------------------------------


@plugins.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=_NAMES)
@with_options(option("--slow", "Also run the slow checks."), OWN_SEED, JSON)
@option("--only CHECK", "Run only this check; repeatable.", many=True)
def check(
    names: tuple[str, ...], slow: bool, only: tuple[str, ...], seed: int, as_json: bool
) -> int:
    """Run the conformance checks on plugins; exits with 1 if one fails.

    \b
    rlplug plugins check ppo
    rlplug plugins check ppo dqn --slow
    """
    registry = Registry.installed()
    for name in names:
        # Before the import of torch, so that a wrong name is answered at once.
        registry.named(name)
    from rlplug.testing.check import tier_of
    from rlplug.testing.checks import check_named, checks_for
    from rlplug.testing.subject import Subject

    facts: dict[str, Any] = {}
    show = (lambda line: None) if as_json else click.echo
    for name in names:
        subject = Subject.of(name, seed=seed)
        show(click.style(subject.found.label, bold=True))
        chosen = [check_named(one, subject.kind) for one in only]
        outcomes: list[Outcome] = []
        for outcome in (one.outcome(subject) for one in chosen or checks_for(subject, slow=slow)):
            show("\n".join(_lines_of(outcome, outcomes)))
            outcomes.append(outcome)
        statuses = [one.status for one in outcomes]
        counts = ", ".join(f"{statuses.count(one)} {one}" for one in _SIGNS if one in statuses)
        show(f"  {counts} in {sum(one.seconds for one in outcomes):.1f} s")
        tier = "" if only else tier_of(outcomes)
        if tier:
            show(f"  {tier}\n")
        facts[name] = {"package": subject.found.package, "tier": tier, "checks": outcomes}
    if as_json:
        print_json(facts)
    outcomes = [outcome for plugin in facts.values() for outcome in plugin["checks"]]
    return 1 if any(outcome.status == "failed" for outcome in outcomes) else 0


_SIGNS = {"passed": "ok", "failed": "FAILED", "does not apply": "-"}


def _lines_of(outcome: Outcome, before: Sequence[Outcome]) -> Iterator[str]:
    """A result in lines; what an earlier check has found in the same words is not repeated."""
    sign, words = _SIGNS[outcome.status], outcome.check.replace("_", " ")
    if outcome.status == "does not apply":
        yield f"  {sign:<6}  {words}: {outcome.text}"
        return
    yield f"  {sign:<6}  {words}  ({outcome.seconds:.1f} s)"

    def finding(one: Outcome) -> str:
        return re.sub(r" \(in '[^']*'\)", "", one.text.partition("\nfound ")[2])

    same = [one.check for one in before if finding(one) and finding(one) == finding(outcome)]
    text = f"found       the same as: {same[0].replace('_', ' ')}" if same else outcome.text
    yield from (f"            {line}" for line in text.splitlines())


@plugins.command()
@click.argument("name")
@with_options(
    option("--addon", "Create an add-on instead of an algorithm."),
    option("--bandit", "Create an algorithm for bandits."),
)
def new(name: str, addon: bool, bandit: bool) -> None:
    """Create the package of a new plugin, which trains as it is, in the current folder.

    \b
    rlplug plugins new reinforce           a policy gradient
    rlplug plugins new anchor --addon      a penalty beside any algorithm's loss
    """
    from rlplug.scaffold import create_package

    if addon and bandit:
        raise click.UsageError("--addon and --bandit exclude each other.")
    flavour: Any = "addon" if addon else "bandit" if bandit else "algorithm"
    created = create_package(name, flavour, Path.cwd(), Registry.installed())
    names, folder = created.names, shlex.quote(created.names.distribution)
    run = f"--algo NAME --with {names.plugin}" if addon else f"--algo {names.plugin}"
    click.echo(f"created {folder}: {created.summary[0].lower()}{created.summary[1:]}")
    click.echo(f"its hooks  {names.package}/{'addon' if addon else 'algorithm'}.py")
    click.echo(f"run it     rlplug run {run}")
    click.echo(f"check it   rlplug plugins check {names.plugin}; pytest {folder}")
    click.echo(f"next: pip install -e './{folder}[test]'")


@plugins.command()
@with_options(option("--markdown", "Print the guide and the full reference."), JSON)
def hooks(markdown: bool, as_json: bool) -> None:
    """List the hooks that plugins can implement."""
    from rlplug.hooks import reference

    if markdown:
        click.echo(reference.markdown(), nl=False)
        return
    if as_json:
        print_json(reference.entries())
        return
    for entry in reference.entries():
        click.echo(f"{click.style(entry.name, bold=True)}({', '.join(entry.arguments)})")
        click.echo(f"    {entry.summary}")
        click.echo(f"    called: {entry.called}\n")
    print_next("plugins hooks --markdown")
