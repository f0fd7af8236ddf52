"""How often is a verdict false? The tables of docs/method.md, from synthetic studies through the real code.

    python benchmarks/simulate_verdicts.py                    about five minutes on one core
    python benchmarks/simulate_verdicts.py --studies 1000     as in docs/method.md

No model is trained; every number follows from the seed.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from andrea.verdict.design import KINDS
from andrea.verdict.protocol import Protocol
from andrea.verdict.simulate import Tally, World, simulate, simulate_design

NS = (3, 5, 10)
KS = (1, 4)
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
    "cliff 0.3, steeper below": World(cliff=0.3, skew=-4, noise=0.003),
    "arms twice as noisy": World(noise_ratio=2.0),
    "t3 tails": World(heavy=True),
    "optimum near the edge": World(spread=1.4),
    "optimum of a seed ± 0.05": World(wobble=0.05),
    "optimum of a seed ± 0.1": World(wobble=0.1),
}

Rows = Iterator[tuple[str, ...]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=500, help="studies per cell")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    start = time.perf_counter()
    for title, rows in (
        ("Designs of tuning, equal arms", designs(args.studies, args.seed)),
        ("False verdicts on equal arms", false_verdicts(args.studies, args.seed)),
        ("Factorial designs, equal cells", factorials(args.studies, args.seed)),
        (f"False equivalence at a true effect of m = {M}", false_equivalents(args.studies, args.seed)),
        (f"Power, m = {M}", powers(args.studies, args.seed)),
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
        tallies = [simulate(world, Protocol(m=TINY, seeds=n, trials=trials), studies, seed) for n in NS]
        yield name, *_false(tallies), _percent(t.share("inconclusive (rate uncertain)") for t in tallies)


def false_verdicts(studies: int, seed: int) -> Rows:
    """Equal arms, optima anywhere: shares of studies with any better or worse. Regrets are those at n = 5."""
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
    for name in ("parabola", "parabola, flat and noisy", "steeper below", "cliff 0.1 decade above"):
        for n in (3, 5):
            world = replace(WORLDS[name], effects=(0.0,) * 3)
            found = simulate_design(world, Protocol(m=TINY, seeds=n), studies, seed)
            yield name, str(n), *(_percent(shares) for shares in found.values())


def false_equivalents(studies: int, seed: int) -> Rows:
    """Arms that really differ by m: shares of studies with any equivalent."""
    yield "world", "k", "false, tests alone: n = 3 / 5 / 10", "false, with regret"
    for name in ("parabola", "parabola, flat and noisy", "steeper below", "cliff 0.1 decade above", "t3 tails"):
        for k in KS:
            world = replace(WORLDS[name], effects=(M, -M, M, -M)[:k])
            tallies = [simulate(world, Protocol(m=M, seeds=n), studies, seed) for n in NS]
            alone = _percent(t.unguarded["equivalent"] / studies for t in tallies)
            yield name, str(k), alone, _percent(t.share("equivalent") for t in tallies)


def powers(studies: int, seed: int) -> Rows:
    """One arm: what is said of effects from none to twice m."""
    words = ("worse", "equivalent", "inconclusive (rate uncertain)", "inconclusive")
    yield "world", "n", "true effect", "worse", "equivalent", "rate uncertain", "inconclusive"
    for name in ("parabola", "parabola, flat and noisy", "steeper below", "cliff 0.1 decade above"):
        for n in (3, 5):
            for effect in (0.0, 0.02, 0.1):
                tally = simulate(replace(WORLDS[name], effects=(effect,)), Protocol(m=M, seeds=n), studies, seed)
                yield name, str(n), f"{effect:g}", *(_percent([tally.share(word)]) for word in words)


def _false(tallies: Sequence[Tally]) -> tuple[str, str]:
    alone = _percent(t.unguarded["false"] / t.studies for t in tallies)
    return alone, _percent(t.share("false") for t in tallies)


def _percent(shares: Iterator[float] | Sequence[float]) -> str:
    return " / ".join(f"{100 * share:.1f}" for share in shares) + " %"


def _pair(values: list[float]) -> str:
    return f"{np.median(values):.4f} / {np.quantile(values, 0.95):.4f}"


if __name__ == "__main__":
    main()
