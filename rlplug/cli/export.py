"""`rlplug export`: write a policy as a program that runs without rlplug."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click

from rlplug.cli.command import Command
from rlplug.cli.options import FILE, JSON, RUN, TRUST, option, with_options
from rlplug.cli.output import print_json, print_rows
from rlplug.durable import absolute_path
from rlplug.errors import RequestError
from rlplug.quantities import format_bytes, format_path

if TYPE_CHECKING:
    from rlplug.serving.export import Port

__all__ = ["export"]


@click.command("export", cls=Command)
@RUN
@with_options(
    option(
        "-o --output FILE",
        "File to write; default: ALGORITHM-ENV-STEP.pt2 in the working folder.",
        type=FILE,
    ),
    option("--format", "Default: as the file is named, else pt2.", "kind", type=("pt2", "onnx")),
    option("--agent NAME", "Which of several agents to write."),
    option("--action-mask", "Add a mask of allowed actions as an input (n, actions)."),
    option("--force", "Overwrite an existing file."),
    TRUST,
    JSON,
)
def export(
    run: str,
    output: Path | None,
    kind: str | None,
    agent: str | None,
    action_mask: bool,
    force: bool,
    trust: bool,
    as_json: bool,
) -> None:
    """Write the greedy policy of a run as a program for PyTorch or ONNX.

    RUN is named as for eval; RUN@STEP is another checkpoint. The program takes batches of
    observations as the environment returns them, and normalizes them itself. Recurrent policies
    take a state, zeros at the start of an episode, and return the next one.

    \b
    rlplug export last
    rlplug export best:CartPole-v1 -o policy.onnx       needs rlplug[onnx]
    """
    from rlplug.checkpoint import find_checkpoint
    from rlplug.tracking.console import console_for

    if output is not None:
        output = absolute_path(output, "--output")
    path = find_checkpoint(run)
    kind = kind or ("onnx" if output is not None and output.suffix == ".onnx" else "pt2")
    # Before anything heavy is imported.
    _check(output, kind, force=force)
    if not as_json:
        console_for().say(f"exporting {path} …")
    from rlplug.runs.loading import about, load_checkpoint
    from rlplug.serving.agents import AgentPolicy
    from rlplug.serving.export import export_policy

    loaded = load_checkpoint(path, trust=trust)
    facts, policy = about(loaded), loaded.policy
    if agent is not None:
        if not isinstance(policy, AgentPolicy):
            raise RequestError("the policy has one agent.", "try: without --agent")
        policy, facts["agent"] = policy.of(agent), agent
    if output is None:
        named = [*(facts[name] for name in ("algorithm", "environment", "step")), agent or ""]
        file = "-".join(str(part) for part in named if part != "")
        output = Path(re.sub(r"[^\w.-]", "_", f"{file}.{kind}"))
        _check(output, kind, force=force)
    made = export_policy(
        policy, output, "onnx" if kind == "onnx" else "pt2", action_mask=action_mask, about=facts
    )
    if as_json:
        print_json(attrs.evolve(made, file=made.file.absolute()))
        return
    difference = f"differences of at most {made.difference:.1g}" if made.difference else "equal"
    print_rows(
        {
            "file": f"{format_path(made.file)}, {format_bytes(made.file.stat().st_size)}",
            "inputs": ", ".join(map(_shown, made.inputs)),
            "outputs": ", ".join(map(_shown, made.outputs)),
            "checked": f"{made.rows} actions against the policy: {difference}",
        }
    )
    if made.format == "onnx":
        click.echo(f'use it: onnxruntime.InferenceSession("{made.file.name}").run(None, {{…}})')
    else:
        click.echo(f'use it: torch.export.load("{made.file.name}").module()(observation=…)')


def _check(file: Path | None, kind: str, *, force: bool) -> None:
    """Refuse what cannot be written."""
    needed = ("onnx", "onnxscript", "onnxruntime") if kind == "onnx" else ()
    missing = [one for one in needed if sys.modules.get(one, find_spec(one)) is None]
    if missing:
        raise RequestError(
            f"ONNX needs {', '.join(missing)}, not installed.",
            "try: pip install 'rlplug[onnx]', or --format pt2",
        )
    if file is not None and not file.absolute().parent.is_dir():
        raise RequestError(f"there is no folder {file.absolute().parent}.", "try: another file")
    if file is not None and file.exists() and not force:
        raise RequestError(f"{file} exists.", "try: --force to overwrite it, or another file")


def _shown(port: Port) -> str:
    return f"{port.name} {port.dtype} ({', '.join(['n', *map(str, port.shape)])})"
