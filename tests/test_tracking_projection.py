"""What W&B is told about a run, computed from the store without wandb."""

import json
import math

import pytest
from tracking_study import curve, diverging_curve, finished, make_study, plan, train

from andrea.errors import UserError
from andrea.store.runs import RunStore
from andrea.tracking.destination import resolve_destination, resolve_mode
from andrea.tracking.projection import project_run
from andrea.tracking.study_run import project_study


def test_a_run_is_found_by_study_arm_seed_and_rate(store: RunStore) -> None:
    folder = make_study(store)
    planned = finished(store, folder, "post", seed=7)
    run = project_run(folder, store, planned)
    assert run.id == f"{planned.run_id[:12]}-012345"
    assert run.name == "post lr=0.00316 seed=7"
    assert (run.group, run.job_type) == (folder.path.name, "replicate")
    assert run.tags == ["norm-placement", "ablation", "post", "tiny"]
    assert run.config["model.d_model"] == 48
    assert run.config["arm"] == "post"
    assert run.config["baseline"] == "pre"


def test_tags_are_no_longer_than_w_b_takes_also_those_of_the_study(store: RunStore) -> None:
    folder = make_study(store, "n" * 80)
    run = project_run(folder, store, finished(store, folder, "pre", seed=1), ["t" * 70])
    study = project_study(folder, store, ["t" * 70])
    for tags in (run.tags, study.tags):
        assert {"n" * 64, "t" * 64} <= set(tags)
        assert max(map(len, tags)) == 64


def test_the_configuration_says_that_the_tree_was_dirty(store: RunStore) -> None:
    folder = make_study(store)
    run = project_run(folder, store, finished(store, folder, "pre", seed=1))
    assert run.config["env.git.commit"] == "c0ffee"
    assert run.config["env.git.dirty"] is True


def test_records_of_one_step_are_one_row_on_tokens(store: RunStore) -> None:
    folder = make_study(store)
    run = project_run(folder, store, finished(store, folder, "pre", seed=1))
    assert [row["tokens"] for row in run.history] == [0, 512, 1024, 1536, 2048]
    last = run.history[-1]
    assert last["train/loss"] == 3.5
    assert last["eval/full_loss"] == pytest.approx(3.4)
    assert last["layers/mlp_rms_last"] == 2.1


def test_layers_are_a_profile_and_two_curves_however_deep_the_model(store: RunStore) -> None:
    folder = make_study(store)
    run = project_run(folder, store, finished(store, folder, "pre", seed=1))
    first = run.history[0]
    assert first["layers/grad_norm"] == [0.1, 0.2]
    assert (first["layers/residual_rms_first"], first["layers/residual_rms_last"]) == (3, 5)
    assert len({key for row in run.history for key in row if key.startswith("layers/")}) == 13


def test_a_null_metric_and_a_nan_leave_their_row_and_reach_no_summary(store: RunStore) -> None:
    folder = make_study(store)
    planned = plan(folder, "post", seed=1)
    metrics = [
        *diverging_curve(),
        {"kind": "train", "step": 4, "tokens": 2048, "loss": None, "lr": 0.1},
    ]
    train(
        store,
        planned,
        metrics,
        outcome="diverged",
        reason="loss is not finite",
        loss=None,
        bpb=None,
    )
    path = store.folder(planned.run_id) / "metrics.jsonl"
    path.write_text(path.read_text().replace("9.0,", "NaN,", 1))  # an older writer's
    run = project_run(folder, store, planned)
    assert "train/loss" not in run.history[2]
    assert "train/loss" not in run.history[3]
    assert run.history[3]["train/grad_norm"] == 1.5
    assert "layers/grad_norm" not in run.history[3]
    assert run.history[3]["layers/mlp_rms"] == [2.0, 2.1]
    assert "final_loss" not in run.summary
    assert run.summary["outcome"] == "diverged"
    assert run.summary["diverged_at_tokens"] == 2048
    assert run.exit_code == 1
    assert "diverged" in run.tags
    json.dumps([run.history, run.summary], allow_nan=False)


