"""Controls, confirmation and budgets on the command line: what a plan counts, what an outcome says,
what is refused.
"""

import json

import pytest
import study_fakes as fakes
from study_fakes import go, make_study, misbehave
from typer.testing import CliRunner

from andrea.cli.app import app
from andrea.cli.commands.status import read_study_state, study_as_text
from andrea.cli.show.results import (
    confirmation_cells,
    lines_by_note,
    results_as_text,
    saved_in_words,
)
from andrea.records.verdict import StudyVerdict
from andrea.verdict.tokens_saved import TokensSaved

QUESTION = """
question: Does a narrow MLP do as well?
hypothesis: It does.
factor: mlp_ratio
baseline: wide
arms:
  wide: {model.mlp_ratio: 4}
  narrow: {model.mlp_ratio: 1}
match: none
model: {n_layer: 1, d_model: 8, n_head: 1, context: 16}
data: {eval_tokens: 512, curve_tokens: 64}
train: {batch_size: 2, evals: 2, logs: 4, diagnostics: 0, tokens: 3200}
protocol: {m: 0.05, seeds: 2, trials: 2}
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder of its own with a text and a question about it."""
    (tmp_path / "book.txt").write_text(
        "".join(f"Line {i}: it was a dark and stormy night.\n" for i in range(3000))
    )
    (tmp_path / "mine.yaml").write_text(QUESTION)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def invoke(*more):
    own = [
        "ablate",
        "mine.yaml",
        "--set",
        "data.source=text:book.txt",
        "--wandb",
        "off",
        "--slots",
        "2",
    ]
    return CliRunner().invoke(app, [*own, *more])


def test_a_dry_run_counts_what_is_asked_beside_the_question(place):
    plain = json.loads(invoke("--dry-run", "--json").stdout)
    assert plain["beside"] == [] and (plain["runs"], plain["tokens"]) == (8, 8 * 3200)
    result = invoke("--dry-run", "--json", "--controls", "--confirm", "--equal", "time,flops")
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout)
    told = {extra.pop("what"): extra for extra in plan["beside"]}
    assert list(told) == ["controls", "equal flops", "equal time", "confirmation"]
    assert told["controls"] == {
        "runs": 5,
        "tokens": 11_200 + 1600,
        "perhaps": 2,
        "when": "if an arm is better",
    }
    assert (
        told["equal flops"]["runs"],
        told["equal time"]["runs"],
        told["equal time"]["perhaps"],
    ) == (2, 0, 2)
    assert told["equal flops"]["tokens"] > 2 * 3200, "a narrow token is cheaper"
    assert told["confirmation"]["runs"] == 4
    assert plan["runs"] == 8 + 5 + 2 + 4
    assert plan["tokens"] == 8 * 3200 + sum(extra["tokens"] for extra in told.values())
    assert plan["digest"] == plain["digest"] and plan["estimate_s"] > plain["estimate_s"] + 10
    assert not (place / "andrea-runs" / "studies").exists()


