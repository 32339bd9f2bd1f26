"""Which test runs which line of the core: recorded once, by contexts of coverage.

Lines that only run in other processes than that of the tests are left to the tests named after
their file and those that run files beside it, or else to those of their room.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from mutants_core_rules import Bug
from mutants_core_trials import NOT_RUN, ROOT, TESTS, collect, in_child, own_tests, run_tests

COVER = ROOT / ".benchenvs" / "mutants_core.json"
NEAR = 20
"""Lines before and after a bug by which the tests that run it are told from others."""
START = 0.1
"""Seconds that any test costs, however short."""


def cover(files: Sequence[str]) -> None:
    """Run all tests, or these files of them, under coverage: each test is a context of its own."""
    import coverage

    COVER.parent.mkdir(exist_ok=True)
    if not files:
        COVER.unlink(missing_ok=True)
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    with tempfile.TemporaryDirectory() as folder:
        watch = coverage.Coverage(
            data_file=str(Path(folder) / "data"), source=[str(ROOT / "rlplug")], config_file=False
        )
        contexts = Contexts(watch)
        watch.start()
        pytest.main(
            [*(files or TESTS), *NOT_RUN, "-m", "", "-n", "0", "-q", "-p", "no:cacheprovider"],
            plugins=[contexts],
        )
        watch.stop()
        data = watch.get_data()
        found = {
            str(Path(path).relative_to(ROOT)): data.contexts_by_lineno(path)
            for path in sorted(data.measured_files())
        }
    covered = (Covered.read() if COVER.exists() else Covered([], {})).with_tests(
        contexts.seconds, found
    )
    COVER.write_text(json.dumps(attrs.asdict(covered)))
    print(f"{len(covered.tests):,} tests of {len(covered.files)} files in {COVER}")


class Contexts:
    """A pytest plugin: each test is a context of its own, and its time is kept."""

    def __init__(self, watch: Any) -> None:
        self.seconds: dict[str, float] = {}
        self._watch = watch

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._watch.switch_context(item.nodeid)
        began = time.perf_counter()
        try:
            return (yield)
        finally:
            # Also of the test in which Ctrl-C ends the record.
            self.seconds[item.nodeid] = round(time.perf_counter() - began, 4)
            self._watch.switch_context("")


@attrs.frozen
class Covered:
    """What `--cover` recorded."""

    tests: list[tuple[str, float]]
    files: dict[str, Any]

    @classmethod
    def read(cls) -> Covered:
        """Read the file; a changed line makes it useless for its file."""
        covered = cls(**json.loads(COVER.read_text()))
        stale = [
            name for name in covered.files if digest(ROOT / name) != covered.files[name]["digest"]
        ]
        if stale:
            print(f"changed since --cover, so that lines may be off: {', '.join(sorted(stale))}")
        return covered

    def with_tests(
        self, seconds: Mapping[str, float], found: Mapping[str, Mapping[int, Sequence[str]]]
    ) -> Covered:
        """Add tests, or record those again, and the lines of each file that they run."""
        tests = {**dict(self.tests), **seconds}
        numbers = {name: number for number, name in enumerate(tests)}
        again = {numbers[name] for name in seconds}
        files = {}
        for file in sorted({*self.files, *found}):
            known = self.files.get(file, {"lines": {}})["lines"]
            lines = {
                line: [number for number in old if number not in again]
                for line, old in known.items()
            }
            for line, names in found.get(file, {}).items():
                lines.setdefault(str(line), []).extend(numbers[name] for name in names if name)
            files[file] = {"digest": digest(ROOT / file), "lines": lines}
        return Covered(list(tests.items()), files)

    def still_there(self, tree: Path, seconds: float) -> Covered:
        """Without tests that are gone; the quickest of each file must pass without a bug, but for
        those that take longer than a bug is given."""
        report = tree / "collected.txt"
        in_child(collect, tree, report)
        names = set(report.read_text().split("\n"))
        report.unlink()
        quickest: dict[str, tuple[float, str]] = {}
        for name, took in self.tests:
            file = name.partition("::")[0]
            if name in names and took <= seconds:
                quickest[file] = min(quickest.get(file, (took, name)), (took, name))
        failed = tree / "first_failure.txt"
        if in_child(run_tests, tree, [name for _, name in quickest.values()], failed) != 0:
            first = failed.read_text() if failed.exists() else "the tests"
            raise SystemExit(f"without any bug, {first} fails in a copy of the tree")
        files = {
            file: {
                "lines": {
                    line: [number for number in numbers if self.tests[number][0] in names]
                    for line, numbers in known["lines"].items()
                }
            }
            for file, known in self.files.items()
        }
        return Covered(self.tests, files)

    def tests_of(self, bug: Bug, seconds: float) -> tuple[list[str], float, int]:
        """The tests that run a line, as many as there is time for, and their time: half of it for
        those named after the file and those of its room, the rest for all. Those come first that
        run what few others run near the line, for their time. And how many there are in all."""
        lines = self.files.get(bug.file, {}).get("lines", {})
        found = lines.get(str(bug.line), [])
        if bug.at_import or (not found and str(bug.line) in lines):
            # By every test that uses the file, and by those of its room, which may look at
            # constants and defaults alone: whichever test imports the file first is found by
            # coverage.
            found = sorted({*(test for tests in lines.values() for test in tests), *self._of(bug)})
        own, named = own_tests(bug.room), self._named_after(bug)
        near = [lines.get(str(n), []) for n in range(bug.line - NEAR, bug.line + NEAR + 1)]
        if not found:
            # It may run in other processes: those who start them use what is beside the file.
            near = self._beside(bug)
            found = sorted({*named, *(n for tests in near for n in tests)}) or self._of(bug)
        rare = dict.fromkeys(found, 0.0)
        for tests in near:
            for n in rare.keys() & set(tests):
                rare[n] += 1 / len(tests)
        ordered = sorted(found, key=lambda n: -rare[n] / (self.tests[n][1] + START))
        first = [n for n in ordered if n in named or self.tests[n][0].startswith(own)]
        names: dict[str, None] = {}
        total = 0.0
        for some, limit in ((first, seconds / 2), (ordered, seconds)):
            for name, took in (self.tests[n] for n in some):
                if name not in names and (not names or total + took <= limit):
                    names[name] = None
                    total += took
        return list(names), total, len(found)

    def _of(self, bug: Bug) -> list[int]:
        """The tests of a room."""
        own = own_tests(bug.room)
        return [n for n, (test, _) in enumerate(self.tests) if test.startswith(own)]

    def _beside(self, bug: Bug) -> list[list[int]]:
        """The tests of each line of the files in the folder of a bug."""
        folder = Path(bug.file).parent
        return [
            tests
            for file, known in self.files.items()
            if Path(file).parent == folder
            for tests in known["lines"].values()
        ]

    def _named_after(self, bug: Bug) -> set[int]:
        """The tests named after a file, or its folder in the room: those may run a line in
        processes of their own."""
        room, *names = Path(bug.file).with_suffix("").parts[1:]
        named = re.compile(
            rf"tests/(\w+/)?test_(\w+_)?({'|'.join(map(re.escape, names or [room]))})"
        )
        return {n for n, (test, _) in enumerate(self.tests) if named.match(test)}


def digest(path: Path) -> str:
    """The digest of a file; empty without one."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""
