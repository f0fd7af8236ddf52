"""How often is a verdict false? The tables of docs/method.md, from synthetic studies through the
real code.

    python benchmarks/simulate_verdicts.py                    about eight minutes on one core
    python benchmarks/simulate_verdicts.py --studies 1000     as in docs/method.md
    python benchmarks/simulate_verdicts.py --only saved       one table

No model is trained; every number follows from the seed.
"""

import argparse
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from simulation.simulate import Tally, World, simulate, simulate_design
from simulation.simulate_beside import Pairs, false_alarms, over_documents, ruler_power, slopes
from simulation.simulate_beside import saved as tokens_saved

from andrea.verdict.design import KINDS
from andrea.verdict.protocol import Protocol

NS = (3, 5, 10)
KS = (1, 4, 8)
TINY = 0.001
"""A margin too small for `equivalent`: every verdict on equal arms is then false."""
M = 0.05

DESIGNS = {"one rate": 1, "three rates, argmin": 3, "grid, argmin": 5, "grid, midpoints, vertex": 7}

WORLDS = {
    "parabola": World(),
    "parabola, low noise": World(noise=0.003),
    "parabola, flat and noisy": World(curvature=0.12, noise=0.01),
    "steeper below": World(skew=-4, noise=0.003),
    "steeper above": World(skew=4, noise=0.003),
    "cliff 0.1 decade above": World(cliff=0.1, noise=0.003),
    "cliff 0.05 decade above": World(cliff=0.05, noise=0.003),
    "cliff 0.3, steeper below": World(cliff=0.3, skew=-4, noise=0.003),
    "arms twice as noisy": World(noise_ratio=2.0),
    "t3 tails": World(shape="t3"),
    "skewed noise, equal": World(shape="lognormal"),
    "skewed noise, arms 3 ×": World(shape="exponential", noise_ratio=3.0),
    "very skewed noise, arms 3 ×": World(shape="lognormal", noise_ratio=3.0),
    "replicates alike, 10 %": World(alike=0.1),
    "replicates alike, 30 %": World(alike=0.3),
    "optimum near the edge": World(spread=1.4),
    "optimum of a seed ± 0.05": World(wobble=0.05),
    "optimum of a seed ± 0.1": World(wobble=0.1),
}

EQUIVALENTS = (
    "parabola", "parabola, flat and noisy", "steeper below", "cliff 0.1 decade above", "cliff 0.05 decade above",
    "arms twice as noisy", "t3 tails", "very skewed noise, arms 3 ×", "replicates alike, 30 %",
)  # fmt: skip

Rows = Iterator[tuple[str, ...]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--studies", type=int, default=500, help="studies per cell")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--only", choices=list(TABLES), nargs="+", help="these tables; default: all"
    )
    args = parser.parse_args()
    only = args.only or list(TABLES)
    start = time.perf_counter()
    for title, rows in (
        (title, make(args.studies, args.seed))
        for name, (title, make) in TABLES.items()
        if name in only
    ):
        print(f"\n**{title}** ({args.studies} studies a cell, seed {args.seed})\n")
        header = next(rows)
        print("| " + " | ".join(header) + " |")
        print("|" + "---|" * len(header))
        for row in rows:
            print("| " + " | ".join(row) + " |", flush=True)
    print(f"\n{time.perf_counter() - start:.0f} s")


def designs(studies: int, seed: int) -> Rows:
    """Grid and argmin against midpoints and vertex."""
    yield "tuning", "false, tests alone: n = 3 / 5 / 10", "false, with regret", "rate uncertain"
    for name, trials in DESIGNS.items():
        world = World(noise=0.003)
        tallies = [
            simulate(world, Protocol(m=TINY, seeds=n, trials=trials), studies, seed) for n in NS
        ]
        yield (
            name,
            *_false(tallies),
            _percent(t.share("inconclusive (rate uncertain)") for t in tallies),
        )


def false_verdicts(studies: int, seed: int) -> Rows:
    """Equal arms, optima anywhere: shares of studies with any better or worse. Regrets are those at
    n = 5.
    """
    intervals = ("intervals cover", "intervals ± regret cover")
    yield (
        "world", "k", "false, tests alone: n = 3 / 5 / 10", "false, with regret", *intervals,
        "regret, median / 95 %", "true regret",
    )  # fmt: skip
    for name, world in WORLDS.items():
        for k in KS:
            here = replace(world, effects=(0.0,) * k)
            tallies = [simulate(here, Protocol(m=TINY, seeds=n), studies, seed) for n in NS]
            covered = _percent(t.covered / studies for t in tallies)
            widened = _percent(t.covered_with_regret / studies for t in tallies)
            regret, true = _pair(tallies[1].regret), _pair(tallies[1].true_regret)
            yield name, str(k), *_false(tallies), covered, widened, regret, true


def factorials(studies: int, seed: int) -> Rows:
    """Two factors with two levels, equal cells: shares of studies with any false effect, by kind."""
    yield "world", "n", *(f"false {kind}, tests alone / with regret" for kind in KINDS)
    for name in (
        "parabola",
        "parabola, flat and noisy",
        "steeper below",
        "cliff 0.05 decade above",
    ):
        for n in (3, 5):
            world = replace(WORLDS[name], effects=(0.0,) * 3)
            found = simulate_design(world, Protocol(m=TINY, seeds=n), studies, seed)
            yield name, str(n), *(_percent(shares) for shares in found.values())