def test_a_dry_run_says_it_in_words(place):
    text = invoke("--dry-run", "--controls", "--equal", "flops,time").stdout
    assert "15 runs of 3,200 tokens, 2 at once: about" in text
    assert (
        "  controls: 5 runs of these, some of 1,600 tokens; up to 2 runs more if an arm is better"
        in text
    )
    assert "  equal time: up to 2 runs more where arms are faster or slower" in text
    same = QUESTION.replace("factor: mlp_ratio", "factor: activation")
    same = same.replace("model.mlp_ratio: 4", "model.activation: gelu")
    (place / "mine.yaml").write_text(same.replace("model.mlp_ratio: 1", "model.activation: relu"))
    none = invoke("--dry-run", "--equal", "flops")
    assert "  equal flops: no runs: every arm costs the same within 1 %" in none.stdout, none.output


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--equal", "flop"], "--equal 'flop': no budget to compare at; did you mean 'flops'?"),
        (["--equal", ""], "--equal '': no budget to compare at; there are flops, time"),
        (
            ["--equal", "flops", "--equal", "tim"],
            "--equal 'tim': no budget to compare at; did you mean 'time'?",
        ),
        (
            ["--controls", "--tokens", "32"],
            "--controls: train.tokens 32 is a single batch, and the ruler trains half",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_written(place, arguments, said):
    result = invoke(*arguments)
    assert result.exit_code == 2 and said in result.stderr
    assert not list(place.glob("andrea-runs/studies/*"))


@pytest.fixture
def faked(monkeypatch):
    fakes.patched(monkeypatch)


@pytest.mark.usefixtures("faked")
def test_the_outcome_has_a_line_for_every_control_and_the_confirmation_beside_the_verdict(tmp_path):
    arms = ("gelu_tanh", "relu", "swiglu")
    folder, store = make_study(tmp_path, arms=arms, train={"train.tokens": 5120}, trials=3)
    go(folder, store)
    plain = results_as_text(folder, store)
    assert "control" not in plain and "confirmation" not in plain
    go(folder, store, controls=True, confirm=True, equal=("time", "flops"))
    lines = results_as_text(folder, store).splitlines()
    assert lines[0].split()[-1] == "confirmation"
    relu = next(line for line in lines if line.startswith("relu"))
    assert "worse +0.20" in relu and relu.endswith("agrees")
    told = {line.split("  ")[0]: line for line in lines if " pass " in line}
    assert list(told) == ["repeat", "A/A", "ruler, ½ the tokens", "ruler, 2× the tokens"]
    assert any(
        line.startswith("relu: takes 5") and "more tokens than the baseline" in line
        for line in lines
    )
    assert any(
        line.startswith("swiglu: saves 3") and "of the tokens that the baseline needs" in line
        for line in lines
    )
    assert any(line.startswith("relu at equal time") and line.endswith("6,144") for line in lines)
    assert any(
        line.startswith("relu: at equal flops n/a: its training costs what the baseline's does")
        for line in lines
    )
    assert not any(ord(c) < 32 for line in lines for c in line)


def test_tokens_saved_are_written_as_in_the_report():
    told = saved_in_words(TokensSaved(-0.07, (-0.145, 0.018), level=0.95, n=5))
    assert told.replace("\N{NO-BREAK SPACE}", " ") == (
        "takes 7 % more tokens than the baseline for the same loss [−1.8 %, 14.5 %]"
    )


@pytest.mark.parametrize(
    ("again", "said"), [("inconclusive", "not confirmed"), ("better", "disagrees")]
)
def test_a_confirmation_is_told_as_in_the_report(again, said):
    first, second = (
        {"arm": "relu", "verdict": "worse"},
        {"arm": "relu", "verdict": again, "mean": 0.011},
    )
    told = {"complete": True, "agrees": {"relu": False}, "verdicts": [second]}
    verdict = StudyVerdict.model_validate({"verdicts": [first], "confirmation": told})
    assert confirmation_cells(verdict) == {"relu": f"{again} +0.0110, {said}"}


def test_a_note_on_several_arms_stands_above_a_list_of_them():
    assert lines_by_note([("learned, Lion", "late"), ("RoPE", ""), ("RoPE, AdamW", "late")]) == [
        "late",
        "  learned, Lion",
        "  RoPE, AdamW",
    ]
    assert lines_by_note([("RoPE, Lion", "late"), ("RoPE, Lion", "late")]) == ["RoPE, Lion: late"]


@pytest.mark.usefixtures("faked")
def test_a_failed_control_is_seen_at_once_and_an_unfinished_confirmation_is_said(tmp_path):
    folder, store = make_study(tmp_path, train={"train.tokens": 5120}, trials=3)
    misbehave(tmp_path, "shift", repeat=1)
    misbehave(tmp_path, "raise", activation="relu", seed=0, eval_part="verdict")
    assert not go(folder, store, controls=True, confirm=True).complete
    text = results_as_text(folder, store)
    assert "repeat" in text and "FAIL" in text and "differs in loss" in text
    assert "not done" in next(line for line in text.splitlines() if line.startswith("relu"))
    state = read_study_state(store, folder)
    assert state.phase == "control, interrupted"
    assert (state.total, state.done) == (2 * (3 + 3) + 7 + 6, 6 + 5 + 7)
    assert "failed: replicate relu" in study_as_text(state)
