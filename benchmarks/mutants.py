"""Plants bugs in the plugins of this repository, and counts those that `plugins check` finds.

python benchmarks/mutants.py --sample 100 --jobs 2        a sample by the rules, and all by hand
python benchmarks/mutants.py --plugin dqn ppo --rules signs options detach
python benchmarks/mutants.py --hand                       only those written by hand
python benchmarks/mutants.py --quick                      without the slow checks, which may follow
python benchmarks/mutants.py --again                      after a change of the kit: those it missed
python benchmarks/mutants.py --list                       what would be planted

Each bug is planted in a copy of the plugin's package that stands before the installed one on the
path of a process of its own. There the quick checks of `rlplug plugins check` run until one fails.
What they miss is compared with the original: mutants whose updates, feeds and actions are equal to
the bit in all settings are listed apart. The others go through the checks of `--slow`.
Lines that a check does not run make no difference to it: such checks are left out, by the lines
that each ran once without any bug. A mutant in a line that none of them runs survives.
Results are kept in `.mutants/` by the text of mutant and kit: a run that was ended goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
from mutants_rules import RULES, planted_by_rules
from mutants_trial import (
    Baseline,
    changed_lines,
    cpu_seconds,
    import_heavy,
    measure,
    try_mutant,
)

ROOT = Path(__file__).parent.parent
KEPT = ROOT / ".mutants"
HAND = Path(__file__).with_name("mutants_hand.toml")
SECONDS = 900
"""Wall-clock time of one mutant."""
PLUGINS: dict[str, tuple[str, tuple[str, ...]]] = {
    "dqn": ("rlplug_dqn", ("algorithm", "losses", "module", "exploration")),
    "ppo": ("rlplug_ppo", ("algorithm", "losses", "module", "advantages")),
    "a2c": ("rlplug_ppo", ("algorithm", "losses")),
    "linucb": ("rlplug_linucb", ("algorithm", "module", "ridge", "rows")),
    "lints": ("rlplug_linucb", ("algorithm", "module")),
    "sac": ("rlplug_sac", ("algorithm", "losses", "module")),
    "td3": ("rlplug_sac", ("algorithm", "losses", "module")),
    "ucb1": ("rlplug_bandits", ("algorithm", "counts", "ucb")),
    "epsilon-greedy": ("rlplug_bandits", ("algorithm", "randomized")),
    "softmax": ("rlplug_bandits", ("algorithm", "randomized")),
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

    @property
    def kept(self) -> Path:
        """Where its result is kept."""
        text = f"{self.plugin}{self.file}{self.source}"
        return KEPT / f"{hashlib.sha256(text.encode()).hexdigest()}.json"


def folder_of(plugin: str) -> Path:
    """The folder of a plugin's package; one that does not exist if it is not installed."""
    spec = importlib.util.find_spec(PLUGINS[plugin][0])
    return Path("/nowhere") if spec is None or spec.origin is None else Path(spec.origin).parent


