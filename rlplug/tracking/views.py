"""Views of the MLflow UI, stored as tags of an experiment, and links to them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rlplug.review.record import BEST_RETURN, BEST_STEP, REGRET, RETURN, REWARD

__all__ = [
    "BY_SEED",
    "experiment_link",
    "home_link",
    "run_link",
    "shows_evaluations",
    "view_tags",
]

RUNS = "rlplug"
BY_SEED = "rlplug-by-seed"
_TAG = "mlflow.sharedViewState."

# Without it, the UI opens in its GenAI mode.
_MODE = "workflowType=machine_learning"

# MLflow puts metrics before params and tags: with one metric more, the options are cut off.
_COLUMNS = ("params.`run.steps`", "tags.`rlplug.algo`", "tags.`rlplug.options`")
_EVALUATED = (BEST_RETURN, BEST_STEP, "eval/return_mean")
_NOT_EVALUATED = (RETURN, REWARD, REGRET)
"""Bandits are not evaluated: their result is what they got while they learned."""

_FIRST_CHARTS = ("eval/return_mean", RETURN, REGRET, BEST_RETURN)
_FIRST_WITHOUT_EVALUATIONS = (REGRET, REWARD, RETURN)
"""Those that a run has are drawn in the first section, two in a row."""
_SECTIONS = ("eval", "rollout", "train", "time")
_NO_CHARTS = ("eval/episodes", "eval/episodes_cut", BEST_STEP, "time/updates")
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


def _view(*, evaluated: bool, **more: Any) -> str:
    results = _EVALUATED if evaluated else _NOT_EVALUATED
    # The reward of a step says little where returns are evaluated, and is often always 1.
    hidden = (*_NO_CHARTS, REWARD) if evaluated else _NO_CHARTS
    first = _FIRST_CHARTS if evaluated else _FIRST_WITHOUT_EVALUATIONS
    # An empty section would say that it has no charts.
    sections = _SECTIONS if evaluated else _SECTIONS[1:]
    state: dict[str, Any] = {
        "orderByKey": f"metrics.`{results[0] if evaluated else REWARD}`",
        "orderByAsc": False,
        # Not the summaries of several seeds, which would be one more run of their group.
        "searchFilter": "tags.`rlplug.kind` = 'run'",
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "modelVersionFilter": "All Runs",
        "datasetsFilter": [],
        "selectedColumns": [*(f"metrics.`{name}`" for name in results), *_COLUMNS],
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
            *(_section(name, columns=2) for name in sections),
        ],
        "compareRunCharts": [
            *map(_chart, first),
            *(_chart(metric, deleted=True) for metric in hidden),
        ],
    }
    return json.dumps({**state, **more}, separators=(",", ":"))


def view_tags(*, evaluated: bool) -> dict[str, str]:
    """Tags of an experiment that define its views; whether its runs are evaluated."""
    by_group = {"mode": "tag", "groupByData": "rlplug.group"}
    grouped = {"aggregateFunction": "average", "groupByKeys": [by_group]}
    return {
        f"{_TAG}{RUNS}": _view(evaluated=evaluated),
        f"{_TAG}{BY_SEED}": _view(evaluated=evaluated, groupBy=grouped),
    }


def shows_evaluations(tags: Mapping[str, str]) -> bool:
    """Whether the views of an experiment are those of runs that are evaluated."""
    return f"metrics.`{BEST_RETURN}`" in tags.get(f"{_TAG}{BY_SEED}", "")


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
