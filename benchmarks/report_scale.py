"""Time and memory of reading studies that are large: a synthetic store in a temporary folder,
nothing trained.

    python benchmarks/report_scale.py                a report of 50 runs x 2,000 points, then
                                                     10,000 x 1,000 read
    python benchmarks/report_scale.py --runs 1000    a smaller second part
    python benchmarks/report_scale.py --only report  the first part alone

Every step runs in a process of its own, so that its peak memory is its own. Prints a line per step:
time on the clock, time of processors (all threads; what a busy machine leaves as it is), peak
memory. The bar for the first line: below 10 s and 4 MB.
"""

import argparse
import json
import math
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml

ARMS = 5
TOKENS = 100_000_000
LAYERS = 12
DIAGNOSTICS = 5
DOCUMENTS = 20


def generate(root: Path, runs: int, points: int, name: str = "scale") -> None:
    """A store with one judged-looking ablation of five arms: a fifth of the runs tunes, the rest
    are replicates.

    Files are written where a finished run has them, without leases and attempts: a store of 10,000
    runs in a minute.
    """
    study = root / "studies" / f"{name}-0123456789"
    study.mkdir(parents=True)
    (root / "store.json").write_text('{"format": 1}\n')
    arms = [f"arm-{i}" for i in range(ARMS)]
    (study / "study.json").write_text(
        json.dumps(
            {
                "kind": "ablation",
                "name": name,
                "digest": "0123456789",
                "created": "2026-11-30T02:00:00Z",
            }
        )
    )
    asked = {
        "name": name,
        "question": "How long does a large report take?",
        "factor": "model.activation",
        "baseline": arms[0],
        "arms": {arm: {"label": None, "set": {"model.activation": arm}} for arm in arms},
        "preset": "tiny",
        "train": {"tokens": TOKENS},
        "protocol": {"m": 0.01, "seeds": runs // ARMS * 4 // 5, "trials": runs // ARMS // 5},
    }
    (study / "protocol.yaml").write_text(yaml.safe_dump(asked, sort_keys=False))
    (study / "resolved.json").write_text(
        json.dumps({"arms": {arm: {"label": None, "config": {}} for arm in arms}})
    )
    draw = np.random.default_rng(1)
    with (study / "runs.jsonl").open("w") as lines:
        for number in range(runs):
            of_arm, arm = divmod(number, ARMS)
            tunes = of_arm < runs // ARMS // 5
            plan = {
                "arm": arms[arm],
                "phase": "tune" if tunes else "replicate",
                "why": "grid" if tunes else "replicate",
            }
            plan |= {
                "lr": 0.001 * 10 ** (of_arm % 7 / 6 - 0.5),
                "seed": of_arm,
                "trial": of_arm if tunes else None,
            }
            plan |= {"run_id": draw.bytes(32).hex(), "generation": 0}
            lines.write(json.dumps(plan) + "\n")
            _write_run(root / "runs" / plan["run_id"][:2] / plan["run_id"], plan, points, draw)


def _write_run(folder: Path, plan: dict[str, Any], points: int, draw: np.random.Generator) -> None:
    folder.mkdir(parents=True)
    loss = 3 + 0.02 * int(plan["arm"][-1]) + float(draw.normal(0, 0.01))
    result = {
        "outcome": "completed",
        "stalled": False,
        "reason": None,
        "loss": loss,
        "bpb": loss / 3,
        "initial_loss": 9.0,
        "unigram_loss": 7.0,
        "train_loss": loss - 0.02,
        "eval_digest": "e" * 64,
        "eval_tokens": 1_000_000,
        "eval_part": "tune" if plan["phase"] == "tune" else "verdict",
        "documents": [
            {"name": f"document-{i}", "tokens": 50_000, "loss": loss + 0.01 * i}
            for i in range(DOCUMENTS)
        ],
        "steps": 20_000,
        "tokens": TOKENS,
        "unique_tokens": TOKENS,
        "epochs": 0.9,
        "seconds": 900.0,
        "tokens_per_s": 111_000.0,
        "parameters": {"attention": 10_000_000, "mlp": 20_000_000},
        "flops": 1e17,
        "peak_memory_bytes": 3_000_000_000,
        "attempts": 1,
        "finished_at": "2026-11-30T02:05:00Z",
    }
    env = {
        "versions": {"andrea": "0.1.0", "torch": "2.13.0"},
        "git": {"commit": "c5addce0", "dirty": False},
    }
    (folder / "result.json").write_text(json.dumps(result))
    (folder / "env.json").write_text(json.dumps(env))
    (folder / "config.json").write_text(json.dumps({"config": {}, "identity": {}}))
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps(record) + "\n" for record in _records(loss, points, draw))
    )


