"""Plants bugs in the plugins of this repository, and counts those that `plugins check` finds.

python benchmarks/mutants.py --sample 100 --jobs 2        a sample by the rules, and all by hand
python benchmarks/mutants.py --plugin dqn ppo --rules signs options detach
python benchmarks/mutants.py --hand                       only those written by hand
python benchmarks/mutants.py --list                       what would be planted

Each bug is planted in a copy of the plugin's package that stands before the installed one on the
path of a process of its own. There the checks of `rlplug plugins check --slow` run until one
fails, the quick ones first. Mutants that survive are compared with the original: those whose
updates, feeds and actions are equal to the bit in all settings are listed apart.
Results are kept in `.mutants/` by the text of mutant and kit: a run that was ended goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
from mutants_rules import RULES, planted_by_rules

ROOT = Path(__file__).parent.parent
KEPT = ROOT / ".mutants"
HAND = Path(__file__).with_name("mutants_hand.toml")
SECONDS = 900
"""Wall-clock time of one mutant."""
PLUGINS: dict[str, tuple[str, tuple[str, ...]]] = {
    "dqn": ("rlplug_dqn", ("algorithm", "losses", "module", "exploration")),
    "ppo": ("rlplug_ppo", ("algorithm", "losses", "module", "advantages")),
    "a2c": ("rlplug_ppo", ("losses",)),
    "linucb": ("rlplug_linucb", ("algorithm", "linucb", "sums", "choice")),
    "sac": ("rlplug_sac", ("algorithm", "losses", "module")),
    "td3": ("rlplug_sac", ("algorithm", "losses", "module")),
    "ucb1": ("rlplug_bandits", ("algorithm", "counts", "ucb")),
    "epsilon-greedy": ("rlplug_bandits", ("randomized",)),
    "vdn": ("rlplug_vdn", ("algorithm", "losses", "module")),
    "bc": ("rlplug_bc", ("algorithm", "losses", "module")),
    "rnd": ("rlplug_rnd", ("addon", "module")),
    "ema": ("rlplug_ema", ("addon", "module")),
    "pcgrad": ("rlplug_pcgrad", ("addon", "surgery")),
    "reinforce": ("rlplug_reinforce", ("algorithm", "losses", "module")),
}
"""The plugin to check → its package, and the files to plant bugs in, where it is installed.

`reinforce` is what docs/first-algorithm.md makes, with the option that it adds: follow it first."""


@attrs.frozen
class Mutant:
    """One bug in one file of a plugin."""

    plugin: str
    file: str
    rule: str
    line: int
    before: str
    after: str
    source: str
    """The whole file with the bug."""

    def text(self) -> str:
        """Where it is, and the line before and after."""
        where = f"{self.plugin}: {self.file}:{self.line} ({self.rule})"
        return f"{where}\n    - {self.before}\n    + {self.after}"

    def key(self, kit: str) -> str:
        """Of what it is kept by."""
        return hashlib.sha256(f"{self.plugin}{self.file}{self.source}{kit}".encode()).hexdigest()


def folder_of(plugin: str) -> Path:
    """The folder of a plugin's package; one that does not exist if it is not installed."""
    spec = importlib.util.find_spec(PLUGINS[plugin][0])
    return Path("/nowhere") if spec is None or spec.origin is None else Path(spec.origin).parent


