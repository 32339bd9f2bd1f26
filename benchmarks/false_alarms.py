"""The conformance checks on every shipped plugin with many seeds: none may fail.

    python benchmarks/false_alarms.py [--seeds 1-20] [--plugins ucb1 dqn] [--only CHECK …]
        [--without CHECK …] [--slow] [--results FILE]

A check of a correct plugin can fail by chance alone: a probe that is not learned with one seed, a
frequency that is far from its probability. With `--results`, outcomes are appended to a file of
JSON lines, and what is in it is not run again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rlplug.registry import ALGORITHM, Registry
from rlplug.runs.seeds.asked import parse_seeds
from rlplug.testing.checks import Check, check_named, checks_for
from rlplug.testing.subject import Subject


def chosen_checks(subject: Subject, given: argparse.Namespace) -> list[Check]:
    """The checks that were asked for, of those for this kind of plugin."""
    only = [check_named(name).name for name in given.only]
    without = [check_named(name).name for name in given.without]
    return [
        check
        for check in checks_for(subject.found.kind, slow=given.slow or bool(only))
        if check.name not in without and (not only or check.name in only)
    ]


def tried(check: Check, subject: Subject) -> dict[str, Any]:
    """The outcome of one check with one seed."""
    began = time.process_time()
    outcome = check.outcome(subject)
    return {
        "plugin": subject.found.name,
        "seed": subject.seed,
        "check": check.name,
        "status": outcome.status,
        "text": outcome.text if outcome.status == "failed" else "",
        "seconds": round(time.process_time() - began, 2),
    }


def main() -> int:
    """Run all seeds of all plugins, and count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="1-20", help="for example 1-20")
    parser.add_argument("--plugins", nargs="+", default=[])
    parser.add_argument("--only", nargs="+", default=[], metavar="CHECK")
    parser.add_argument("--without", nargs="+", default=[], metavar="CHECK")
    parser.add_argument("--slow", action="store_true", help="the slow checks, too")
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    names = given.plugins or [
        plugin.name for plugin in Registry.installed().found if plugin.kind == ALGORITHM
    ]
    results: list[dict[str, Any]] = []
    if given.results and given.results.exists():
        results = [json.loads(line) for line in given.results.read_text().splitlines()]
    done = {(one["plugin"], one["seed"], one["check"]) for one in results}
    for name in names:
        for seed in parse_seeds(given.seeds):
            subject = Subject.of(name, seed=seed)
            for check in chosen_checks(subject, given):
                if (name, seed, check.name) in done:
                    continue
                results.append(tried(check, subject))
                if given.results:
                    with given.results.open("a") as file:
                        file.write(json.dumps(results[-1]) + "\n")
                if results[-1]["status"] == "failed":
                    print(f"{name}, seed {seed}, {check.name}:\n{results[-1]['text']}", flush=True)
        report([one for one in results if one["plugin"] == name], name)
    return 1 if any(one["status"] == "failed" for one in results) else 0


def report(results: list[dict[str, Any]], name: str) -> None:
    """One line for a plugin: how many checks of how many seeds, and what failed."""
    counts = Counter(one["status"] for one in results)
    seeds = len({one["seed"] for one in results})
    seconds = sum(one["seconds"] for one in results)
    print(
        f"{name:<16}{seeds:>3} seeds: {counts['passed']:,} passed, {counts['failed']} failed, "
        f"{counts['does not apply']:,} do not apply; {seconds:.0f} s of CPU time",
        flush=True,
    )


if __name__ == "__main__":
    raise SystemExit(main())