def _records(loss: float, points: int, draw: np.random.Generator) -> list[dict[str, Any]]:
    """Nine training records for every evaluation, together `points`; and a few of the layers."""
    records: list[dict[str, Any]] = []
    noise, norms = draw.normal(0, 0.05, points), draw.uniform(0.5, 1.5, (DIAGNOSTICS, LAYERS + 1))
    for i in range(points):
        tokens = TOKENS * (i + 1) // points // 4096 * 4096
        at = loss + (9 - loss) * math.exp(-6 * (i + 1) / points)
        where = {"step": tokens // 4096, "tokens": tokens}
        if i % 10 == 9:
            records.append({"kind": "eval", **where, "loss": at, "bpb": at / 3})
        else:
            told = {"loss": at + float(noise[i]), "lr": 0.001, "grad_norm": 0.9 + float(noise[i])}
            records.append(
                {
                    "kind": "train",
                    **where,
                    **told,
                    "tokens_per_s": 111_000.0,
                    "seconds": 900.0 * i / points,
                }
            )
    for i, stream in enumerate(norms):
        tokens = TOKENS * i // (DIAGNOSTICS - 1) // 4096 * 4096
        told = {name: list(stream[1:]) for name in ("grad_norm", "attn_rms", "mlp_rms")}
        records.append(
            {
                "kind": "layers",
                "step": tokens // 4096,
                "tokens": tokens,
                **told,
                "residual_rms": list(stream),
            }
        )
    return records


def report(root: Path) -> str:
    """The whole report of a study, in every format that needs no extra."""
    from andrea.analysis.formats.build import FORMATS, make_report
    from andrea.store.runs import RunStore
    from andrea.store.studies import find_study

    store = RunStore(root, create=False)
    script = Path(__file__).parents[1] / "reports" / "comparison.py"
    page, *files = make_report(store, find_study(store, "scale"), FORMATS, script)
    return f"page {page.stat().st_size / 1e6:.2f} MB, {len(files)} files beside it"


def tables(root: Path, *names: str) -> str:
    """Whole tables of the study, one after the other."""
    from andrea.analysis.load import load

    study = load("scale", root)
    return ", ".join(f"{len(getattr(study, name)):,} rows of {name}" for name in names)


def some(root: Path) -> str:
    """What a figure of evaluated loss needs."""
    from andrea.analysis.load import load

    found = load("scale", root).part(
        "curves", ["arm", "seed", "tokens", "loss"], phase="replicate", kind="eval"
    )
    return f"{len(found):,} rows of curves in 4 columns"


def measured(what: str, act: Callable[..., str], *arguments: Any) -> None:
    """Run a step in a process of its own and say how long it took and how much memory it had at its
    peak.
    """
    before, after = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(
        target=_step, args=(after, act, arguments)
    )
    process.start()
    after.close()
    told, seconds, busy, peak = before.recv()
    process.join()
    print(
        f"{what:<46}{seconds:6.1f} s  {busy:6.1f} s of CPU  {peak:6,.0f} MB peak  {told}",
        flush=True,
    )


def _step(answer: Any, act: Callable[..., str], arguments: tuple[Any, ...]) -> None:
    start = time.perf_counter()
    told = act(*arguments)
    used = resource.getrusage(resource.RUSAGE_SELF)
    answer.send(
        (told, time.perf_counter() - start, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
    )


def main() -> None:
    """Both parts in a temporary folder."""
    asked = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    asked.add_argument("--runs", type=int, default=10_000, help="of the second part")
    asked.add_argument("--points", type=int, default=1_000, help="of the second part, a run")
    asked.add_argument("--only", choices=("report", "tables"))
    asked.add_argument(
        "--folder", type=Path, help="for the stores; default: the system's temporary folder"
    )
    options = asked.parse_args()
    with tempfile.TemporaryDirectory(prefix="andrea-scale-", dir=options.folder) as folder:
        if options.only != "tables":
            root = Path(folder) / "report"
            generate(root, 50, 2_000)
            measured("report, 50 runs x 2,000 points", report, root)
            measured("the same again, from the cache", report, root)
        if options.only != "report":
            root = Path(folder) / "tables"
            generate(root, options.runs, options.points)
            size = f"{options.runs:,} runs x {options.points:,} points"
            measured(f"runs, {size}, cache built", tables, root, "runs")
            measured("evaluated loss, cache built", some, root)
            measured("runs, from the cache", tables, root, "runs")
            measured("evaluated loss, from the cache", some, root)
            measured("curves whole, from the cache", tables, root, "curves")
            measured("layers and documents, from the cache", tables, root, "layers", "documents")
            kept = sum(path.stat().st_size for path in (root / "cache").rglob("*.parquet"))
            logged = sum(path.stat().st_size for path in (root / "runs").rglob("metrics.jsonl"))
            print(f"metrics.jsonl {logged / 1e6:,.0f} MB, cache {kept / 1e6:,.0f} MB")


if __name__ == "__main__":
    main()
