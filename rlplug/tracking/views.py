"""Views of the MLflow UI, stored as tags of an experiment, and links to them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from rlplug.review.record import BEST_RETURN, BEST_STEP

__all__ = ["BY_SEED", "VIEW_TAGS", "experiment_link", "home_link", "run_link"]

RUNS = "rlplug"
BY_SEED = "rlplug-by-seed"

# Without it, the UI opens in its GenAI mode.
_MODE = "workflowType=machine_learning"

_COLUMNS = (
    f"metrics.`{BEST_RETURN}`",
    f"metrics.`{BEST_STEP}`",
    "metrics.`eval/return_mean`",
    "metrics.`rollout/return_mean`",
    "metrics.`rollout/reward_mean`",
    "metrics.`rollout/regret_total`",
    "params.`run.steps`",
    "tags.`rlplug.algo`",
    "tags.`rlplug.options`",
    "params.`run.seed`",
)

_FIRST_CHARTS = (
    "eval/return_mean",
    "rollout/return_mean",
    "rollout/regret_total",
    BEST_RETURN,
)
"""Those that a run has are drawn in the first section, two in a row."""
_NO_CHARTS = ("eval/episodes", BEST_STEP, "time/updates")
"""Metrics that are constant, or no more than a count."""
_RESULTS = "results"


def _chart(metric: str, *, deleted: bool = False) -> dict[str, Any]:
    return {
        "uuid": f"rlplug-{metric}",
        "type": "LINE",
        "runsCountToCompare": 20,
        "metricSectionId": _RESULTS,
        "deleted": deleted,
        "isGenerated": True,
        "displayName": metric,
        "metricKey": metric,
        "lineSmoothness": 0,
        "xAxisScaleType": "linear",
        "scaleType": "linear",
        "range": {},
        "xAxisKey": "step",
        "selectedXAxisMetricKey": "",
        "yAxisKey": "metric",
        "yAxisExpressions": [],
        "ignoreOutliers": False,
        "useGlobalXaxisKey": True,
        "useGlobalLineSmoothing": True,
    }


def _section(name: str, **more: Any) -> dict[str, Any]:
    shown = {"display": True, "isReordered": True, "deleted": False, "isGenerated": True}
    return {"uuid": name, "name": name, **shown, **more}


def _view(**more: Any) -> str:
    state: dict[str, Any] = {
        "orderByKey": f"metrics.`{BEST_RETURN}`",
        "orderByAsc": False,
        # Not the summaries of several seeds, which would be one more run of their group.
        "searchFilter": "tags.`rlplug.kind` = 'run'",
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
        # Otherwise, sections are sorted by their names.
        "isAccordionReordered": True,
        "groupBy": None,
        "groupsExpanded": {},
        "autoRefreshEnabled": True,
        "useGroupedValuesInCharts": True,
        "hideEmptyCharts": True,
        "globalLineChartConfig": {"xAxisKey": "step", "lineSmoothness": 0},
        # MLflow adds charts of the other metrics, and sections for them, by itself.
        "compareRunSections": [
            _section(_RESULTS, columns=2),
            *(_section(name, columns=2) for name in ("eval", "rollout", "train", "time")),
        ],
        "compareRunCharts": [
            *map(_chart, _FIRST_CHARTS),
            *(_chart(metric, deleted=True) for metric in _NO_CHARTS),
        ],
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
