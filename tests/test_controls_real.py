"""Controls, a confirmation and an equal budget of real, tiny trainings on a CPU."""

import json

import pytest
import stored
from conftest import generated_text

from andrea.execution.make import make_executor
from andrea.records.extras import Extras
from andrea.store.files import read_lines
from andrea.store.runs import RunStore
from andrea.study.controller import run_study
from andrea.study.plan.freeze import freeze
from andrea.study.plan.plan import Request
from andrea.study.plan.resolve import make_plan
from andrea.study.question.ablation import Ablation
from andrea.training.metrics import VOLATILE

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def studied(tmp_path_factory):
    """A narrow MLP against a wide one, with everything that can be asked beside the question."""
    root = tmp_path_factory.mktemp("controls")
    (root / "text.txt").write_text(generated_text(20_000))
    spec = Ablation.model_validate(
        {
            "question": "Is a narrow MLP worse?",
            "hypothesis": "A little.",
            "factor": "mlp_ratio",
            "baseline": "wide",
            "arms": {"wide": {"model.mlp_ratio": 4}, "narrow": {"model.mlp_ratio": 1}},
            "match": {"on": "none"},
            "model": {"d_model": 16, "n_layer": 1, "n_head": 2, "context": 16, "dropout": 0.1},
            "data": {
                "source": f"text:{root / 'text.txt'}",
                "tokenizer": "bpe-300",
                "eval_tokens": 2048,
                "curve_tokens": 128,
            },
            "train": {
                "tokens": 8 * 16 * 160,
                "batch_size": 8,
                "evals": 2,
                "diagnostics": 1,
                "logs": 10,
            },
            "protocol": {"m": 0.05, "seeds": 3, "trials": 1, "center": 1e-2},
        }
    )
    store, asked = RunStore(root / "runs"), Extras(controls=True, confirm=True, equal=["flops"])
    planned = make_plan(Request(spec, name="mlp", device="cpu", extras=asked), store)
    folder = freeze(planned, store)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "andrea.study.stages.arm_speed.measure", lambda *_: None
        )  # it has tests of its own
        assert run_study(folder, store, make_executor("inline", 1), [], asked).complete
    return folder, store, planned


def lasting(rows):
    return [{key: row[key] for key in row if key not in VOLATILE} for row in rows]


def test_a_repeat_is_the_same_to_the_last_bit_and_another_run(studied):
    folder, store, _ = studied
    told = stored.study_json(folder, "verdict.json")["controls"]["repeat"]
    assert told["ok"] and told["deterministic"] and told["difference"] == 0.0
    one, two = store.folder(told["of"]), store.folder(told["run_id"])
    assert one != two
    assert (
        stored.config(store, told["of"])["config"] == stored.config(store, told["run_id"])["config"]
    )
    assert stored.config(store, told["run_id"])["identity"]["repeat"] == 1
    assert lasting([stored.result(store, told["of"])]) == lasting(
        [stored.result(store, told["run_id"])]
    )
    metrics = [lasting(read_lines(path / "metrics.jsonl")) for path in (one, two)]
    assert metrics[0] == metrics[1] and len(metrics[0]) > 10


def test_other_initial_weights_and_the_same_batches_give_another_loss_and_no_difference(studied):
    folder, store, _ = studied
    told = stored.study_json(folder, "verdict.json")["controls"]["a_a"]
    assert told["ok"] and told["n"] == 3 and all(pair["difference"] for pair in told["differences"])
    runs = {(run["why"], run["seed"]): run["run_id"] for run in stored.planned(folder)}
    one, two = (stored.result(store, runs[why, 0]) for why in ("replicate", "a/a"))
    assert one["initial_loss"] != two["initial_loss"]
    assert (one["eval_digest"], one["unique_tokens"]) == (two["eval_digest"], two["unique_tokens"])


def test_half_the_tokens_are_worse_with_a_schedule_that_ends_there(studied):
    folder, store, _ = studied
    told = stored.study_json(folder, "verdict.json")["controls"]["ruler"]
    assert told["ok"] and told["mean"] > 0 and told["p"] < 0.05 and told["tokens"] == 8 * 16 * 80
    run = next(run for run in stored.planned(folder) if run["why"] == "half tokens")
    rates = [
        r["lr"]
        for r in read_lines(store.folder(run["run_id"]) / "metrics.jsonl")
        if r["kind"] == "train"
    ]
    whole = stored.config(store, run["run_id"])["config"]["train"]
    assert rates[-1] == pytest.approx(run["lr"] * whole["final_lr"])
    assert stored.result(store, run["run_id"])["tokens"] == told["tokens"]


def test_a_confirmation_and_equal_flops_stand_beside_the_verdict(studied):
    folder, store, planned = studied
    verdict = stored.study_json(folder, "verdict.json")
    assert verdict["confirmation"]["complete"] and verdict["confirmation"]["n"] == 3
    at = verdict["equal"]["flops"]["narrow"]
    assert at["n"] == 3 and at["tokens"] > planned.tokens
    run = next(run for run in stored.planned(folder) if run["why"] == "equal flops")
    base = next(
        run for run in stored.planned(folder) if (run["why"], run["arm"]) == ("replicate", "wide")
    )
    ratio = (
        stored.result(store, run["run_id"])["flops"] / stored.result(store, base["run_id"])["flops"]
    )
    assert abs(ratio - 1) < 0.01, "as near as whole batches come"
    narrow = verdict["documents"]["narrow"]
    assert narrow["mean"] is not None and json.dumps(narrow)


def test_the_plan_counted_what_was_trained(studied):
    folder, store, planned = studied
    runs = stored.planned(folder)
    assert {extra.name: len(extra.certain) for extra in planned.extra_forecasts} == {
        "controls": 7,
        "equal flops": 3,
        "confirmation": 6,
    }
    better = 3 * any(run["why"] == "double tokens" for run in runs)
    assert len(runs) == planned.run_count + better
    assert sum(
        stored.result(store, run["run_id"])["tokens"]
        for run in runs
        if run["why"] != "double tokens"
    ) == (planned.total_tokens)
