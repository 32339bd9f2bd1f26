"""What an add-on is worth: the same seeds with it and without it, and their differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from rlplug.errors import RequestError
from rlplug.quantities import format_number
from rlplug.registry import ADDON, ALGORITHM, Registry
from rlplug.review.comparison import Interval, mean_interval
from rlplug.review.history import aligned
from rlplug.runs.groups.carry_out import MakeDisplay
from rlplug.runs.groups.seeds import SeedsOutcome, run_seeds
from rlplug.runs.groups.seeds_summary import SeedsSummary
from rlplug.runs.prepare import prepare
from rlplug.runs.request import Request, layers_of

__all__ = ["Ablation", "ablate", "variants"]


def variants(
    request: Request, addons: Sequence[str], without: Sequence[str], registry: Registry
) -> dict[str, Request]:
    """The run with all add-ons, named by an empty string, and without each of some of them.

    An add-on that is only left out takes part in the whole; without any, each is left out in turn.
    """
    every = list(dict.fromkeys([*addons, *without]))
    if not every:
        raise RequestError(
            "no add-on was named, so that there is nothing to leave out.",
            "try: rlplug ablate --algo NAME --without ADDON",
            "see: rlplug plugins list",
        )
    for name in every:
        registry.find(ADDON, name)
    whole = _with(request, every)
    without = without or every
    return {"": whole, **{name: _leave_out(whole, name, registry) for name in without}}


def _with(request: Request, addons: Sequence[str]) -> Request:
    run = {**request.flags.get("run", {}), "addons": list(addons)}
    return attrs.evolve(request, flags={**request.flags, "run": run})


def _leave_out(whole: Request, addon: str, registry: Registry) -> Request:
    """Without the add-on, and without options that nobody else takes."""
    others = [name for name in whole.flags["run"]["addons"] if name != addon]
    found = registry.find(ALGORITHM, layers_of(whole).section("run", "algorithm"))
    own = _options(registry.load(registry.find(ADDON, addon)))
    own -= _options(registry.load(found))
    prefix = f"addons.{addon.rpartition(':')[2]}."
    kept = tuple(
        setting
        for setting in whole.settings
        if not setting.key.startswith(prefix) and setting.key not in own
    )
    return attrs.evolve(_with(whole, others), settings=kept)


def _options(plugin: Any) -> set[str]:
    return {field.name for field in attrs.fields(plugin.Config)}


@attrs.frozen(kw_only=True)
class Ablation:
    """What leaving out one add-on changed."""

    addon: str
    whole: SeedsSummary
    without: SeedsSummary

    @property
    def pairs(self) -> dict[str, dict[int, tuple[float, float]]]:
        """Measure → seed → its values with and without, for seeds that finished in both."""
        ours, theirs = _by_seed(self.whole), _by_seed(self.without)
        pairs = {
            name: {
                seed: (value, theirs[name][seed])
                for seed, value in values.items()
                if seed in theirs.get(name, {})
            }
            for name, values in ours.items()
        }
        return {name: values for name, values in pairs.items() if values}

    def lines(self) -> Iterator[str]:
        """For the terminal: each seed of the first measure, then all intervals."""
        pairs = self.pairs
        yield f"without {self.addon}: group {self.without.group}; with it: {self.whole.group}"
        if not pairs:
            yield "  no seed has finished in both: there is nothing to compare"
            return
        name, values = next(iter(pairs.items()))
        rows = [("seed", name.replace("_", " "), f"without {self.addon}", "difference")]
        for seed, (ours, theirs) in values.items():
            rows.append(
                (str(seed), format_number(ours), format_number(theirs), _signed(ours - theirs))
            )
        yield from aligned(rows)
        yield ""
        count = f"{len(values)} pair{'s' if len(values) > 1 else ''}"
        totals = [(count, "mean difference [95%]")]
        totals += [(name.replace("_", " "), str(_mean(of))) for name, of in pairs.items()]
        yield from aligned(totals)

    def as_json(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        return {
            "without": self.addon,
            "groups": {"with": self.whole.group, "without": self.without.group},
            "differences": {
                name: {
                    "seeds": [*values],
                    "with": [ours for ours, _ in values.values()],
                    "without": [theirs for _, theirs in values.values()],
                    "differences": _differences(values),
                    "mean": attrs.asdict(_mean(values)),
                }
                for name, values in self.pairs.items()
            },
        }


def ablate(
    requests: Mapping[str, Request],
    seeds: Sequence[int],
    jobs: int,
    make_display: MakeDisplay,
    registry: Registry,
) -> tuple[list[Ablation], SeedsOutcome]:
    """Run the whole, then without each add-on; ends early where seeds fail or are interrupted.

    The last outcome says how it ended.
    """
    prepared = {addon: prepare(request, registry) for addon, request in requests.items()}
    whole = outcome = run_seeds(prepared.pop(""), seeds, jobs, make_display)
    ablations: list[Ablation] = []
    for addon, variant in prepared.items():
        if outcome.code or whole.summary is None:
            break
        outcome = run_seeds(variant, seeds, jobs, make_display)
        if outcome.summary is not None:
            ablations.append(Ablation(addon=addon, whole=whole.summary, without=outcome.summary))
    return ablations, outcome


def _by_seed(summary: SeedsSummary) -> dict[str, dict[int, float]]:
    seeds = [run.about.seed for run in summary.finished]
    return {one.name: dict(zip(seeds, one.values, strict=True)) for one in summary.measures}


def _differences(values: Mapping[int, tuple[float, float]]) -> list[float]:
    """What each seed has more with the add-on."""
    return [ours - theirs for ours, theirs in values.values()]


def _mean(values: Mapping[int, tuple[float, float]]) -> Interval:
    """The mean difference with its 95% bootstrap interval over the pairs."""
    return mean_interval(_differences(values))


def _signed(value: float) -> str:
    return f"+{format_number(value)}" if value > 0 else format_number(value)
