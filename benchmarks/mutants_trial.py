"""One plugin in a forked process: which lines its checks run, and what they say of a mutant."""

from __future__ import annotations

import ast
import difflib
import importlib
import json
import os
import resource
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

LATE = ("importing_is_quiet", "another_process_gives_the_same_numbers")
"""Other processes take seconds to start."""
_IMPORT = "import"

Lines = Mapping[str, Collection[int]]
"""Lines of a file by the check or setting that runs them."""


@attrs.frozen
class Baseline:
    """What the checks of a plugin without bugs run, and what its updates lead to."""

    seconds: Mapping[str, float]
    """CPU time of each check."""
    digests: Mapping[str, str]
    """A fingerprint per setting and environment."""
    lines: Mapping[str, Lines]
    """File → check or setting → the lines that it runs."""
    failures: Mapping[str, str]
    """Checks that fail without any bug, and what they say."""

    def runs(self, file: str, lines: Collection[int]) -> Collection[str] | None:
        """The checks and settings that run one of these lines; None if importing does."""
        by_what = {name: set(own) & set(lines) for name, own in self.lines.get(file, {}).items()}
        if by_what.get(_IMPORT):
            return None
        return {name for name, common in by_what.items() if common}


def import_heavy() -> None:
    """Import all but plugins: processes that are forked have it already."""
    for name in ("gymnasium", "torch", "coverage", "rlplug.runs.run", "rlplug.testing"):
        importlib.import_module(name)


def measure(plugin: str, folder: Path, kept: Path) -> None:
    """In a child: run all checks of a plugin without bugs, and write down its `Baseline`."""
    import coverage

    from rlplug.testing import Subject, checks_for

    measured = coverage.Coverage(data_file=None, include=[f"{folder}/*.py"])
    measured.start()
    measured.switch_context(_IMPORT)
    subject = Subject.of(plugin)
    seconds, failures, digests = {}, {}, {}
    for check in checks_for(subject, slow=True):
        measured.switch_context(check.name)
        began = cpu_seconds()
        outcome = check.outcome(subject)
        seconds[check.name] = cpu_seconds() - began
        if outcome.status == "failed":
            failures[check.name] = outcome.text
    # Another subject, for this one knows what the checks have computed.
    for name, fingerprint in settings_of(Subject.of(plugin)):
        measured.switch_context(name)
        digests[name] = fingerprint()
    measured.stop()
    data, lines = measured.get_data(), {}
    for path in data.measured_files():
        by_name: dict[str, list[int]] = {}
        for line, names in data.contexts_by_lineno(path).items():
            for name in names:
                by_name.setdefault(name, []).append(line)
        lines[Path(path).name] = by_name
    baseline = Baseline(seconds, digests, lines, failures)
    kept.write_text(json.dumps(attrs.asdict(baseline)))


def try_mutant(
    plugin: str, folder: Path, baseline: Baseline, relevant: Collection[str] | None, how: str
) -> dict[str, Any]:
    """In a child: what the checks say of a plugin whose package is in the folder.

    `how`: "quick" checks and whether anything is different at all, "slow" ones, or "all". Those
    that run no line that was changed say the same as without the bug: they are left out.
    """
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    try:
        return _tried(plugin, baseline, relevant, how)
    except Exception as error:
        text = "".join(traceback.format_exception(error))[-800:]
        return {"result": "found", "check": "load", "quick": True, "text": text}


def _tried(
    plugin: str, baseline: Baseline, relevant: Collection[str] | None, how: str
) -> dict[str, Any]:
    from rlplug.testing import Subject, checks_for

    subject = Subject.of(plugin)
    checks = [
        one
        for one in checks_for(subject, slow=True)
        if relevant is None or one.name in relevant or one.name not in baseline.seconds
    ]
    # Cheap ones first: which one fails first makes no difference to whether one does.
    checks.sort(key=lambda one: (one.name in LATE, baseline.seconds.get(one.name, 0.0)))
    for quick in (True, False):
        if how == ("slow" if quick else "quick"):
            continue
        for check in checks:
            if check.quick is not quick or check.name in baseline.failures:
                continue
            outcome = check.outcome(subject)
            if outcome.status == "failed":
                text = outcome.text
                return {"result": "found", "check": check.name, "quick": quick, "text": text}
        if quick and _is_equal(subject, baseline, relevant):
            return {"result": "equal", "check": "", "quick": False, "text": ""}
    result = "missed" if how == "quick" else "survived"
    return {"result": result, "check": "", "quick": False, "text": ""}


def _is_equal(subject: Any, baseline: Baseline, relevant: Collection[str] | None) -> bool:
    """Whether updates, feeds and actions are equal to the bit in all settings that run it."""
    return all(
        fingerprint() == baseline.digests.get(name)
        for name, fingerprint in settings_of(subject)
        if relevant is None or name in relevant or name not in baseline.digests
    )


def settings_of(subject: Any) -> Iterator[tuple[str, Callable[[], str]]]:
    """Each setting in each environment by name, and what its updates lead to."""
    from rlplug.testing.checks.effects import fingerprint

    for index, setting in enumerate(({}, *subject.settings, *subject.enabled)):
        for case in subject.cases:
            if index == 0 or "image" not in case.name:

                def digest(setting: Any = setting, case: Any = case) -> str:
                    return fingerprint(subject, setting, case).digest

                yield f"{case.name} with {dict(setting)}", digest


def changed_lines(before: str, after: str) -> set[int]:
    """The lines of the statements in which two sources differ, as numbered in the first."""
    left = before.splitlines()
    changed: set[int] = set()
    for kind, start, stop, _, _ in difflib.SequenceMatcher(
        None, left, after.splitlines(), autojunk=False
    ).get_opcodes():
        if kind != "equal":
            changed |= set(range(start + 1, max(stop, start + 1) + 1))
    return {line for one in changed for line in _statement(before, one)}


def _statement(source: str, line: int) -> range:
    """The lines of the innermost statement at a line; of a compound one those of its head."""
    found = range(line, line + 1)
    smallest = 10**6
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.stmt):
            continue
        body = getattr(node, "body", None)
        stop = body[0].lineno - 1 if isinstance(body, list) and body else node.end_lineno
        span = range(node.lineno, max(stop or node.lineno, node.lineno) + 1)
        if line in span and len(span) < smallest:
            found, smallest = span, len(span)
    return found


def cpu_seconds() -> float:
    """CPU time of this process and its children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)
