"""How the MLflow UI shows runs: views that are shipped with an experiment, and links to them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

__all__ = ["BY_SEED", "VIEW_TAGS", "experiment_link", "home_link", "run_link"]

RUNS = "rlplug"
BY_SEED = "rlplug-by-seed"

# Without it the UI opens in its mode for language models.
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
"""Tags of an experiment that make the views known to the UI."""


def experiment_link(server: str, experiment_id: str, *, charts: bool = True) -> str:
    """The runs of an experiment, those that differ only by seed drawn as one curve."""
    mode = "&compareRunsMode=CHART" if charts else ""
    return f"{server}/#/experiments/{experiment_id}/runs?{_MODE}&viewStateShareKey={BY_SEED}{mode}"


def home_link(server: str) -> str:
    """All experiments."""
    return f"{server}/#/experiments?{_MODE}"


def run_link(server: str, experiment_id: str, run_id: str) -> str:
    """One run."""
    return f"{server}/#/experiments/{experiment_id}/runs/{run_id}?{_MODE}"
