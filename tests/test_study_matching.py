"""Matched arms: who is solved for, who is left alone, who is refused, and where all of it is
written down.
"""

import json
from pathlib import Path

import pytest
import stored
import yaml
from analysis_store import Writer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from andrea.analysis.formats.build import make_report
from andrea.cli.app import app
from andrea.errors import UserError
from andrea.execution.make import make_executor
from andrea.model.config import ModelConfig
from andrea.model.size_matching import relative_excess
from andrea.study.controller import run_study
from andrea.study.plan.freeze import freeze
from andrea.study.plan.frozen import FrozenStudy, identify
from andrea.study.plan.plan import Request
from andrea.study.plan.resolve import make_plan
from andrea.study.question.ablation import Ablation
from andrea.study.question.matching import Match, match_arms

REPORT = Path(__file__).parents[1] / "reports" / "comparison.py"
GELU, GATED = ModelConfig(vocab_size=256), ModelConfig(vocab_size=256, activation="swiglu")


def ablation(text, match="params", **arms):
    return {
        "question": "Is a gate better?",
        "hypothesis": "Yes.",
        "factor": "activation",
        "baseline": "gelu",
        "arms": arms
        or {"gelu": {"model.activation": "gelu"}, "swiglu": {"model.activation": "swiglu"}},
        "match": match,
        "model": {"d_model": 24, "n_layer": 1, "n_head": 2, "context": 16},
        "data": {"source": f"text:{text}", "eval_tokens": 512, "curve_tokens": 64},
        "train": {"tokens": 8 * 16 * 60, "batch_size": 8, "diagnostics": 0},
        "protocol": {"m": 0.05, "seeds": 2, "trials": 3},
    }


def planned(store, asked):
    return make_plan(Request(Ablation.model_validate(asked), name="gate", device="cpu"), store)


@pytest.mark.parametrize("on", ["params", "flops"])
@pytest.mark.parametrize("by", ["mlp_width", "d_model", "n_layer"])
@settings(max_examples=15, deadline=None)
@given(
    ratio=st.floats(0.5, 8),
    layers=st.integers(1, 8),
    bias=st.booleans(),
    tolerance=st.sampled_from([0.002, 0.05]),
)
def test_every_arm_ends_within_the_tolerance_or_all_are_refused(
    on, by, ratio, layers, bias, tolerance
):
    arm = ModelConfig(
        vocab_size=256, activation="swiglu", mlp_ratio=ratio, n_layer=layers, bias=bias
    )
    match = Match(on=on, by=by, tolerance=tolerance)
    try:
        found = match_arms({"gelu": GELU, "swiglu": arm}, "gelu", match, {})
    except UserError as error:
        assert "the nearest that it gets is model." in str(error)
        return
    assert found["gelu"].model is GELU and found["gelu"].solved is None
    assert abs(found["swiglu"].deviation[on]) <= tolerance
    assert found["swiglu"].deviation == relative_excess(found["swiglu"].model, GELU)
    if abs(relative_excess(arm, GELU)[on]) <= tolerance:
        assert found["swiglu"].model is arm and found["swiglu"].solved is None
    else:
        assert found["swiglu"].solved.setting == f"model.{by}"


def test_an_arm_within_the_tolerance_keeps_its_mlp():
    """Post-norm without its final norm is a little smaller; it is still the same MLP that is
    compared.
    """
    found = match_arms(
        {"pre": GELU, "post": ModelConfig(vocab_size=256, norm_placement="post")},
        "pre",
        Match(),
        {},
    )
    assert found["post"].solved is None and found["post"].model.mlp_dim == GELU.mlp_dim
    assert found["post"].deviation["params"] < 0


def test_what_an_arm_chose_itself_is_checked_and_never_changed():
    wide = {"gelu": GELU, "swiglu": ModelConfig(vocab_size=256, activation="swiglu", mlp_ratio=3)}
    with pytest.raises(
        UserError,
        match=r"baseline gelu has 185,088 parameters, swiglu has [\d,]+ \(\+\d\.\d%: mlp \+",
    ) as no:
        match_arms(wide, "gelu", Match(), {"swiglu": {"model.activation", "model.mlp_ratio"}})
    assert (
        "sets model.mlp_ratio itself, which is kept: leave it out for model.mlp_width 128 (+0.21%)"
        in str(no.value)
    )
    with pytest.raises(
        UserError, match=r"without it the nearest were model\.mlp_width 128 \(\+0\.21%\)"
    ):
        match_arms(wide, "gelu", Match(tolerance=0.001), {"swiglu": {"model.mlp_ratio"}})
    by_depth = Match(by="n_layer", tolerance=0.11)
    chosen = {"swiglu": {"model.mlp_ratio"}}
    assert (
        match_arms({"gelu": GELU, "swiglu": GATED}, "gelu", by_depth, chosen)[
            "swiglu"
        ].solved.became
        == 5
    )
    by_hand = wide | {"swiglu": ModelConfig(vocab_size=256, activation="swiglu", mlp_width=128)}
    assert (
        match_arms(by_hand, "gelu", Match(), {"swiglu": {"model.mlp_width"}})["swiglu"].solved
        is None
    )


