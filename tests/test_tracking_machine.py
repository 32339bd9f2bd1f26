"""What is known of the machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlplug.tracking.machine import _quota, cores


def test_a_container_has_the_cores_that_its_quota_says(tmp_path: Path) -> None:
    file = tmp_path / "cpu.max"
    for text, count in (("150000 100000", 2), ("100000 100000", 1), ("max 100000", None)):
        file.write_text(text)
        assert _quota(file) == (os.cpu_count() if count is None else count)
    assert _quota(tmp_path / "none") == os.cpu_count()


def test_a_process_has_the_cores_that_it_may_run_on_within_its_quota(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rlplug.tracking.machine._quota", lambda: 7)
    monkeypatch.setattr(os, "cpu_count", lambda: 9)
    for mine, count in (({0, 2, 5}, 3), (set(range(8)), 7)):
        monkeypatch.setattr(os, "sched_getaffinity", {0: mine}.__getitem__, raising=False)
        assert cores() == count
    # There is none on macOS.
    monkeypatch.delattr(os, "sched_getaffinity")
    assert cores() == 7
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert cores() == 4