def false_equivalents(studies: int, seed: int) -> Rows:
    """Arms that really differ by m: shares of studies with any equivalent."""
    yield "world", "k", "false, tests alone: n = 3 / 5 / 10", "false, with regret"
    for name in EQUIVALENTS:
        for k in KS:
            world = replace(WORLDS[name], effects=(M, -M, M, -M, M, -M, M, -M)[:k])
            tallies = [simulate(world, Protocol(m=M, seeds=n), studies, seed) for n in NS]
            alone = _percent(t.unguarded["equivalent"] / studies for t in tallies)
            yield name, str(k), alone, _percent(t.share("equivalent") for t in tallies)


def powers(studies: int, seed: int) -> Rows:
    """One arm: what is said of effects from none to twice m."""
    words = ("worse", "equivalent", "inconclusive (rate uncertain)", "inconclusive")
    yield "world", "n", "true effect", "worse", "equivalent", "rate uncertain", "inconclusive"
    for name in (
        "parabola",
        "parabola, flat and noisy",
        "steeper below",
        "cliff 0.05 decade above",
    ):
        for n in (3, 5):
            for effect in (0.0, 0.02, 0.1):
                tally = simulate(
                    replace(WORLDS[name], effects=(effect,)), Protocol(m=M, seeds=n), studies, seed
                )
                yield (
                    name,
                    str(n),
                    f"{effect:g}",
                    *(_percent([tally.share(word)]) for word in words),
                )


def controls(studies: int, seed: int) -> Rows:
    """False alarms of the A/A control, and what the ruler sees; quick, so ten times as many
    studies.
    """
    yield (
        "n",
        *(f"A/A fails, sd of a difference {ratio:g} m" for ratio in (0.5, 2, 10)),
        *(f"ruler seen, half costs {ratio:g} sd" for ratio in (0, 1, 2, 4)),
    )
    for n in NS:
        pairs, sd = Pairs(n=n), Pairs().noise * math.sqrt(2)
        alarms = [false_alarms(pairs, sd / ratio, 10 * studies, seed) for ratio in (0.5, 2, 10)]
        seen = [
            ruler_power(replace(pairs, half=ratio * sd), 0.05, 10 * studies, seed)
            for ratio in (0, 1, 2, 4)
        ]
        yield (
            str(n),
            *(_percent([share], 2) for share in alarms),
            *(_percent([share]) for share in seen),
        )


def saved(studies: int, seed: int) -> Rows:
    """Tokens saved: half costs 0.05 nats, double gains 0.04 (a law t^-0.3: 0.0406); ten times as
    many studies.
    """
    laws = {"line": None, "t^-0.3": 0.3}
    yield "law", "n", "effect", "interval given", "holds, of those given", "given and wrong, of all"
    for (law, power), n in itertools.product(laws.items(), NS):
        for effect in (0.0, 0.01, 0.025, 0.04, -0.02):
            told = tokens_saved(Pairs(n=n), effect, 0.05, 10 * studies, seed, power=power)
            shares = (told.given, told.held, told.wrong)
            yield law, str(n), f"{effect:+g}", *(_percent([share]) for share in shares)


def documents(studies: int, seed: int) -> Rows:
    """The interval over documents, whose lengths are lognormal; ten times as many studies."""
    yield (
        "documents",
        *(
            f"{what}, lengths σ = {u:g}"
            for what in ("scatter alike", "long ones less")
            for u in (0, 1, 1.5)
        ),
    )
    for count in (2, 3, 5, 12, 40):
        cells = [(by, unequal) for by in (0.0, 1.0) for unequal in (0.0, 1.0, 1.5)]
        held = (
            over_documents(count, unequal, 10 * studies, seed, by_length=by).held
            for by, unequal in cells
        )
        yield str(count), *(_percent([share]) for share in held)


def trends(studies: int, seed: int) -> Rows:
    """The interval of a slope over sizes whose effect is the same; ten times as many studies."""
    yield "sizes", "pairs", "noise", "same seeds cover", "other seeds cover"
    for ns, noises in (
        ((3, 3), (0.005, 0.005)), ((5, 5), (0.005, 0.02)), ((3, 3, 3), (0.005, 0.005, 0.005)),
        ((5, 5, 5), (0.01, 0.003, 0.02)), ((5, 3, 8), (0.01, 0.003, 0.02)),
    ):  # fmt: skip
        same = (
            _percent([slopes(ns, noises, 10 * studies, seed, same=True).held])
            if len(set(ns)) == 1
            else "–"
        )
        other = _percent([slopes(ns, noises, 10 * studies, seed, same=False).held])
        yield str(len(ns)), _listed(ns), _listed(noises), same, other


TABLES = {
    "designs": ("Designs of tuning, equal arms", designs),
    "false": ("False verdicts on equal arms", false_verdicts),
    "factorial": ("Factorial designs, equal cells", factorials),
    "equivalent": (f"False equivalence at a true effect of m = {M}", false_equivalents),
    "power": (f"Power, m = {M}", powers),
    "controls": ("Controls", controls),
    "saved": ("Tokens saved", saved),
    "documents": ("The interval over documents holds the mean", documents),
    "trends": ("The interval of a slope holds 0", trends),
}


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _false(tallies: Sequence[Tally]) -> tuple[str, str]:
    alone = _percent(t.unguarded["false"] / t.studies for t in tallies)
    return alone, _percent(t.share("false") for t in tallies)


def _percent(shares: Iterator[float] | Sequence[float], digits: int = 1) -> str:
    return " / ".join(f"{100 * share:.{digits}f}" for share in shares) + " %"


def _pair(values: list[float]) -> str:
    return f"{np.median(values):.4f} / {np.quantile(values, 0.95):.4f}"


if __name__ == "__main__":
    main()
