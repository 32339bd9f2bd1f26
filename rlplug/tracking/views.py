"""The view of runs in the MLflow UI, stored as a tag of an experiment, and links to it."""

from __future__ import annotations

import json
from typing import Any

from rlplug.review.record import BEST_RETURN, BEST_STEP, REGRET, RETURN, REWARD

_NAME = "rlplug-by-seed"
VIEW_TAG = f"mlflow.sharedViewState.{_NAME}"
"""MLflow reads views from such tags, which its documentation does not tell."""

# Without it, the UI opens in its GenAI mode.
_MODE = "workflowType=machine_learning"

_EVALUATED = (BEST_RETURN, BEST_STEP, "eval/return_mean")
_NOT_EVALUATED = (RETURN, REWARD, REGRET)
"""Bandits are not evaluated: their result is what they got while they learned."""
_FIRST_CHARTS = ("eval/return_mean", RETURN, REGRET)
"""Those that a run has are drawn in the first section, two in a row."""
# MLflow puts metrics before params and tags: with one metric more, the options are cut off.
_OTHERS = ("params.`run.steps`", "tags.`rlplug.algo`", "tags.`rlplug.options`")


def view_of(*, evaluated: bool) -> str:
    """The view of runs by group, the best first; whether they are evaluated."""
    results = _EVALUATED if evaluated else _NOT_EVALUATED
    shown = {"display": True, "isReordered": True, "deleted": False, "isGenerated": True}
    by_group = {"mode": "tag", "groupByData": "rlplug.group"}
    state = {
        "orderByKey": f"metrics.`{BEST_RETURN if evaluated else REWARD}`",
        "orderByAsc": False,
        # Not the summaries of several seeds, which would be one more run of their group.
        "searchFilter": "tags.`rlplug.kind` = 'run'",
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "modelVersionFilter": "All Runs",
        "datasetsFilter": [],
        "selectedColumns": [*(f"metrics.`{name}`" for name in results), *_OTHERS],
        "groupBy": {"aggregateFunction": "average", "groupByKeys": [by_group]},
        "useGroupedValuesInCharts": True,
        "hideEmptyCharts": True,
        # MLflow adds charts of the other metrics, and sections for them, by itself.
        "isAccordionReordered": True,
        "compareRunSections": [{**shown, "uuid": "results", "name": "results", "columns": 2}],
        "compareRunCharts": [_chart(metric) for metric in _FIRST_CHARTS],
    }
    return json.dumps(state, separators=(",", ":"))


def _chart(metric: str) -> dict[str, Any]:
    return {
        "uuid": f"rlplug-{metric}",
        "type": "LINE",
        "runsCountToCompare": 20,
        "metricSectionId": "results",
        "deleted": False,
        "isGenerated": True,
        "displayName": metric,
        "metricKey": metric,
        "lineSmoothness": 0,
        "xAxisScaleType": "linear",
        "scaleType": "linear",
        "range": {},
        "xAxisKey": "step",
        "yAxisKey": "metric",
        "useGlobalXaxisKey": True,
        "useGlobalLineSmoothing": True,
    }


def experiment_link(server: str, experiment_id: str) -> str:
    """Link to the runs of an experiment, grouped by seed."""
    view = f"{_MODE}&viewStateShareKey={_NAME}&compareRunsMode=CHART"
    return f"{server}/#/experiments/{experiment_id}/runs?{view}"


def home_link(server: str) -> str:
    """Link to all experiments."""
    return f"{server}/#/experiments?{_MODE}"


def run_link(server: str, experiment_id: str, run_id: str) -> str:
    """Link to one run."""
    return f"{server}/#/experiments/{experiment_id}/runs/{run_id}?{_MODE}"
