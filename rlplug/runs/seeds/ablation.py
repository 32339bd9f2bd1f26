"""What an add-on is worth: the same seeds with it and without it, and their differences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from rlplug.config.sources import Setting
from rlplug.errors import RequestError
from rlplug.quantities import format_number
from rlplug.registry import ADDON, ALGORITHM, Registry
from rlplug.review.statistics import Interval, mean_interval
from rlplug.review.text_table import aligned
from rlplug.runs.request import Request, layers_of
from rlplug.runs.seeds.several import MakeDisplay, SeedsOutcome, run_seeds
from rlplug.runs.seeds.summary import Summary

__all__ = ["Ablation", "AblationRequest", "Difference", "ablate"]


@attrs.frozen(kw_only=True)
class AblationRequest:
    """A run with all its add-ons, and those to leave out, one at a time."""

    whole: Request
    without: tuple[str, ...]

    @classmethod
    def of(
        cls, request: Request, addons: Sequence[str], without: Sequence[str], registry: Registry
    ) -> AblationRequest:
        """An add-on that is only left out takes part in the whole; none: each in turn."""
        every = tuple(dict.fromkeys([*addons, *without]))
        if not every:
            raise RequestError(
                "no add-on was named, so that there is nothing to leave out.",
                "try: rlplug ablate --algo NAME --without ADDON",
                "see: rlplug plugins list",
            )
        for name in every:
            registry.find(ADDON, name)
        return cls(whole=_with(request, every), without=tuple(without or every))

    def requests(self, registry: Registry) -> dict[str, Request]:
        """Add-on → the request without it."""
        return {name: self._leave_out(name, registry) for name in self.without}

    def _leave_out(self, name: str, registry: Registry) -> Request:
        run = self.whole.flags["run"]
        others = [one for one in run["addons"] if one != name]
        own = registry.load(registry.find(ADDON, name)).Config
        layers = layers_of(self.whole)
        algorithm = registry.load(registry.find(ALGORITHM, layers.section("run", "algorithm")))
        names = {one.name for one in attrs.fields(own)}
        names -= {one.name for one in attrs.fields(algorithm.Config)}
        kept = tuple(
            one for one in self.whole.settings if not _is_of(one, name.rpartition(":")[2], names)
        )
        return attrs.evolve(_with(self.whole, others), settings=kept)


@attrs.frozen(kw_only=True)
class Difference:
    """A measure of each seed with and without an add-on."""

    name: str
    seeds: tuple[int, ...]
    whole: tuple[float, ...]
    without: tuple[float, ...]

    @property
    def values(self) -> tuple[float, ...]:
        """What each seed has more with the add-on."""
        return tuple(a - b for a, b in zip(self.whole, self.without, strict=True))

    @property
    def mean(self) -> Interval:
        """The mean difference with its 95% bootstrap interval over the pairs."""
        return mean_interval(self.values)


@attrs.frozen(kw_only=True)
class Ablation:
    """What leaving out one add-on changed."""

    addon: str
    whole: Summary
    without: Summary

    @property
    def differences(self) -> tuple[Difference, ...]:
        """Of what was measured of every finished seed, over the seeds that finished in both."""
        ours, theirs = _by_seed(self.whole), _by_seed(self.without)
        found = []
        for name in ours:
            seeds = tuple(seed for seed in ours[name] if seed in theirs.get(name, {}))
            if seeds:
                found.append(
                    Difference(
                        name=name,
                        seeds=seeds,
                        whole=tuple(ours[name][seed] for seed in seeds),
                        without=tuple(theirs[name][seed] for seed in seeds),
                    )
                )
        return tuple(found)

    def lines(self) -> Iterator[str]:
        """For the terminal: each seed of the first measure, then all intervals."""
        differences = self.differences
        yield f"without {self.addon}: group {self.without.group}; with it: {self.whole.group}"
        if not differences:
            yield "  no seed has finished in both: there is nothing to compare"
            return
        first = differences[0]
        rows = [("seed", first.name.replace("_", " "), f"without {self.addon}", "difference")]
        for seed, a, b, by in zip(
            first.seeds, first.whole, first.without, first.values, strict=True
        ):
            rows.append((str(seed), format_number(a), format_number(b), _signed(by)))
        yield from aligned(rows)
        yield ""
        pairs = f"{len(first.seeds)} pair{'s' if first.seeds[1:] else ''}"
        totals = [(pairs, "mean difference [95%]")]
        totals += [(one.name.replace("_", " "), str(one.mean)) for one in differences]
        yield from aligned(totals)

    def as_json(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        return {
            "without": self.addon,
            "groups": {"with": self.whole.group, "without": self.without.group},
            "differences": {
                one.name: {
                    "seeds": one.seeds,
                    "with": one.whole,
                    "without": one.without,
                    "differences": one.values,
                    "mean": attrs.asdict(one.mean),
                }
                for one in self.differences
            },
        }


def ablate(
    asked: AblationRequest,
    seeds: Sequence[int],
    jobs: int,
    make_display: MakeDisplay,
    registry: Registry,
) -> tuple[list[Ablation], SeedsOutcome]:
    """Run the whole, then without each add-on; ends early where seeds fail or are interrupted.

    The last outcome says how it ended.
    """
    requests = asked.requests(registry)
    whole = run_seeds(asked.whole, seeds, jobs, make_display)
    ablations: list[Ablation] = []
    outcome = whole
    for addon, request in requests.items():
        if outcome.code or outcome.summary is None:
            break
        outcome = run_seeds(request, seeds, jobs, make_display)
        if outcome.summary is not None and whole.summary is not None:
            ablations.append(Ablation(addon=addon, whole=whole.summary, without=outcome.summary))
    return ablations, outcome


def _with(request: Request, addons: Sequence[str]) -> Request:
    run = {**request.flags.get("run", {}), "addons": list(addons)}
    return attrs.evolve(request, flags={**request.flags, "run": run})


def _is_of(setting: Setting, addon: str, names: set[str]) -> bool:
    """Whether it is an option of the add-on, which nobody else takes."""
    return setting.key.startswith(f"addons.{addon}.") or setting.key in names


def _by_seed(summary: Summary) -> dict[str, dict[int, float]]:
    seeds = [run.about.seed for run in summary.finished]
    return {one.name: dict(zip(seeds, one.values, strict=True)) for one in summary.measures}


def _signed(value: float) -> str:
    return f"+{format_number(value)}" if value > 0 else format_number(value)