def main() -> None:
    """Plant the bugs that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--plugin", nargs="+", choices=PLUGINS, default=list(PLUGINS))
    parser.add_argument("--rules", nargs="+", choices=RULES, default=RULES)
    parser.add_argument(
        "--sample", type=int, default=0, help="by rules, of all plugins; 0: every one"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--hand", action="store_true", help="none by rules")
    parser.add_argument("--jobs", type=int, default=1, help="mutants that are tried at once")
    parser.add_argument("--quick", action="store_true", help="without the slow checks")
    parser.add_argument("--again", action="store_true", help="keep what earlier kits found")
    parser.add_argument("--seconds", type=float, default=1e9, help="of CPU; the next run goes on")
    parser.add_argument("--list", action="store_true", help="plant nothing")
    said = parser.parse_args()
    bugs = [bug for bug in tomllib.loads(HAND.read_text())["bug"] if bug["plugin"] in said.plugin]
    refuse_stale(bugs)
    KEPT.mkdir(exist_ok=True)
    if said.list:
        mutants = list(chosen(said, bugs, None))
        for one in mutants:
            print(one.text())
        print(f"{len(mutants)} mutants")
        return
    import_heavy()
    kit = digest_of(ROOT / "rlplug" / "testing")
    baselines = Baselines(kit)
    mutants = list(chosen(said, bugs, baselines))
    waiting, running = mutants.copy(), list[Trial]()
    while (waiting and cpu_seconds() < said.seconds) or running:
        while waiting and len(running) < said.jobs and cpu_seconds() < said.seconds:
            one = waiting.pop(0)
            if (result := known(one, kit, said)) is None:
                running.append(Trial(one, baselines[one.plugin], kit, said.quick))
            else:
                report(one, result)
        for trial in [one for one in running if one.over()]:
            running.remove(trial)
            report(trial.mutant, json.loads(trial.mutant.kept.read_text()))
        time.sleep(0.1)
    tried = [one for one in mutants if one not in waiting]
    summary([(one, json.loads(one.kept.read_text())) for one in tried])
    if waiting:
        print(f"{len(waiting)} more are to be tried: the same command goes on")


def report(mutant: Mutant, result: dict[str, Any]) -> None:
    """Print what came of a mutant."""
    by = result["check"] or result["result"]
    print(f"{result['result']:9} {by}  [{result['seconds']:.0f} s]  {mutant.text()}", flush=True)


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


def chosen(
    said: argparse.Namespace, bugs: Sequence[dict[str, str]], baselines: Baselines | None
) -> Iterator[Mutant]:
    """A sample of the mutants by rules, and those written by hand."""
    if not said.hand:
        yield from sample_by_rules(said, baselines)
    for bug in bugs:
        yield by_hand(**bug)


def sample_by_rules(said: argparse.Namespace, baselines: Baselines | None) -> Iterator[Mutant]:
    """As many as were asked for; a smaller sample is part of a larger one."""
    by_rules: dict[tuple[str, str], list[Mutant]] = {}
    for plugin, (package, files) in PLUGINS.items():
        for file in files:
            path = folder_of(plugin) / f"{file}.py"
            if not path.exists():
                continue
            source = path.read_text()
            for parts in planted_by_rules(source, said.rules):
                one = Mutant(plugin, f"{file}.py", *parts)
                by_rules.setdefault((package, one.source), []).append(one)
    # Of plugins of one package, one that runs the line is chosen.
    drawn = list(by_rules.values())
    random.Random(said.seed).shuffle(drawn)
    for same in drawn[: said.sample or len(drawn)]:
        if not any(one.plugin in said.plugin for one in same):
            continue
        runs = (
            one
            for one in same[:-1]
            if not baselines or baselines[one.plugin].runs(one.file, lines_of(one)) != set()
        )
        one = next(runs, same[-1])
        if one.plugin in said.plugin:
            yield one


def lines_of(mutant: Mutant) -> set[int]:
    """The lines of the original that it changes."""
    before = (folder_of(mutant.plugin) / mutant.file).read_text()
    return changed_lines(before, mutant.source)


def by_hand(plugin: str, file: str, before: str, after: str) -> Mutant:
    """A mutant that replaces a text which stands in the file once."""
    source = (folder_of(plugin) / f"{file}.py").read_text()
    line = source[: source.index(before)].count("\n") + 1
    planted = source.replace(before, after)
    return Mutant(plugin, f"{file}.py", "hand", line, before.strip(), after.strip(), planted)


def known(mutant: Mutant, kit: str, said: argparse.Namespace) -> dict[str, Any] | None:
    """What an earlier run says of it; None if there was none with this kit."""
    if not mutant.kept.exists():
        return None
    result: dict[str, Any] = json.loads(mutant.kept.read_text())
    if result["kit"] != kit:
        return result if said.again and result["result"] == "found" else None
    return result if said.quick or result["result"] != "missed" else None


class Trial:
    """One bug in a copy of its package, and a process that checks it."""

    def __init__(self, mutant: Mutant, baseline: Baseline, kit: str, quick: bool) -> None:
        self.mutant, self.kit = mutant, kit
        self.home = Path(tempfile.mkdtemp(prefix="mutant-"))
        original = folder_of(mutant.plugin)
        shutil.copytree(
            original, self.home / original.name, ignore=shutil.ignore_patterns("__pycache__")
        )
        (self.home / original.name / mutant.file).write_text(mutant.source)
        self.answer = self.home / "answer.json"
        relevant = baseline.runs(mutant.file, lines_of(mutant))
        how = "quick" if quick else "all"
        if mutant.kept.exists():
            earlier = json.loads(mutant.kept.read_text())
            if earlier["kit"] == kit and earlier["result"] == "missed":
                how = "slow"
        arguments = (mutant.plugin, self.home, baseline, relevant, how)
        if relevant == set():
            self.answer.write_text(json.dumps(NEVER_RUN))
        self.process = forked(write_answer, self.answer, arguments)
        self.deadline = time.monotonic() + SECONDS

    def over(self) -> bool:
        """Whether it has ended, or took too long; then its result is kept."""
        if self.process.is_alive():
            if time.monotonic() < self.deadline:
                return False
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid or 0, signal.SIGKILL)
        self.process.join()
        result = {"result": "found", "check": "took too long, or ended", "quick": True, "text": ""}
        if self.answer.exists():
            result = json.loads(self.answer.read_text())
        shutil.rmtree(self.home)
        self.mutant.kept.write_text(json.dumps({"seconds": 0.0, **result, "kit": self.kit}))
        return True


NEVER_RUN = {"result": "survived", "check": "no check runs the line", "quick": False, "text": ""}


def write_answer(answer: Path, arguments: tuple[Any, ...]) -> None:
    """In a child: try a mutant, and write down what the checks say."""
    os.setsid()
    if not answer.exists():
        began = cpu_seconds()
        result = try_mutant(*arguments)
        answer.write_text(json.dumps({**result, "seconds": cpu_seconds() - began}))


class Baselines:
    """What the checks of plugins run without any bug: measured once for each."""

    def __init__(self, kit: str) -> None:
        self._kit = kit
        self._found: dict[str, Baseline] = {}

    def __getitem__(self, plugin: str) -> Baseline:
        if plugin not in self._found:
            found = self._found[plugin] = self._measured(plugin)
            for check, text in found.failures.items():
                print(f"{plugin} without any bug fails {check}, which is left out:\n{text}")
        return self._found[plugin]

    def _measured(self, plugin: str) -> Baseline:
        kept = KEPT / f"{plugin}-baseline.json"
        text = self._kit + digest_of(folder_of(plugin))
        found = json.loads(kept.read_text()) if kept.exists() else {}
        if found.get("of") != text:
            written = KEPT / f"{plugin}-measured.json"
            written.unlink(missing_ok=True)
            forked(measure, plugin, folder_of(plugin), written).join()
            if not written.exists():
                sys.exit(f"{plugin} could not be checked without any bug")
            found = {"of": text, "baseline": json.loads(written.read_text())}
            kept.write_text(json.dumps(found))
            written.unlink()
        return Baseline(**found["baseline"])


def forked(target: Callable[..., None], *arguments: Any) -> Any:
    """A process that was started with all imports that this one has."""
    process = multiprocessing.get_context("fork").Process(target=target, args=arguments)
    process.start()
    return process


def digest_of(folder: Path) -> str:
    """Of all sources in a folder."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()


def summary(results: Sequence[tuple[Mutant, dict[str, Any]]]) -> None:
    """How many were found, by plugin and in all; survivors and what changes nothing by name."""
    for word, title in (("equal", "Equal to the bit"), ("survived", "Survivors")):
        print(f"\n{title}:")
        for one, result in results:
            if result["result"] == word:
                print(f"  {one.text()}  {result['check']}")
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
