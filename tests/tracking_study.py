"""A small synthetic study, written with the real store: what a mirror reads, without a training."""

from typing import Any

from andrea.records.run import Phase, RunResult, RunSpec
from andrea.store.digest import digest
from andrea.store.files import append_line, write_json
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder

RUN = RunSpec(run_id="0" * 64, arm="pre", phase="replicate", why="replicate", seed=0)
RESULT = RunResult(outcome="completed")
"""A run and a result for events whose contents the mirror does not look at."""
STUDY_DIGEST = "0123456789abcdef"
LAYERS = 2


def make_study(store: RunStore, name: str = "norm-placement") -> StudyFolder:
    """A frozen study without runs."""
    path = store.root / "studies" / f"{name}-{STUDY_DIGEST[:10]}"
    path.mkdir(parents=True)
    about = {
        "kind": "ablation",
        "name": name,
        "digest": STUDY_DIGEST,
        "created": "2026-11-30T00:00:00Z",
    }
    write_json(path / "study.json", about)
    write_json(path / "resolved.json", {"baseline": "pre", "fingerprint": "f" * 12, "arms": {}})
    (path / "protocol.yaml").write_text("kind: ablation\npreset: tiny\n")
    return StudyFolder(path)


def plan(
    folder: StudyFolder, arm: str, seed: int, lr: float = 0.00316, phase: Phase = "replicate"
) -> RunSpec:
    """Add a run to the plan."""
    planned = run_spec(arm, seed, lr, phase)
    folder.add_run(planned)
    return planned


def run_spec(arm: str, seed: int, lr: float = 0.00316, phase: Phase = "replicate") -> RunSpec:
    """A run that is in no plan yet."""
    run_id = digest({"arm": arm, "seed": seed, "lr": lr})
    return RunSpec(run_id=run_id, arm=arm, phase=phase, why=phase, lr=lr, seed=seed, trial=None)


def train(store: RunStore, planned: RunSpec, metrics: list[dict[str, Any]], **result: Any) -> None:
    """Give a planned run its metrics and its result, as a training would."""
    config = {
        "config": {
            "model": {"d_model": 48, "n_layer": LAYERS},
            "train": {"lr": planned.lr},
            "seed": 1,
        }
    }
    with store.claim(planned.run_id) as claim:
        attempt = claim.attempt(
            config, {"git": {"commit": "c0ffee", "dirty": True}, "device": "cpu"}
        )
        for record in metrics:
            append_line(attempt / "metrics.jsonl", record)
        claim.finish(attempt, {**COMPLETED, **result})


def finished(store: RunStore, folder: StudyFolder, arm: str, seed: int, **result: Any) -> RunSpec:
    """A planned run that completed."""
    planned = plan(folder, arm, seed)
    train(store, planned, curve(), **result)
    return planned


def judged_study(store: RunStore) -> StudyFolder:
    """A study as a controller leaves it: tuned, replicated, judged, reported; one run diverged, one
    stalled, one failed for good.
    """
    folder = make_study(store)
    folder.write(
        "resolved.json",
        {"baseline": "pre", "fingerprint": "f" * 12, "arms": {"pre": {}, "post": {}}},
    )
    for arm in ("pre", "post"):
        for lr in (0.001, 0.00316):
            train(store, plan(folder, arm, 900, lr, "tune"), curve(), eval_part="tune")
        for seed in (1, 2):
            finished(store, folder, arm, seed)
    train(
        store,
        plan(folder, "post", 3),
        diverging_curve(),
        outcome="diverged",
        reason="not finite",
        loss=None,
        bpb=None,
    )
    finished(store, folder, "pre", 3, stalled=True)
    with store.claim(plan(folder, "post", 4).run_id) as claim:
        attempt = claim.attempt({"config": {"seed": 4}}, {})
        append_line(attempt / "metrics.jsonl", _train(1, 5.0))
        claim.fail(attempt, "out of memory")
    told = {"mean": 0.25, "interval": [0.1, 0.4], "level": 0.95, "n": 2, "p": 0.01, "p_holm": 0.01}
    verdict = {"arm": "post", "verdict": "worse", "reason": "0.25 nats more", **told}
    folder.write("verdict.json", {"complete": True, "verdicts": [verdict]})
    folder.write("choices.json", {"pre": {"lr": 0.00316}, "post": {"lr": 0.00316}})
    (folder.path / "report").mkdir()
    (folder.path / "report" / "report.html").write_text("<h1>worse</h1>")
    (folder.path / "report" / "runs.csv").write_text("arm,loss\npre,3.4\n")
    return folder


def curve(steps: int = 4) -> list[dict[str, Any]]:
    """Records of a training of a few steps, as metrics.jsonl has them."""
    records = [_eval(0), _layers(0)]
    for step in range(1, steps + 1):
        records.append(_train(step, 5.5 - 0.5 * step))
    return [*records, _eval(steps), _layers(steps)]


def _train(step: int, loss: float | None) -> dict[str, Any]:
    about = {"kind": "train", "step": step, "tokens": step * 512}
    return {
        **about,
        "loss": loss,
        "lr": 0.001,
        "grad_norm": 1.5,
        "tokens_per_s": 9000.0,
        "seconds": 0.1 * step,
    }


def _eval(step: int) -> dict[str, Any]:
    about = {"kind": "eval", "step": step, "tokens": step * 512}
    return {
        **about,
        "loss": 5.5 - 0.5 * step,
        "bpb": 7.9,
        "full_loss": 5.4 - 0.5 * step,
        "full_bpb": 7.8,
    }


def _layers(step: int) -> dict[str, Any]:
    about = {"kind": "layers", "step": step, "tokens": step * 512, "embedding_grad_norm": 0.3}
    return {
        **about,
        "grad_norm": [0.1, 0.2],
        "attn_rms": [1.0, 1.1],
        "mlp_rms": [2.0, 2.1],
        "residual_rms": [3, 4, 5],
    }


def diverging_curve() -> list[dict[str, Any]]:
    """Records of a run whose loss stopped being a number at step 3."""
    broken = {**_layers(3), "grad_norm": [0.1, None]}
    return [_eval(0), _layers(0), _train(1, 5.0), _train(2, 9.0), _train(3, None), broken]


COMPLETED: dict[str, Any] = {
    "outcome": "completed",
    "stalled": False,
    "reason": None,
    "loss": 3.4,
    "bpb": 4.9,
    "tokens": 2048,
    "steps": 4,
    "tokens_per_s": 9000.0,
    "flops": 1.5e12,
    "parameters": {"token_embedding": 12_288, "head": 0},
    "documents": [{"name": "1790", "tokens": 100, "loss": 3.1}],
}