def test_what_cannot_be_reached_is_refused_with_the_nearest_and_how_to_mend():
    models = {"gelu": GELU, "swiglu": GATED, "deep": ModelConfig(vocab_size=256, n_layer=7)}
    with pytest.raises(UserError) as refused:
        match_arms(models, "gelu", Match(by="n_layer"), {"deep": {"model.n_layer"}})
    told = str(refused.value)
    assert (
        "swiglu has 241,536 (+30.5%: mlp +56,448), and the nearest that it gets is model.n_layer 5 "
        "(+10.14%)" in told
    )
    assert (
        "deep has 213,360 (+15.3%" in told and "leave it out for model.n_layer 6 (+0.00%)" in told
    )
    assert "raise match.tolerance, or set match.on=none where size is the question" in told
    with pytest.raises(
        UserError, match=r"swiglu has 241,536 \(\+30\.5%: mlp \+56,448\); .*let match\.by solve"
    ):
        match_arms({"gelu": GELU, "swiglu": GATED}, "gelu", Match(by="nothing"), {})


def test_without_matching_nothing_changes_and_both_deviations_are_known():
    found = match_arms({"gelu": GELU, "swiglu": GATED}, "gelu", Match(on="none"), {})
    assert found["swiglu"].model is GATED and found["swiglu"].solved is None
    assert found["swiglu"].deviation["params"] > 0.3 and found["swiglu"].deviation["flops"] > 0.2


def test_the_tolerance_counts_both_ways_and_to_the_last_parameter():
    base = ModelConfig(vocab_size=256, tied=False)
    more, less = (base.model_copy(update={"vocab_size": n}) for n in (266, 246))
    exact = 10 * 2 * 48 / (185_088 + 256 * 48)
    for arm in (more, less):
        assert (
            match_arms({"a": base, "b": arm}, "a", Match(tolerance=exact + 1e-9), {})["b"].model
            is arm
        )
        assert match_arms({"a": base, "b": arm}, "a", Match(tolerance=exact - 1e-9), {})["b"].solved


def test_a_word_says_what_is_matched():
    for word in ("params", "flops", "none"):
        spec = Ablation.model_validate(ablation("x", word))
        assert spec.match == Match(on=word) and spec.match.by == "mlp_width"
        assert Ablation.model_validate(spec.model_dump()) == spec
        assert spec.override({"match.on": "none"}).match.on == "none"
    with pytest.raises(ValueError, match="'params', 'flops' or 'none'"):
        Ablation.model_validate(ablation("x", "size"))
    word, whole = Ablation.json_schema()["$defs"]["Match"]["anyOf"]
    assert word["enum"] == ["params", "flops", "none"] and set(whole["properties"]) == {
        "on",
        "tolerance",
        "by",
    }


def test_what_was_solved_is_in_the_study_and_names_the_runs_as_if_it_had_been_written(
    tiny_text, store
):
    first = planned(store, ablation(tiny_text, {"on": "params", "tolerance": 0.02}))
    folder = freeze(first, store)
    arm = stored.study_json(folder, "resolved.json")["arms"]["swiglu"]
    assert arm["solved"]["setting"] == "model.mlp_width" and (
        arm["solved"]["was"],
        arm["solved"]["became"],
    ) == (96, 64)
    assert arm["config"]["model"]["mlp_width"] == 64 and arm["asked"]["model"]["mlp_width"] is None
    assert abs(arm["deviation"]["params"]) <= 0.02 < arm["solved"]["before"]["params"]
    assert (
        arm["deviation"]["flops"] == 0
        and stored.study_json(folder, "resolved.json")["arms"]["gelu"]["solved"] is None
    )
    assert stored.question(folder)["match"] == {
        "on": "params",
        "tolerance": 0.02,
        "by": "mlp_width",
    }
    gelu, ratio = (
        {"model.activation": "gelu"},
        {"model.activation": "swiglu", "model.mlp_ratio": 8 / 3},
    )
    by_hand = planned(
        store, ablation(tiny_text, {"on": "params", "tolerance": 0.02}, gelu=gelu, swiglu=ratio)
    )
    assert by_hand.arms["swiglu"].solved is None and by_hand.digest != first.digest
    platform = stored.study_json(folder, "resolved.json")["platform"]
    ids = {
        identify(p.arms["swiglu"].config, p.prepared.fingerprint, platform)[1]
        for p in (first, by_hand)
    }
    assert len(ids) == 1


