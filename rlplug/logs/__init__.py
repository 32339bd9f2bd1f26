"""Logged experience: files of rows, what their columns mean, and recordings of runs."""

from rlplug.logs.log import Log, LogRows

__all__ = ["Log", "LogRows"]
