"""Views of the MLflow UI, stored as tags of an experiment, and links to them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

__all__ = ["BY_SEED", "VIEW_TAGS", "experiment_link", "home_link", "run_link"]

RUNS = "rlplug"
BY_SEED = "rlplug-by-seed"

# Without it, the UI opens in its GenAI mode.
_MODE = "workflowType=machine_learning"

_COLUMNS = (
    "metrics.`rollout/return_mean`",
    "metrics.`rollout/reward_mean`",
    "metrics.`rollout/regret_total`",
    "metrics.`eval/return_mean`",
    "params.`run.algorithm`",
    "params.`run.seed`",
    "params.`run.steps`",
)


def _view(**more: Any) -> str:
    state: dict[str, Any] = {
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "searchFilter": "",
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "modelVersionFilter": "All Runs",
        "datasetsFilter": [],
        "selectedColumns": list(_COLUMNS),
        "runsExpanded": {},
        "runsPinned": [],
        "runsHidden": [],
        "runsVisibilityMap": {},
        "runsHiddenMode": "FIRST_20_RUNS",
        "viewMaximized": False,
        "runListHidden": False,
        "isAccordionReordered": False,
        "groupBy": None,
        "groupsExpanded": {},
        "autoRefreshEnabled": True,
        "useGroupedValuesInCharts": True,
        "hideEmptyCharts": True,
        "globalLineChartConfig": {"xAxisKey": "step", "lineSmoothness": 0},
    }
    return json.dumps({**state, **more}, separators=(",", ":"))


VIEW_TAGS: Mapping[str, str] = MappingProxyType(
    {
        f"mlflow.sharedViewState.{RUNS}": _view(),
        f"mlflow.sharedViewState.{BY_SEED}": _view(
            groupBy={
                "aggregateFunction": "average",
                "groupByKeys": [{"mode": "tag", "groupByData": "rlplug.group"}],
            }
        ),
    }
)
"""Experiment tags that define the views."""


def experiment_link(server: str, experiment_id: str, *, charts: bool = True) -> str:
    """Link to the runs of an experiment, grouped by seed."""
    mode = "&compareRunsMode=CHART" if charts else ""
    return f"{server}/#/experiments/{experiment_id}/runs?{_MODE}&viewStateShareKey={BY_SEED}{mode}"


def home_link(server: str) -> str:
    """Link to all experiments."""
    return f"{server}/#/experiments?{_MODE}"


def run_link(server: str, experiment_id: str, run_id: str) -> str:
    """Link to one run."""
    return f"{server}/#/experiments/{experiment_id}/runs/{run_id}?{_MODE}"
