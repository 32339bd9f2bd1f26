"""Signals that end a run, or ask for a checkpoint: when they are raised, and what is said."""

from __future__ import annotations

import os
import signal
import sys
import time
from types import SimpleNamespace

import pytest

from rlplug.runs.signals import Interrupted, Interrupts


def test_a_signal_has_the_exit_code_of_shells() -> None:
    assert (Interrupted(signal.SIGTERM).exit_code, Interrupted().exit_code) == (143, 130)
    assert Interrupted.of(KeyboardInterrupt()).number == signal.SIGINT
    own = Interrupted(signal.SIGHUP)
    assert Interrupted.of(own) is own


def send(number: int) -> None:
    """Send a signal to this process, and wait for what it raises."""
    os.kill(os.getpid(), number)
    time.sleep(1)


def test_the_first_signal_waits_for_a_check_and_the_second_does_not() -> None:
    before = {name: signal.getsignal(name) for name in (signal.SIGINT, signal.SIGTERM)}
    with Interrupts() as interrupts:
        interrupts.check()
        os.kill(os.getpid(), signal.SIGTERM)
        assert (interrupts.is_ending, interrupts.at_once) == (True, False)
        assert interrupts.poll() == (signal.SIGTERM, False)
        with pytest.raises(Interrupted) as raised:
            interrupts.check()
        assert raised.value.number == signal.SIGTERM
        with pytest.raises(Interrupted) as raised:
            send(signal.SIGINT)
        # What is told is the first one.
        assert (raised.value.number, interrupts.at_once) == (signal.SIGTERM, True)
        # A third one, while the second is answered, is not.
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.received().number == signal.SIGTERM
    assert {name: signal.getsignal(name) for name in before} == before


def test_a_signal_while_a_run_is_created_is_raised_after_that() -> None:
    with Interrupts() as interrupts:
        interrupts.hold()
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted):
            interrupts.release()
        assert interrupts.at_once
    with Interrupts() as interrupts:
        interrupts.hold()
        interrupts.release()
        with pytest.raises(Interrupted):
            send(signal.SIGTERM)


def test_a_checkpoint_is_asked_for_once_at_the_next_check() -> None:
    asked: list[int] = []
    with Interrupts() as interrupts:
        interrupts.checkpoint = lambda: asked.append(1)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert asked == []
        interrupts.check()
        interrupts.check()
        assert asked == [1]
        os.kill(os.getpid(), signal.SIGUSR1)
        assert interrupts.poll() == (0, True)
        assert interrupts.poll() == (0, False)
        assert not interrupts.is_ending


@pytest.mark.parametrize(("notice", "is_terminal"), [(True, True), (True, False), (False, True)])
def test_a_person_at_a_terminal_is_told_that_a_signal_came(
    monkeypatch: pytest.MonkeyPatch, notice: bool, is_terminal: bool
) -> None:
    read, write = os.pipe()
    terminal = SimpleNamespace(isatty=lambda: is_terminal, fileno=lambda: write)
    with Interrupts(notice=notice) as interrupts, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", terminal)
        interrupts.check()
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted):
            interrupts.check()
    os.close(write)
    with os.fdopen(read, "rb") as told:
        assert (b"a second Ctrl-C ends it at once" in told.read()) == (notice and is_terminal)
