"""`rlplug export`: write a policy as a program that runs without rlplug."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click

from rlplug.cli.command import Command
from rlplug.cli.completion import complete_runs
from rlplug.cli.parameters import debug_option
from rlplug.cli.terminal import in_columns
from rlplug.durable import absolute_path
from rlplug.errors import RequestError
from rlplug.quantities import format_bytes, format_path

if TYPE_CHECKING:
    from rlplug.serving.export import Exported, Port
    from rlplug.serving.policy import Policy

__all__ = ["export"]


@click.command("export", cls=Command)
@click.argument("run", shell_complete=complete_runs, metavar="RUN")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["pt2", "onnx"]),
    help="torch.export's .pt2 or ONNX; default: by the name of the file, else pt2.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="File to write; default: ALGORITHM-ENV-STEP.pt2 in the working folder.",
)
@click.option("--agent", metavar="NAME", help="Of a policy of several agents: whose to write.")
@click.option(
    "--action-mask", is_flag=True, help="Add a mask of allowed actions as an input (n, actions)."
)
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@click.option(
    "--trust",
    is_flag=True,
    help="Import the code that the config of somebody else's run names: encoders.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
@debug_option
def export(
    run: str,
    format_: str | None,
    output: Path | None,
    agent: str | None,
    action_mask: bool,
    force: bool,
    trust: bool,
    as_json: bool,
) -> None:
    """Write the greedy policy of a run as a program for PyTorch or ONNX.

    RUN is named as for eval; its best checkpoint is taken, RUN@STEP is the one at a step. The
    program takes observations as the environment returns them (stacked, where frames are stacked)
    in batches of any size; normalization is part of it. Recurrent policies take a state, zeros at
    the start of an episode, and return the next one. The file is compared with the policy before
    it is kept.

    \b
    rlplug export last
    rlplug export best:CartPole-v1 -o policy.onnx       needs rlplug[onnx]
    rlplug export last --agent adversary_0              of several agents, one
    """
    from rlplug.checkpoint import find_checkpoint

    if output is not None:
        output = absolute_path(output, "--output")
    path = find_checkpoint(run)
    kind = format_ or ("onnx" if output is not None and output.suffix == ".onnx" else "pt2")
    _check(output, kind, force=force)
    from rlplug.tracking.console import console_for

    if not as_json:
        console_for().say(f"exporting {path} …")
    from rlplug.runs.loading import about, load_checkpoint
    from rlplug.serving.export import export_policy

    loaded = load_checkpoint(path, trust=trust)
    if agent is not None:
        loaded = attrs.evolve(loaded, policy=_of_agent(loaded.policy, agent))
    facts = about(loaded)
    told = [facts["algorithm"], facts["environment"], facts["step"]]
    if agent is not None:
        facts["agent"] = agent
        told.append(agent)
    name = f"{'-'.join(map(str, told))}.{kind}"
    file = output or Path("".join(one if one.isalnum() or one in "-_." else "_" for one in name))
    _check(file, kind, force=force)
    made = export_policy(
        loaded.policy,
        file,
        "onnx" if kind == "onnx" else "pt2",
        action_mask=action_mask,
        about=facts,
    )
    if as_json:
        click.echo(json.dumps({**attrs.asdict(made), "file": str(made.file.absolute())}))
        return
    _tell(made)


def _of_agent(policy: Policy, agent: str) -> Policy:
    from rlplug.serving.agents import AgentPolicy

    if not isinstance(policy, AgentPolicy):
        raise RequestError(f"the policy has one agent: --agent {agent} does not fit.")
    return policy.of(agent)


def _check(file: Path | None, kind: str, *, force: bool) -> None:
    """Before anything heavy is imported."""
    if kind == "onnx":
        from importlib.util import find_spec

        missing = [one for one in ("onnx", "onnxscript", "onnxruntime") if find_spec(one) is None]
        if missing:
            raise RequestError(
                f"ONNX needs {', '.join(missing)}, not installed.",
                "try: pip install 'rlplug[onnx]', or --format pt2",
            )
    if file is None:
        return
    if not file.absolute().parent.is_dir():
        raise RequestError(
            f"{file} cannot be written: there is no folder {file.absolute().parent}.",
            "try: another file",
        )
    if file.exists() and not force:
        raise RequestError(f"{file} exists.", "try: --force to replace it, or another file")


def _tell(made: Exported) -> None:
    same = (
        "no difference" if made.difference == 0 else f"differences of at most {made.difference:.1g}"
    )
    rows = {
        "file": f"{format_path(made.file)}, {format_bytes(made.file.stat().st_size)}",
        "inputs": ", ".join(map(_shown, made.inputs)),
        "outputs": ", ".join(map(_shown, made.outputs)),
        "compared": f"{same} from the policy's actions for {made.rows} observations",
    }
    for line in in_columns(rows):
        click.echo(line)
    click.echo("use it:")
    for line in _example(made):
        click.echo(f"  {line}")


def _shown(port: Port) -> str:
    return f"{port.name} {port.dtype} ({', '.join(['n', *map(str, port.shape)])})"


def _example(made: Exported) -> list[str]:
    if made.format == "onnx":
        given = ", ".join(f'"{one.name}": …' for one in made.inputs)
        return [
            "import onnxruntime",
            f'session = onnxruntime.InferenceSession("{made.file.name}")',
            f"action = session.run(None, {{{given}}})[0]",
        ]
    arguments = dict.fromkeys(one.name.partition(".")[0] for one in made.inputs)
    given = ", ".join(f"{one}=…" for one in arguments)
    result = "action, state" if "state" in arguments else "action"
    return [
        "import torch",
        f'policy = torch.export.load("{made.file.name}").module()',
        f"{result} = policy({given})",
    ]