def test_the_summary_holds_what_is_compared_and_what_it_cost(store: RunStore) -> None:
    folder = make_study(store)
    run = project_run(folder, store, finished(store, folder, "pre", seed=1, stalled=True))
    assert run.summary["final_loss"] == 3.4
    assert (run.summary["best_loss"], run.summary["best_loss_at_tokens"]) == (3.5, 2048)
    assert (run.summary["stalled"], run.summary["stalled_since_tokens"]) == (True, 2048)
    assert run.summary["parameters"] == 12_288
    assert run.summary["parameters.token_embedding"] == 12_288
    assert run.summary["flops"] == 1.5e12
    assert run.summary["tokens_per_s"] == 9000.0
    assert all(math.isfinite(v) for v in run.summary.values() if isinstance(v, float))
    assert run.exit_code == 0
    assert "stalled" in run.tags


def test_a_pruned_trial_is_a_whole_run_that_ended_well(store: RunStore) -> None:
    folder = make_study(store)
    planned = plan(folder, "pre", seed=1, phase="trial")
    train(store, planned, curve(2), outcome="pruned", loss=None)
    run = project_run(folder, store, planned)
    assert (run.exit_code, run.summary["outcome"]) == (0, "pruned")
    assert run.history[-1]["tokens"] == 1024


def test_a_trial_of_a_sweep_is_named_by_keys_and_values(store: RunStore) -> None:
    folder = make_study(store, "lr-wd")
    settings = {"trial": 3, "params": {"train.weight_decay": 0.1}}
    planned = plan(folder, "", seed=1, lr=0.01, phase="trial").model_copy(update=settings)
    train(store, planned, curve())
    run = project_run(folder, store, planned)
    assert run.name == "trial=3 lr=0.01 train.weight_decay=0.1 seed=1"
    assert run.job_type == "trial"


def test_a_control_is_named_by_what_it_is_and_is_a_curve_of_its_own(store: RunStore) -> None:
    folder = make_study(store)
    planned = plan(folder, "pre", seed=1, phase="control").model_copy(update={"why": "half tokens"})
    train(store, planned, curve())
    run = project_run(folder, store, planned)
    assert (run.name, run.job_type) == ("pre half tokens lr=0.00316 seed=1", "control")
    assert run.config["series"] == "pre · half tokens"
    replicate = project_run(folder, store, finished(store, folder, "pre", seed=2))
    assert replicate.config["series"] == "pre"


def test_a_loss_on_the_tune_part_is_another_metric_than_one_on_the_verdict_part(
    store: RunStore,
) -> None:
    folder = make_study(store)
    tuned = plan(folder, "pre", seed=9, phase="tune")
    train(store, tuned, curve(), eval_part="tune")
    last = project_run(folder, store, tuned).history[-1]
    assert (last["eval/tune_loss"], last["eval/tune_full_loss"]) == (3.5, pytest.approx(3.4))
    assert "eval/loss" not in last
    judged = project_run(folder, store, finished(store, folder, "pre", seed=1))
    assert judged.history[-1]["eval/loss"] == 3.5
    assert "final_tune_loss" not in judged.summary


@pytest.mark.parametrize(
    ("option", "variable", "mode"),
    [
        (None, None, "offline"),
        (None, "online", "online"),
        (None, "disabled", "off"),
        (None, "dryrun", "offline"),
        ("off", "online", "off"),
        ("online", "disabled", "online"),
    ],
)
def test_the_option_stands_above_wandb_mode_and_offline_is_the_default(
    monkeypatch: pytest.MonkeyPatch, option: str | None, variable: str | None, mode: str
) -> None:
    monkeypatch.delenv("WANDB_MODE")
    if variable is not None:
        monkeypatch.setenv("WANDB_MODE", variable)
    assert resolve_mode(option) == mode


def test_an_unknown_mode_gets_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="--wandb: unknown mode 'onlin'; did you mean 'online'"):
        resolve_mode("onlin")
    monkeypatch.setenv("WANDB_MODE", "shared")
    with pytest.raises(UserError, match="WANDB_MODE: unknown mode 'shared'"):
        resolve_mode(None)


def test_project_entity_and_tags_are_the_options_else_what_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nothing = resolve_destination("online")
    assert (nothing.project, nothing.entity, nothing.tags) == ("andrea", "", ())
    for name, value in (("PROJECT", "mine"), ("ENTITY", "team"), ("TAGS", "paper, v2,")):
        monkeypatch.setenv(f"WANDB_{name}", value)
    told = resolve_destination("online")
    assert (told.project, told.entity, told.tags) == ("mine", "team", ("paper", "v2"))
    asked = resolve_destination("online", "other", "me", "")
    assert (asked.project, asked.entity, asked.tags) == ("other", "me", ())