def main() -> None:
    """Plant the bugs that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--plugin", nargs="+", choices=PLUGINS, default=list(PLUGINS))
    parser.add_argument("--rules", nargs="+", choices=RULES, default=RULES)
    parser.add_argument("--sample", type=int, default=0, help="by rules, in all; 0: every one")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--hand", action="store_true", help="none by rules")
    parser.add_argument("--jobs", type=int, default=1, help="mutants that are tried at once")
    parser.add_argument("--quick", action="store_true", help="without the slow checks")
    parser.add_argument("--list", action="store_true", help="plant nothing")
    said = parser.parse_args()
    bugs = [bug for bug in tomllib.loads(HAND.read_text())["bug"] if bug["plugin"] in said.plugin]
    refuse_stale(bugs)
    mutants = list(chosen(said, bugs))
    if said.list:
        for one in mutants:
            print(one.text())
        print(f"{len(mutants)} mutants")
        return
    KEPT.mkdir(exist_ok=True)
    kit = kit_digest()
    originals = {
        name: fingerprints_of(name, kit) for name in dict.fromkeys(one.plugin for one in mutants)
    }
    results = []
    with ThreadPoolExecutor(said.jobs) as pool:
        tried = pool.map(
            lambda one: result_of(one, kit, originals[one.plugin], said.quick), mutants
        )
        for one, result in zip(mutants, tried, strict=True):
            results.append((one, result))
            by = result["check"] or result["result"]
            print(
                f"{result['result']:9} {by}  [{result['seconds']:.0f} s]  {one.text()}", flush=True
            )
    summary(results)


def refuse_stale(bugs: Sequence[dict[str, str]]) -> None:
    """End with those whose text does not stand in their file exactly once, and what is missing."""
    problems = []
    for bug in bugs:
        path = folder_of(bug["plugin"]) / f"{bug['file']}.py"
        if not path.exists():
            problems.append(f"{bug['plugin']} is not installed: there is no {path}")
        elif (count := path.read_text().count(bug["before"])) != 1:
            problems.append(f"{path} has {count} times {bug['before']!r}")
    if problems:
        lines = "\n  ".join(dict.fromkeys(problems))
        sys.exit(
            f"{HAND.name} is out of date, or a plugin is another one than it was written for:\n"
            f"  {lines}\n  try: write them anew, or leave the plugin out with --plugin"
        )


def chosen(said: argparse.Namespace, bugs: Sequence[dict[str, str]]) -> Iterator[Mutant]:
    """The mutants written by hand, and a sample of those by rules."""
    for bug in bugs:
        yield by_hand(**bug)
    if said.hand:
        return
    by_rules = []
    for plugin in said.plugin:
        for file in PLUGINS[plugin][1]:
            path = folder_of(plugin) / f"{file}.py"
            if not path.exists():
                continue
            source = path.read_text()
            by_rules += [
                Mutant(plugin, f"{file}.py", *parts)
                for parts in planted_by_rules(source, said.rules)
            ]
    drawn = random.Random(said.seed)
    yield from drawn.sample(by_rules, min(said.sample or len(by_rules), len(by_rules)))


def by_hand(plugin: str, file: str, before: str, after: str) -> Mutant:
    """A mutant that replaces a text which stands in the file once."""
    source = (folder_of(plugin) / f"{file}.py").read_text()
    line = source[: source.index(before)].count("\n") + 1
    planted = source.replace(before, after)
    return Mutant(plugin, f"{file}.py", "hand", line, before.strip(), after.strip(), planted)


def result_of(mutant: Mutant, kit: str, original: str, quick: bool) -> dict[str, Any]:
    """What the checks say of it, from an earlier run if there was one."""
    kept = KEPT / f"{mutant.key(kit)}{'-quick' if quick else ''}.json"
    if kept.exists():
        found: dict[str, Any] = json.loads(kept.read_text())
        return found
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / folder_of(mutant.plugin).name
        subprocess.run(["cp", "-r", str(folder_of(mutant.plugin)), str(package)], check=True)
        (package / mutant.file).write_text(mutant.source)
        began = time.monotonic()
        result = trial(["check", mutant.plugin, "quick" if quick else "slow"], folder)
        if result["result"] == "survived":
            same = trial(["fingerprints", mutant.plugin], folder)
            if same.get("digest") == original:
                result["result"] = "equal"
        result["seconds"] = time.monotonic() - began
    kept.write_text(json.dumps(result))
    return result


def fingerprints_of(plugin: str, kit: str) -> str:
    """The digest of the original's updates, feeds and actions."""
    return str(trial(["fingerprints", plugin], "").get("digest"))


def trial(arguments: Sequence[str], folder: str) -> dict[str, Any]:
    """Run `mutants_trial.py` with a package before all others on the path."""
    path = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    command = [sys.executable, str(Path(__file__).with_name("mutants_trial.py")), *arguments]
    try:
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return {"result": "found", "check": "took too long", "quick": True, "text": ""}
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        # An import that fails is found before any check runs.
        return {"result": "found", "check": "import", "quick": True, "text": done.stderr[-500:]}
    return answer


def kit_digest() -> str:
    """Of all sources of the kit."""
    found = hashlib.sha256()
    for path in sorted((ROOT / "rlplug" / "testing").rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()


def summary(results: Sequence[tuple[Mutant, dict[str, Any]]]) -> None:
    """How many were found, by plugin and in all; survivors and what changes nothing by name."""
    for word, title in (("equal", "Equal to the bit"), ("survived", "Survivors")):
        print(f"\n{title}:")
        for one, result in results:
            if result["result"] == word:
                print(f"  {one.text()}")
    print()
    names = [*dict.fromkeys(one.plugin for one, _ in results), "all"]
    for name in names:
        own = [result for one, result in results if name in (one.plugin, "all")]
        counted = [one for one in own if one["result"] != "equal"]
        found = [one for one in counted if one["result"] == "found"]
        quick = [one for one in found if one["quick"]]
        if counted:
            print(
                f"{name:18} {len(counted):4} mutants, found {len(found) / len(counted):.0%}, by "
                f"quick checks {len(quick) / len(counted):.0%}, {len(own) - len(counted)} equal"
            )


if __name__ == "__main__":
    main()
