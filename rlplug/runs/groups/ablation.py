"""What an add-on is worth: the same seeds with it and without it, and their differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from rlplug.errors import RequestError
from rlplug.quantities import format_number
from rlplug.registry import ADDON, ALGORITHM, Registry
from rlplug.review.comparison import mean_interval
from rlplug.review.history import aligned
from rlplug.runs.groups.carry_out import MakeDisplay
from rlplug.runs.groups.group import Outcome
from rlplug.runs.groups.seeds import run_seeds
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
        hints = ("try: rlplug ablate --algo NAME --without ADDON", "see: rlplug plugins list")
        raise RequestError("no add-on was named: there is nothing to leave out.", *hints)
    for name in every:
        registry.find(ADDON, name)
    whole = _with(request, "run", addons=every)
    return {"": whole, **{name: _leave_out(whole, name, registry) for name in without or every}}


def _with(request: Request, section: str, **values: Any) -> Request:
    given = {**request.flags.get(section, {}), **values}
    return attrs.evolve(request, flags={**request.flags, section: given})


def _leave_out(whole: Request, addon: str, registry: Registry) -> Request:
    """Without the add-on, and without options that nobody else takes."""

    def options(plugin: Any) -> set[str]:
        return {field.name for field in attrs.fields(plugin.Config)}

    others = [name for name in whole.flags["run"]["addons"] if name != addon]
    algorithm = registry.find(ALGORITHM, layers_of(whole).section("run", "algorithm"))
    own = options(registry.load(registry.find(ADDON, addon)))
    own -= options(registry.load(algorithm))
    prefix = f"addons.{addon.rpartition(':')[2]}."
    kept = [one for one in whole.settings if not (one.key.startswith(prefix) or one.key in own)]
    request = attrs.evolve(_with(whole, "run", addons=others), settings=tuple(kept))
    name = whole.flags.get("tracking", {}).get("run_name", "")
    named = {"run_name": f"{name}-without-{addon}"} if name else {}
    return _with(request, "tracking", **named)


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
        pairs = {}
        for name, values in ours.items():
            seeds = [seed for seed in values if seed in theirs.get(name, {})]
            pairs[name] = {seed: (values[seed], theirs[name][seed]) for seed in seeds}
        return {name: values for name, values in pairs.items() if values}

    @property
    def differences(self) -> dict[str, list[float]]:
        """Measure → what each seed has more with the add-on."""
        return {
            name: [ours - theirs for ours, theirs in values.values()]
            for name, values in self.pairs.items()
        }

    def lines(self) -> Iterator[str]:
        """For the terminal: each seed of the first measure, then all intervals."""
        yield f"without {self.addon}: group {self.without.group}; with it: {self.whole.group}"
        if not self.pairs:
            yield "  no seed has finished in both: there is nothing to compare"
            return
        name, values = next(iter(self.pairs.items()))
        rows = [("seed", name.replace("_", " "), f"without {self.addon}", "difference")]
        for seed, (ours, theirs) in values.items():
            difference = f"{'+' if ours > theirs else ''}{format_number(ours - theirs)}"
            rows.append((str(seed), format_number(ours), format_number(theirs), difference))
        yield from (*aligned(rows), "")
        count = f"{len(values)} pair{'s' if len(values) > 1 else ''}"
        means = [(name, str(mean_interval(of))) for name, of in self.differences.items()]
        totals = [(count, "mean difference [95%]")]
        yield from aligned(totals + [(name.replace("_", " "), mean) for name, mean in means])

    def as_json(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        found = {}
        for name, values in self.pairs.items():
            differences = self.differences[name]
            found[name] = {
                "seeds": [*values],
                "with": [ours for ours, _ in values.values()],
                "without": [theirs for _, theirs in values.values()],
                "differences": differences,
                "mean": attrs.asdict(mean_interval(differences)),
            }
        groups = {"with": self.whole.group, "without": self.without.group}
        return {"without": self.addon, "groups": groups, "differences": found}


def ablate(
    requests: Mapping[str, Request],
    seeds: Sequence[int],
    jobs: int,
    make_display: MakeDisplay,
    registry: Registry,
    *,
    resume_existing: bool = False,
) -> tuple[list[Ablation], Outcome[SeedsSummary]]:
    """Run the whole, then without each add-on; ends early where seeds fail or are interrupted.

    The last outcome says how it ended.
    """
    prepared = {addon: prepare(request, registry) for addon, request in requests.items()}
    whole: SeedsSummary | None = None
    ablations: list[Ablation] = []
    for addon, variant in prepared.items():
        outcome = run_seeds(variant, seeds, jobs, make_display, resume_existing=resume_existing)
        if outcome.summary is not None and whole is not None:
            ablations.append(Ablation(addon=addon, whole=whole, without=outcome.summary))
        whole = whole or outcome.summary
        if outcome.code or whole is None:
            break
    return ablations, outcome


def _by_seed(summary: SeedsSummary) -> dict[str, dict[int, float]]:
    seeds = [run.about.seed for run in summary.finished]
    return {one.name: dict(zip(seeds, one.values, strict=True)) for one in summary.measures}
