"""Tracking of a run: a journal on disk, an MLflow run, and artifacts for review."""

from rlplug.tracking.tracking import Status, Tracking, open_tracking

__all__ = ["Status", "Tracking", "open_tracking"]
