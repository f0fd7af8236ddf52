"""The numbers of a comparison computed again from the raw files of a store: nothing of andrea is
imported here.

statsmodels and scipy where they have the thing, plain arithmetic where not; Fieller's interval by
searching for the ratios that a t test does not reject, Bell and McCaffrey's degrees of freedom from
eigenvalues.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import statsmodels.api as sm
import yaml
from scipy import optimize, stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint
from statsmodels.stats.weightstats import DescrStatsW

Run = dict[str, Any]


class Golden:
    """A store with one study: its runs with their results, and what follows from them."""

    def __init__(self, store: Path) -> None:
        self.folder = next((store / "studies").iterdir())
        self.protocol = yaml.safe_load((self.folder / "protocol.yaml").read_text(encoding="utf-8"))
        self.m, self.alpha = float(self.protocol["protocol"]["m"]), 0.05
        self.runs: list[Run] = []
        for line in (self.folder / "runs.jsonl").read_text(encoding="utf-8").splitlines():
            run = json.loads(line)
            result = json.loads(
                (store / "runs" / run["run_id"][:2] / run["run_id"] / "result.json").read_text()
            )
            self.runs.append(result | run)
        self.base = self.protocol["baseline"]
        self.arms = [arm for arm in self.protocol["arms"] if arm != self.base]

    def of(self, arm: str, phase: str, why: str | None = None) -> list[Run]:
        """The runs of an arm in a phase, in the order of the plan."""
        return [
            r
            for r in self.runs
            if r["arm"] == arm and r["phase"] == phase and why in (None, r["why"])
        ]

    def losses(self, arm: str, phase: str, why: str | None = None) -> dict[int, float]:
        """Final losses by seed."""
        return {run["seed"]: run["loss"] for run in self.of(arm, phase, why)}

    def differences(
        self, arm: str, phase: str, why: str | None = None, against: str = "replicate"
    ) -> dict[int, float]:
        """arm − baseline by seed, nats."""
        base = self.losses(self.base, against)
        return {
            seed: loss - base[seed] for seed, loss in sorted(self.losses(arm, phase, why).items())
        }

    def family(self, pairs: Mapping[str, Mapping[int, float]]) -> dict[str, dict[str, float]]:
        """Means, Bonferroni's t intervals, Holm's p and Schuirmann's p of the arms of a family."""
        described = {arm: DescrStatsW(list(values.values())) for arm, values in pairs.items()}
        p = [described[arm].ttest_mean(0.0)[1] for arm in pairs]
        holm = multipletests(p, method="holm")[1]
        found = {}
        for i, (arm, d) in enumerate(described.items()):
            low, high = d.tconfint_mean(alpha=self.alpha / len(pairs))
            told = {
                "mean": d.mean,
                "low": low,
                "high": high,
                "sd": d.std_mean * math.sqrt(d.nobs),
                "n": d.nobs,
            }
            tost = d.ttost_mean(-self.m, self.m)[0]
            found[arm] = told | {
                "p": p[i],
                "p_holm": holm[i],
                "tost_p": tost,
                "level": 1 - self.alpha / len(pairs),
            }
        return found

    def alone(self, arm: str) -> dict[str, float]:
        """An arm's final losses by themselves."""
        d = DescrStatsW(list(self.losses(arm, "replicate").values()))
        low, high = d.tconfint_mean(alpha=0.05)
        return {
            "mean": d.mean,
            "low": low,
            "high": high,
            "sd": d.std_mean * math.sqrt(d.nobs),
            "n": d.nobs,
        }

    def vertex(self, arm: str) -> float:
        """The rate at the vertex of the parabola through the best grid rate, its neighbours and the
        midpoints.
        """
        tried = {
            run["lr"]: run
            for run in self.of(arm, "tune")
            if run["outcome"] == "completed" and not run["stalled"]
        }
        grid = sorted(run["lr"] for run in self.of(arm, "tune") if run["why"] != "midpoint")
        best = min((lr for lr in grid if lr in tried), key=lambda lr: tried[lr]["loss"])
        at = grid.index(best)
        near = [*grid[at - 1 : at + 2], *(run["lr"] for run in self.of(arm, "tune", "midpoint"))]
        near = [lr for lr in near if lr in tried]
        curved, slope, _ = np.polyfit(np.log10(near), [tried[lr]["loss"] for lr in near], 2)
        assert curved > 0 and len(near) >= 4
        vertex = max(-slope / (2 * curved), math.log10(min(near)))
        return float(f"{10 ** min(vertex, math.log10(max(near))):.3g}")

    def wilson(self, arm: str, phase: str) -> dict[str, float]:
        """Runs that did not train, and Wilson's interval of their share."""
        runs = self.of(arm, phase)
        bad = sum(run["outcome"] == "diverged" or run["stalled"] for run in runs)
        low, high = proportion_confint(bad, len(runs), method="wilson")
        return {"n": len(runs), "rate": bad / len(runs), "low": low, "high": high}

    def sensitivity(self, arm: str) -> dict[str, float]:
        """Mean of min(loss, loss at initialisation) over the grid, less the least."""
        grid = [run for run in self.of(arm, "tune") if run["why"] != "midpoint"]
        losses = [min(run["loss"], run["initial_loss"]) for run in grid]
        return {
            "value": sum(losses) / len(losses) - min(losses),
            "best": min(losses),
            "n": len(losses),
        }

    def documents(self, arm: str) -> dict[str, float]:
        """Weighted mean over documents, HC2, Bell and McCaffrey's degrees of freedom."""
        mine, base = ([r["documents"] for r in self.of(a, "replicate")] for a in (arm, self.base))
        tokens = np.array([d["tokens"] for d in mine[0]], dtype=float)
        delta = np.mean(
            [
                [a["loss"] - b["loss"] for a, b in zip(*pair, strict=True)]
                for pair in zip(mine, base, strict=True)
            ],
            axis=0,
        )
        fit = sm.WLS(delta, np.ones(len(delta)), weights=tokens).fit(cov_type="HC2", use_t=True)
        # e = (I − 1 p') δ, V = Σ p² e² / (1 − p), δ independent with variance 1/tokens: V is a sum
        # of λ χ².
        p = tokens / tokens.sum()
        root = (
            np.diag(p / np.sqrt(1 - p))
            @ (np.eye(len(p)) - np.outer(np.ones(len(p)), p))
            @ np.diag(tokens**-0.5)
        )
        squares = np.linalg.svd(root, compute_uv=False) ** 2
        freedom = squares.sum() ** 2 / (squares**2).sum()
        half = stats.t.ppf(0.975, freedom) * fit.bse[0]
        told = {"mean": fit.params[0], "low": fit.params[0] - half, "high": fit.params[0] + half}
        return told | {"n_documents": len(p), "freedom": freedom}

    def saved(self, arm: str) -> dict[str, float] | None:
        """Tokens saved: the ratios to the rulers that a t test does not reject; None beyond the
        budgets trained.
        """
        d = list(self.differences(arm, "replicate").values())
        half = list(self.differences(self.base, "control", "half tokens").values())
        double = [-x for x in self.differences(self.base, "control", "double tokens").values()]
        level = self.alpha / len(self.arms)
        low, high = (
            self._ends(d, double, level, below=True),
            self._ends(d, half, level, below=False),
        )
        mean = float(np.mean(d))
        first = low if low < 0 else self._ends(d, half, level, below=True)
        last = high if high > 0 else self._ends(d, double, level, below=False)
        if first < -1 or last > 1:
            return None
        estimate = mean / float(np.mean(half if mean >= 0 else double))
        return {"saved": 1 - 2**estimate, "low": 1 - 2**last, "high": 1 - 2**first}

    @staticmethod
    def _ends(d: Sequence[float], ruler: Sequence[float], level: float, *, below: bool) -> float:
        """The end of the set of ratios ρ at which d − ρ · ruler has a mean that may be 0."""

        def above(rho: float) -> float:
            return float(stats.ttest_1samp(np.array(d) - rho * np.array(ruler), 0.0).pvalue) - level

        middle = float(np.mean(d) / np.mean(ruler))

        def far(step: float) -> float:
            return middle - step if below else middle + step

        step = 0.01
        while above(far(step)) > 0:
            step *= 1.5
            assert step < 1e6
        return float(optimize.brentq(above, *sorted((middle, far(step))), xtol=1e-12))

    def control(self, why: str) -> dict[str, float]:
        """A paired control: mean, its 95 % interval, p (of a ruler one-sided)."""
        d = DescrStatsW(list(self.differences(self.base, "control", why).values()))
        side = {"a/a": "two-sided", "half tokens": "larger", "double tokens": "smaller"}[why]
        low, high = d.tconfint_mean(alpha=0.05)
        return {
            "mean": d.mean,
            "low": low,
            "high": high,
            "p": d.ttest_mean(0.0, side)[1],
            "n": d.nobs,
        }