def test_the_same_command_solves_the_same_and_finds_its_study(tiny_text, store):
    plans = [planned(store, ablation(tiny_text, "flops")) for _ in range(2)]
    assert plans[0].digest == plans[1].digest and plans[0].arms == plans[1].arms
    folder = freeze(plans[0], store)
    resolved = stored.study_json(folder, "resolved.json")
    resolved["arms"]["swiglu"]["config"]["model"]["mlp_width"] = 60
    folder.write("resolved.json", resolved)
    study = FrozenStudy(freeze(plans[1], store), store)
    run = study.plan("swiglu", "tune", "grid", lr=0.001, seed=1)
    assert study.settings(run.run_id)["model"]["mlp_width"] == 60, (
        "what it resolved to when it was frozen holds"
    )


def test_a_solved_model_is_rehearsed_like_one_that_was_asked_for(tiny_text, store, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "andrea.training.rehearsal.rehearse",
        lambda model, where: seen.append((where, model.mlp_dim)),
    )
    planned(store, ablation(tiny_text, "flops"))
    assert seen[-1] == ("arm swiglu with model.mlp_width 64 (solved for by match)", 64)
    assert {width for where, width in seen if "solved" not in where} == {96}


def test_two_arms_that_are_solved_to_the_same_model_are_refused(tiny_text, store):
    gated = {f"by-{n}": {"model.activation": "swiglu", "model.mlp_multiple": n} for n in (8, 16)}
    with pytest.raises(UserError, match="arms by-8 and by-16 train the same model"):
        planned(store, ablation(tiny_text, "flops", gelu={"model.activation": "gelu"}, **gated))


def test_a_dry_run_prints_what_was_solved_and_both_deviations(tiny_text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gate.yaml").write_text(
        yaml.safe_dump(ablation(tiny_text, {"on": "params", "tolerance": 0.02}))
    )
    result = CliRunner().invoke(app, ["ablate", "gate.yaml", "--dry-run", "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["match"] == {"on": "params", "tolerance": 0.02, "by": "mlp_width"}
    arm = told["arms"]["swiglu"]
    assert arm["config"]["model"]["mlp_width"] == arm["solved"]["became"] == 64
    assert set(arm["deviation"]) == {"params", "flops"}
    said = result.stderr.replace("\N{NO-BREAK SPACE}", " ")
    assert "matched on parameters, within 2 %\n  swiglu: model.mlp_width 96 → 64, +" in said
    none = CliRunner().invoke(
        app, ["ablate", "gate.yaml", "--dry-run", "--json", "--set", "match.on=none"]
    )
    assert json.loads(none.stdout)["arms"]["swiglu"]["config"]["model"]["mlp_width"] is None
    assert "matched" not in none.stderr


def test_the_report_lists_size_and_cost_of_every_arm_and_what_was_solved_for(tmp_path):
    writer = Writer(tmp_path, match={"on": "params", "tolerance": 0.01, "by": "mlp_width"})
    resolved = stored.study_json(writer.folder, "resolved.json")
    resolved["arms"]["post"] |= {"flops_per_token": 1_770_000.0}
    resolved["arms"]["post"]["solved"] = {
        "setting": "model.mlp_width",
        "was": 1192,
        "became": 128,
        "before": {},
    }
    writer.folder.write("resolved.json", resolved)
    files = make_report(writer.store, writer.folder, ("md", "csv"), REPORT, None)
    text = files[0].parent.joinpath("report.md").read_text().replace("\N{NO-BREAK SPACE}", " ")
    row = next(line for line in text.splitlines() if "1,192 → 128" in line)
    assert "−0.05 %" in row and "+50.00 %" in row and "1.77 M" in row
    assert (
        "parameters, within 1 %; arms outside it were brought nearest to the baseline by model.mlp"
        in text
    )


@pytest.mark.slow
def test_a_study_trains_the_width_that_was_solved(tiny_text, store):
    folder = freeze(planned(store, ablation(tiny_text, {"on": "params", "tolerance": 0.02})), store)
    assert run_study(folder, store, make_executor("inline", 1)).complete
    trained = [run for run in stored.planned(folder) if run["arm"] == "swiglu"]
    assert len(trained) >= 3
    for run in trained:
        assert (
            stored.result(store, run["run_id"])["parameters"]
            == stored.study_json(folder, "resolved.json")["arms"]["swiglu"]["parameters"]
        )
