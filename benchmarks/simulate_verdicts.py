"""Tables of docs/method.md on how often a verdict is false, from synthetic studies through the real
code.

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
from simulation.pairs import (
    Pairs,
    cover_over_documents,
    cover_slopes,
    cover_tokens_saved,
    positive_control_power,
    share_of_false_alarms,
)
from simulation.studies import Tally, World, simulate_factorial_studies, simulate_studies

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

FEW_WORLDS = (
    "parabola", "parabola, flat and noisy", "steeper below", "cliff 0.05 decade above",
)  # fmt: skip
EQUIVALENTS = (
    "parabola", "parabola, flat and noisy", "steeper below", "cliff 0.1 decade above",
    "cliff 0.05 decade above", "arms twice as noisy", "t3 tails",
    "very skewed noise, arms 3 ×", "replicates alike, 30 %",
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
    start = time.perf_counter()
    for name, (title, tabulate) in TABLES.items():
        if not args.only or name in args.only:
            print(f"\n**{title}** ({args.studies} studies a cell, seed {args.seed})\n")
            print_table(tabulate(args.studies, args.seed))
    print(f"\n{time.perf_counter() - start:.0f} s")


def print_table(rows: Rows) -> None:
    """Print rows as Markdown, each as soon as it is known; the first is the header."""
    header = next(rows)
    print("| " + " | ".join(header) + " |")
    print("|" + "---|" * len(header))
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)


def tabulate_designs(studies: int, seed: int) -> Rows:
    """Grid and argmin against midpoints and vertex."""
    yield "tuning", "false, tests alone: n = 3 / 5 / 10", "false, with regret", "rate uncertain"
    for name, trials in DESIGNS.items():
        world = World(noise=0.003)
        protocols = [Protocol(m=TINY, seeds=n, trials=trials) for n in NS]
        tallies = [simulate_studies(world, protocol, studies, seed) for protocol in protocols]
        uncertain = _in_percent(t.share_with("inconclusive (rate uncertain)") for t in tallies)
        yield name, *_false_shares(tallies), uncertain


def tabulate_false_verdicts(studies: int, seed: int) -> Rows:
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
            tallies = [simulate_studies(here, Protocol(m=TINY, seeds=n), studies, seed) for n in NS]
            covered = _in_percent(t.covered / studies for t in tallies)
            widened = _in_percent(t.covered_with_regret / studies for t in tallies)
            regret = _median_and_tail(tallies[1].regret)
            true_regret = _median_and_tail(tallies[1].true_regret)
            yield name, str(k), *_false_shares(tallies), covered, widened, regret, true_regret


def tabulate_factorial_effects(studies: int, seed: int) -> Rows:
    """Two factors with two levels, equal cells: shares of studies with a false effect, by kind."""
    yield "world", "n", *(f"false {kind}, tests alone / with regret" for kind in KINDS)
    for name in FEW_WORLDS:
        for n in (3, 5):
            world = replace(WORLDS[name], effects=(0.0,) * 3)
            by_kind = simulate_factorial_studies(world, Protocol(m=TINY, seeds=n), studies, seed)
            yield name, str(n), *(_in_percent(shares) for shares in by_kind.values())


def tabulate_false_equivalents(studies: int, seed: int) -> Rows:
    """Arms that really differ by m: shares of studies with any equivalent."""
    yield "world", "k", "false, tests alone: n = 3 / 5 / 10", "false, with regret"
    for name in EQUIVALENTS:
        for k in KS:
            world = replace(WORLDS[name], effects=(M, -M, M, -M, M, -M, M, -M)[:k])
            tallies = [simulate_studies(world, Protocol(m=M, seeds=n), studies, seed) for n in NS]
            alone = _in_percent(t.unguarded["equivalent"] / studies for t in tallies)
            yield name, str(k), alone, _in_percent(t.share_with("equivalent") for t in tallies)


def tabulate_power(studies: int, seed: int) -> Rows:
    """One arm: what is said of effects from none to twice m."""
    words = ("worse", "equivalent", "inconclusive (rate uncertain)", "inconclusive")
    yield "world", "n", "true effect", "worse", "equivalent", "rate uncertain", "inconclusive"
    for name in FEW_WORLDS:
        for n in (3, 5):
            for effect in (0.0, 0.02, 0.1):
                world = replace(WORLDS[name], effects=(effect,))
                tally = simulate_studies(world, Protocol(m=M, seeds=n), studies, seed)
                shares = [_in_percent([tally.share_with(word)]) for word in words]
                yield name, str(n), f"{effect:g}", *shares


def tabulate_controls(studies: int, seed: int) -> Rows:
    """False alarms of the A/A control, and what the ruler sees; quick, so ten times as many
    studies.
    """
    noises, costs = (0.5, 2, 10), (0, 1, 2, 4)
    header = [f"A/A fails, sd of a difference {noise:g} m" for noise in noises]
    header += [f"ruler seen, half costs {cost:g} sd" for cost in costs]
    yield "n", *header
    for n in NS:
        pairs, sd = Pairs(n=n), Pairs().noise * math.sqrt(2)
        shares = []
        for noise in noises:
            failed = share_of_false_alarms(pairs, sd / noise, 10 * studies, seed)
            shares.append(_in_percent([failed], digits=2))
        for cost in costs:
            costly = replace(pairs, half=cost * sd)
            shares.append(_in_percent([positive_control_power(costly, 0.05, 10 * studies, seed)]))
        yield str(n), *shares


def tabulate_tokens_saved(studies: int, seed: int) -> Rows:
    """Tokens saved: half costs 0.05 nats, double gains 0.04 (a law t^-0.3: 0.0406); ten times as
    many studies.
    """
    laws = {"line": None, "t^-0.3": 0.3}
    yield "law", "n", "effect", "interval given", "holds, of those given", "given and wrong, of all"
    for (law, power), n in itertools.product(laws.items(), NS):
        for effect in (0.0, 0.01, 0.025, 0.04, -0.02):
            coverage = cover_tokens_saved(Pairs(n=n), effect, 0.05, 10 * studies, seed, power=power)
            shares = (coverage.given, coverage.held, coverage.wrong)
            yield law, str(n), f"{effect:+g}", *(_in_percent([share]) for share in shares)


def tabulate_documents(studies: int, seed: int) -> Rows:
    """The interval over documents, whose lengths are lognormal; ten times as many studies."""
    scatters = {"scatter alike": 0.0, "long ones less": 1.0}
    columns = list(itertools.product(scatters, (0.0, 1.0, 1.5)))
    yield "documents", *(f"{scatter}, lengths σ = {unequal:g}" for scatter, unequal in columns)
    for count in (2, 3, 5, 12, 40):
        held = []
        for scatter, unequal in columns:
            by_length = scatters[scatter]
            coverage = cover_over_documents(count, unequal, 10 * studies, seed, by_length=by_length)
            held.append(_in_percent([coverage.held]))
        yield str(count), *held


def tabulate_slopes(studies: int, seed: int) -> Rows:
    """The interval of a slope over sizes whose effect is the same; ten times as many studies."""
    yield "sizes", "pairs", "noise", "same seeds cover", "other seeds cover"
    for ns, noises in (
        ((3, 3), (0.005, 0.005)), ((5, 5), (0.005, 0.02)), ((3, 3, 3), (0.005, 0.005, 0.005)),
        ((5, 5, 5), (0.01, 0.003, 0.02)), ((5, 3, 8), (0.01, 0.003, 0.02)),
    ):  # fmt: skip
        same = "–"
        if len(set(ns)) == 1:
            same = _in_percent([cover_slopes(ns, noises, 10 * studies, seed, same=True).held])
        other = _in_percent([cover_slopes(ns, noises, 10 * studies, seed, same=False).held])
        yield str(len(ns)), _join_numbers(ns), _join_numbers(noises), same, other


TABLES = {
    "designs": ("Designs of tuning, equal arms", tabulate_designs),
    "false": ("False verdicts on equal arms", tabulate_false_verdicts),
    "factorial": ("Factorial designs, equal cells", tabulate_factorial_effects),
    "equivalent": (f"False equivalence at a true effect of m = {M}", tabulate_false_equivalents),
    "power": (f"Power, m = {M}", tabulate_power),
    "controls": ("Controls", tabulate_controls),
    "saved": ("Tokens saved", tabulate_tokens_saved),
    "documents": ("The interval over documents holds the mean", tabulate_documents),
    "trends": ("The interval of a slope holds 0", tabulate_slopes),
}


def _join_numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _false_shares(tallies: Sequence[Tally]) -> tuple[str, str]:
    alone = _in_percent(t.unguarded["false"] / t.studies for t in tallies)
    return alone, _in_percent(t.share_with("false") for t in tallies)


def _in_percent(shares: Iterator[float] | Sequence[float], digits: int = 1) -> str:
    return " / ".join(f"{100 * share:.{digits}f}" for share in shares) + " %"


def _median_and_tail(values: list[float]) -> str:
    return f"{np.median(values):.4f} / {np.quantile(values, 0.95):.4f}"


if __name__ == "__main__":
    main()
