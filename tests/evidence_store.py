"""What stands beside the verdicts of a synthetic study: controls, a confirmation, budgets, speed.
No training.
"""

from dataclasses import asdict
from typing import Any

import stored
from analysis_store import TOKENS, Writer

from andrea.verdict.judgement import METHOD
from andrea.verdict.seeds import replication_seed
from andrea.verdict.tokens_saved import convert_to_tokens

ASKED = {"controls": True, "confirm": True, "equal": ["flops"]}
SPEED = {
    "format": 1,
    "device": "cpu, AVX512",
    "threads": 1,
    "torch": "2.13.0",
    "level": 0.95,
    "arms": {
        arm: {
            "step_s": step,
            "low": step * 0.98,
            "high": step * 1.03,
            "rounds": 9,
            "compile_s": None,
            "tokens_per_s": 512 / step,
            "tokens_per_s_low": 512 / step / 1.03,
            "tokens_per_s_high": 512 / step / 0.98,
            "peak_memory_bytes": None,
        }
        for arm, step in (("pre", 0.06), ("post", 0.054))
    },
    "ratio": {"post": {"ratio": 0.9, "low": 0.88, "high": 0.93}},
}


def control(mean: float, ok: bool | None, reason: str, seeds: int = 5) -> dict[str, Any]:
    """A paired control: differences a little round the mean."""
    pairs = [
        {"seed": replication_seed(i), "difference": mean + 0.002 * (i - 2)} for i in range(seeds)
    ]
    told = {
        "ok": ok,
        "reason": reason,
        "n": seeds,
        "differences": pairs,
        "mean": mean,
        "sd": 0.0032,
        "p": 0.4,
    }
    return told | {"interval": [mean - 0.004, mean + 0.004]}


def controls(**failed: bool | None) -> dict[str, Any]:
    """Controls that all passed, but for those that are named, whose `ok` is given."""
    found: dict[str, Any] = {
        "repeat": {
            "ok": True,
            "reason": "the repeat is the same to the last bit",
            "deterministic": True,
        }
        | {"difference": 0.0, "run_id": "1" * 64, "of": "2" * 64},
        "a_a": control(0.001, True, "the baseline does not differ from itself: a mean within m"),
        "ruler": control(
            0.12, True, "the baseline on 0.5× the tokens is +0.1200 nats: worse, as it must be"
        )
        | {"factor": 0.5, "tokens": TOKENS // 2},
        "ruler_2x": None,
    }
    for name, ok in failed.items():
        found[name] |= {
            "ok": ok,
            "reason": "it came out otherwise" if ok is False else "3 of 10 runs are missing",
        }
    return found


def confirmed(writer: Writer, word: str = "worse", agrees: bool | None = True) -> dict[str, Any]:
    """A confirmation of post on seeds 5 to 9."""
    again = {"arm": "post", "verdict": word, "cause": "", "reason": "", "n": 5, "mean": 0.0712}
    again |= {"interval": [0.0643, 0.0781], "level": 0.95}
    seeds = [replication_seed(i) for i in range(5, 10)]
    told = {
        "seeds": seeds,
        "n": 5,
        "verdicts": [again],
        "complete": agrees is not None,
    }
    return told | {"agrees": {"post": agrees}}


def equal() -> dict[str, Any]:
    """Equal FLOPs trained, equal time not asked for."""
    flops = {
        "tokens": TOKENS * 9 // 10,
        "n": 5,
        "mean": 0.0911,
        "interval": [0.0842, 0.098],
        "level": 0.95,
        "p": 1e-5,
    }
    return {
        "flops": {
            "post": flops
            | {"arm": "post", "word": "worse", "verdict": "worse"}
            | {"cause": "", "reason": "of its own family"}
        },
        "time": {"post": {"na": "not asked for: --equal time trains at this budget"}},
    }


def described() -> dict[str, Any]:
    """Sensitivity and documents."""
    rates = [3.16e-4, 1e-3, 3.16e-3, 1e-2, 3.16e-2]
    curves = {"pre": [2.75, 2.6, 2.55, 2.6, 2.95], "post": [2.7, 2.6, 2.65, 5.5451, 5.5451]}
    sensitivity = {}
    for arm, losses in curves.items():
        best = min(losses)
        told = {"rates": rates, "losses": losses, "best": best, "n": 5, "reason": ""}
        sensitivity[arm] = told | {"value": sum(loss - best for loss in losses) / 5}
    documents = {
        "n_documents": 2,
        "mean": 0.08,
        "interval": [0.07, 0.09],
        "level": 0.95,
        "freedom": 1.0,
        "reason": "",
    }
    return {"sensitivity": sensitivity, "documents": {"post": documents}}


def judged_by(writer: Writer, found: dict[str, Any]) -> None:
    """The words of the verdicts as the controls leave them."""
    failed = [name for name in ("repeat", "a_a") if found[name]["ok"] is False]
    told = stored.study_json(writer.folder, "verdict.json")
    if failed:
        for verdict in told["verdicts"]:
            verdict |= {
                "verdict": "invalid",
                "cause": "control failed",
                "reason": f"control failed: {failed[0]}",
            }
            verdict |= {"mean": None, "interval": None, "sd": None}
    writer.folder.write("verdict.json", told | {"controls": found})


def with_evidence(
    writer: Writer, confirmation: dict[str, Any] | None = None, **failed: bool | None
) -> Writer:
    """The study with everything beside its verdicts, and speed.json."""
    judged_by(writer, controls(**failed))
    told = stored.study_json(writer.folder, "verdict.json")
    pairs = {d["seed"]: d["difference"] for d in told["verdicts"][0]["differences"]}
    half = {d["seed"]: d["difference"] for d in told["controls"]["ruler"]["differences"]}
    saved = asdict(convert_to_tokens(pairs, half, None, 0.05, budget=TOKENS))
    told |= {
        "tokens_saved": {"post": saved},
        "confirmation": confirmation or confirmed(writer),
        "equal": equal(),
    }
    writer.folder.write("verdict.json", told | described() | {"asked": ASKED, "method": METHOD})
    writer.folder.write("asked.json", ASKED)
    writer.folder.write("speed.json", SPEED)
    return writer
