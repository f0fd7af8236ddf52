"""A synthetic study, written with the store's own classes: plausible numbers, no training."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import stored
import yaml

from andrea.records.run import RunSpec
from andrea.store.digest import digest
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder
from andrea.verdict.judge import judge_arms, judge_effects
from andrea.verdict.protocol import Protocol
from andrea.verdict.rates import Point, choose_rate, midpoint_rates, rate_grid
from andrea.verdict.regret import estimate_regrets
from andrea.verdict.replicates import ArmData, Replicate, summarise_arm
from andrea.verdict.seeds import replication_seed, tuning_seed

LAYERS, TOKENS, INITIAL, UNIGRAM = 6, 204_800, 5.5451, 2.969
BEST = {"pre": (2.553, -2.55), "post": (2.601, -3.0), "third": (2.556, -2.5)}
"""Lowest tuning loss and log10 of the rate where it lies."""
CLIFF = {"post": 0.008}
"""From this rate on an arm stalls."""


class Writer:
    """Writes one study; `numbers` keeps the final losses for independent checks."""

    def __init__(
        self,
        root: Path,
        name: str = "norm-placement",
        arms: tuple[str, ...] = ("pre", "post"),
        **asked: Any,
    ):
        self.store = RunStore(root)
        self.digest = str(asked.pop("digest", "0123456789"))
        self.folder = StudyFolder(root / "studies" / f"{name.replace('/', '_')}-{self.digest}")
        self.folder.path.mkdir(parents=True)
        self.arms, self.points = arms, {"evals": 10, "logs": 100}
        self.rules = {"m": 0.05, "seeds": 5, "trials": 7, "center": 0.00316}
        self.rules |= asked.pop("protocol", {})
        self.losses: dict[tuple[str, int], float] = {}
        self.replicates: dict[str, dict[int, Replicate]] = {arm: {} for arm in arms}
        self.rng = np.random.default_rng(7)
        self.asked = {
            "name": name,
            "question": "Does it matter whether the norm stands before or after the sublayer?",
            "claim": "Pre-norm trains more stably.",
            "hypothesis": "Pre-norm ends lower and bears higher learning rates.",
            "why": "The residual stream reaches every block unscaled.",
            "factor": "model.norm_placement",
            "baseline": arms[0],
            "arms": {arm: {"label": None, "set": {"model.norm_placement": arm}} for arm in arms},
            "match": {"on": "params", "tolerance": 0.01},
            "preset": "tiny",
            "data": {"source": "sotu", "tokenizer": "byte"},
            "train": {"tokens": TOKENS},
            "protocol": self.rules,
        } | asked
        self.folder.write(
            "study.json",
            {
                "kind": "ablation",
                "name": name,
                "digest": self.digest,
                "created": "2026-11-30T02:00:00Z",
            },
        )
        self.save()

    def save(self) -> None:
        """Write what was asked."""
        (self.folder.path / "protocol.yaml").write_text(
            yaml.safe_dump(self.asked, sort_keys=False, allow_unicode=True)
        )
        self.folder.write("resolved.json", self._resolved())

    def _resolved(self) -> dict[str, Any]:
        arms = {}
        for i, arm in enumerate(self.arms):
            config = {
                "model": {
                    "d_model": 48,
                    "n_layer": LAYERS,
                    "n_head": 4,
                    "vocab_size": 256,
                    "context": 64,
                    "norm_placement": arm,
                },
                "data": {"source": "sotu", "tokenizer": "byte", "eval_tokens": 32768},
                "train": {
                    "tokens": TOKENS,
                    "batch_size": 8,
                    "dtype": "float32",
                    "device": "cpu",
                    "threads": 1,
                },
            }
            groups = {
                "token_embedding": 12288,
                "position_embedding": 3072,
                "attention": 56448,
                "mlp": 112032,
            }
            arms[arm] = {
                "label": self.asked["arms"][arm]["label"],
                "config": config,
                "parameters": {**groups, "norms": 1248 - 96 * i, "head": 0},
                "flops_per_token": 1_180_000.0,
            }
        return {
            "fingerprint": "ab" * 32,
            "data_folder": "data/abab",
            "arms": arms,
            "baseline": self.arms[0],
            "platform": {"torch": "2.13", "device": "cpu"},
            "frozen_at": "2026-11-30T02:00:00Z",
            "exploratory": False,
            "versions": {"andrea": "0.1.0"},
        }

    def tuning_loss(self, arm: str, lr: float) -> float | None:
        """Final loss at a rate, None where the arm stalls."""
        if lr >= CLIFF.get(arm, math.inf):
            return None
        low, at = BEST.get(arm, BEST["pre"])
        return low + 0.09 * (math.log10(lr) - at) ** 2 + float(self.rng.normal(0, 0.002))

    def tune(self) -> None:
        """Grid and midpoints of every arm with the real rules; writes choices.json."""
        tried: dict[str, list[Point]] = {}
        rates, plans = rate_grid(self.rules["trials"], self.rules["center"]), {}
        for arm in self.arms:
            plans[arm] = [self._trial(arm, lr, "grid", i, tried) for i, lr in enumerate(rates)]
        chosen = {}
        for arm in self.arms:
            good = min((p for p in tried[arm] if p.ok), key=lambda p: p.loss)
            for i, lr in enumerate(midpoint_rates(rates, good.lr)):
                plans[arm].append(self._trial(arm, lr, "midpoint", len(rates) + i, tried))
            chosen[arm] = choose_rate(tried[arm], rates, hardly_tuned=self.rules["trials"] < 7)
        cost = estimate_regrets(chosen)
        self.choices = {
            arm: {**choice.to_dict(), "regret": cost[arm], "points": plans[arm]}
            for arm, choice in chosen.items()
        }
        self.folder.write("choices.json", self.choices)

    def _trial(
        self, arm: str, lr: float, why: str, number: int, tried: dict[str, list[Point]]
    ) -> dict[str, Any]:
        found = self.tuning_loss(arm, lr)
        run = self.plan(arm, "tune", why, lr, tuning_seed(0), trial=number)
        self.train(run, found if found is not None else UNIGRAM + 0.01, stalled=found is None)
        point = Point(lr, INITIAL if found is None else found, found is not None)
        tried.setdefault(arm, []).append(point)
        told = {
            "lr": lr,
            "loss": point.loss,
            "ok": point.ok,
            "outcome": "completed",
            "stalled": found is None,
        }
        return told | {"run_id": run["run_id"], "why": why}

    def replicate(
        self, shifts: dict[str, float], seeds: int | None = None, **fates: dict[int, str]
    ) -> None:
        """Replicates of every arm: the baseline's loss of that seed plus the arm's effect plus
        noise.

        Args:
            shifts: nats by arm.
            fates: by arm, index of the seed → diverged, stalled, failed, missing.
        """
        for i in range(seeds or self.rules["seeds"]):
            seed, level = replication_seed(i), 2.56 + float(self.rng.normal(0, 0.006))
            for arm in self.arms:
                loss = level + shifts.get(arm, 0.0) + float(self.rng.normal(0, 0.004))
                run = self.plan(arm, "replicate", "replicate", self.choices[arm]["lr"], seed)
                fate = fates.get(arm, {}).get(i, "completed")
                if fate == "stalled":
                    loss = UNIGRAM + 0.02
                if fate in ("completed", "stalled", "diverged"):
                    self.train(run, loss, stalled=fate == "stalled", diverged=fate == "diverged")
                    told = None if fate == "diverged" else loss
                    outcome = "diverged" if fate == "diverged" else "completed"
                    self.replicates[arm][seed] = Replicate(
                        told, outcome, fate == "stalled", "e" * 64
                    )
                    if told is not None:
                        self.losses[arm, seed] = told
                elif fate == "failed":
                    self.fail(run)

    def judge(self) -> None:
        """verdict.json by the real judge."""
        protocol = Protocol(**self.rules)
        arms = [
            ArmData(
                arm,
                self.replicates[arm],
                edge=self.choices[arm]["edge"],
                regret=self.choices[arm]["regret"],
                hardly_tuned=self.choices[arm]["hardly_tuned"],
            )
            for arm in self.arms
        ]
        verdicts = judge_arms(protocol, arms[0], arms[1:])
        seeds = [replication_seed(i) for i in range(protocol.seeds)]
        told = {
            "verdicts": [v.to_dict() for v in verdicts],
            "baseline": asdict(summarise_arm(arms[0], seeds)),
        }
        if factors := self.asked.get("factors"):
            design = {factor: list(levels) for factor, levels in factors.items()}
            found = judge_effects(protocol, design, self.arms[0], {arm.name: arm for arm in arms})
            told["effects"] = [effect.to_dict() for effect in found]
        self.folder.write("verdict.json", told | {"method": 1, "complete": True})

    def plan(
        self,
        arm: str,
        phase: str,
        why: str,
        lr: float,
        seed: int,
        trial: int | None = None,
        params: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """A line of runs.jsonl; the id is a digest of what would decide the result."""
        run: dict[str, Any] = {"arm": arm, "phase": phase, "why": why, "lr": lr, "seed": seed}
        run["run_id"] = digest({**run, "params": params, "study": self.folder.path.name})
        run |= {"trial": trial, "generation": 0} | ({"params": params} if params else {})
        self.folder.add_run(RunSpec.model_validate(run))
        return run

    def _config(self, run: dict[str, Any]) -> dict[str, Any]:
        return {"config": {"train": {"lr": run["lr"]}}, "identity": {"arm": run["arm"]}}

    def _env(self) -> dict[str, Any]:
        versions = {"andrea": "0.1.0", "torch": "2.13.0", "python": "3.11.2"}
        return {
            "versions": versions,
            "git": {"commit": "c5addce0", "dirty": True},
            "device": "cpu, AVX512",
        }

    def fail(self, run: dict[str, Any]) -> None:
        """An attempt that ended without a result."""
        with self.store.claim(run["run_id"]) as claim:
            attempt = claim.attempt(self._config(run), self._env())
            claim.fail(attempt, "out of memory: 12 GB asked, 8 GB there")

    def train(
        self, run: dict[str, Any], loss: float, *, stalled: bool = False, diverged: bool = False
    ) -> None:
        """A finished run whose evaluated loss falls from INITIAL to `loss`."""
        with self.store.claim(run["run_id"]) as claim:
            attempt = claim.attempt(self._config(run), self._env())
            records = self._records(run, loss, diverged)
            (attempt / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
            claim.finish(attempt, self._result(run, loss, stalled, diverged))

    def _records(self, run: dict[str, Any], loss: float, diverged: bool) -> list[dict[str, Any]]:
        rng = np.random.default_rng([int(run["seed"]), int(1e6 * run["lr"])])

        def at(tokens: float) -> float:
            decay = (math.exp(-5 * tokens / TOKENS) - math.exp(-5)) / (1 - math.exp(-5))
            return loss + (INITIAL - loss) * decay

        records: list[dict[str, Any]] = []
        evals, logs = self.points["evals"], self.points["logs"]
        for i in range(evals + 1):
            tokens = TOKENS * i // evals
            told = None if diverged and i > evals // 2 else at(tokens)
            records.append(
                {
                    "kind": "eval",
                    "step": tokens // 512,
                    "tokens": tokens,
                    "loss": told,
                    "bpb": told and told * 1.4427,
                }
            )
        for i in range(1, logs + 1):
            tokens = TOKENS * i // logs
            told = None if diverged and i > logs // 2 else at(tokens) + float(rng.normal(0, 0.03))
            more = {
                "lr": run["lr"],
                "grad_norm": 0.9,
                "tokens_per_s": 8500.0,
                "seconds": 24.0 * i / logs,
            }
            records.append(
                {"kind": "train", "step": tokens // 512, "tokens": tokens, "loss": told, **more}
            )
        for i in range(3 if diverged else 6):
            tokens = TOKENS * i // 5
            slope = 0.5 if run["arm"] == "post" else -0.3
            norms = [
                0.4 * math.exp(slope * k / LAYERS) * (1 if i == 0 else 0.35) for k in range(LAYERS)
            ]
            stream = [1 + 0.6 * k * (run["arm"] != "post") for k in range(LAYERS + 1)]
            layers = {
                "grad_norm": norms,
                "attn_rms": norms,
                "mlp_rms": norms,
                "residual_rms": stream,
            }
            records.append(
                {
                    "kind": "layers",
                    "step": tokens // 512,
                    "tokens": tokens,
                    **layers,
                    "embedding_grad_norm": 0.8,
                }
            )
        return sorted(records, key=lambda r: r["tokens"])

    def _result(
        self, run: dict[str, Any], loss: float, stalled: bool, diverged: bool
    ) -> dict[str, Any]:
        told = None if diverged else loss
        reason = (
            "the loss or a gradient was not finite at step 200"
            if diverged
            else "stalled"
            if stalled
            else None
        )
        tokens = TOKENS // 2 if diverged else TOKENS
        return {
            "outcome": "diverged" if diverged else "completed",
            "stalled": stalled,
            "reason": reason,
            "loss": told,
            "bpb": told and told * 1.4427,
            "initial_loss": INITIAL,
            "unigram_loss": UNIGRAM,
            "train_loss": told and told - 0.02,
            "eval_digest": "e" * 64,
            "eval_tokens": 32768,
            "eval_part": "tune" if run["phase"] != "replicate" else "verdict",
            "documents": [{"name": f"speech-{i}", "tokens": 16384, "loss": told} for i in range(2)],
            "steps": tokens // 512,
            "tokens": tokens,
            "unique_tokens": tokens - 1000,
            "epochs": 0.0187,
            "seconds": 24.0 + 0.01 * (int(run["seed"]) % 100),
            "tokens_per_s": 8500.0,
            "parameters": stored.study_json(self.folder, "resolved.json")["arms"]
            .get(run["arm"], {})
            .get("parameters", {"mlp": 185000}),
            "flops": 7.25e11,
            "peak_memory_bytes": 310_000_000,
            "attempts": 1,
            "finished_at": "2026-11-30T02:05:00Z",
        }


def finished(root: Path, effects: dict[str, float] | None = None, **asked: Any) -> Writer:
    """A whole study: two arms, fourteen tuning and ten replication runs; post stalls at the two
    highest rates.
    """
    fates = asked.pop("fates", {})
    writer = Writer(root, **asked)
    writer.tune()
    writer.replicate(effects or {"post": 0.08}, **fates)
    writer.judge()
    return writer


def swept(root: Path, trials: int = 12, unfinished: int = 0) -> Writer:
    """A sweep over two parameters, one seed a trial; trial 3 stalls, trial 5 repeats trial 2."""
    space = {
        "train.lr": {"low": 1e-4, "high": 1e-1, "log": True},
        "train.weight_decay": {"choices": [0.0, 0.1]},
    }
    writer = Writer(root, name="lr-wd", arms=("lr-wd",))
    asked = {
        "kind": "sweep",
        "name": "lr-wd",
        "question": None,
        "space": space,
        "sampler": "tpe",
        "seed": 1,
    }
    asked |= {"generation": 4, "trials": trials, "tpe": {"n_startup_trials": 10}}
    (writer.folder.path / "protocol.yaml").write_text(yaml.safe_dump(asked, sort_keys=False))
    writer.folder.write(
        "study.json", stored.study_json(writer.folder, "study.json") | {"kind": "sweep"}
    )
    writer.folder.write(
        "resolved.json", stored.study_json(writer.folder, "resolved.json") | {"baseline": None}
    )
    rows: list[dict[str, Any]] = []
    for number in range(trials):
        repeats = 2 if number == 5 else None
        lr, decay = float(f"{10 ** writer.rng.uniform(-4, -1):.3g}"), [0.0, 0.1][number % 2]
        params = (
            rows[2]["params"]
            if repeats is not None
            else {"train.lr": lr, "train.weight_decay": decay}
        )
        run = writer.plan(
            "lr-wd",
            "trial",
            "trial",
            params["train.lr"],
            tuning_seed(0),
            trial=number,
            params=params,
        )
        loss = rows[2]["loss"] if repeats is not None else writer.tuning_loss("lr-wd", lr)
        stalled = number == 3
        if repeats is None and number < trials - unfinished:
            writer.train(run, UNIGRAM + 0.01 if stalled else loss, stalled=stalled)
        row = {
            "trial": number,
            "params": params,
            "loss": INITIAL if stalled else loss,
            "ok": not stalled,
        }
        rows.append(row | {"run_id": run["run_id"]})
    if not unfinished:
        best = min((row for row in rows if row["ok"]), key=lambda row: row["loss"])
        told = {key: best[key] for key in ("trial", "loss", "params", "run_id")}
        search = {"sampler": "tpe", "seed": 1, "generation": 4, "tpe": {"n_startup_trials": 10}}
        config = {"train": {"lr": best["params"]["train.lr"]}, "seed": 1}
        writer.folder.write(
            "best.json",
            told | {"config": config, "trials": rows, "search": search, "complete": True},
        )
    return writer
