"""What is read from a store (`status`, `list`, `doctor`, `dashboard`, …), and that reading leaves
no trace.
"""

import json
import re
import threading
import urllib.error
import urllib.request

import pytest
from typer.testing import CliRunner
from waiting import PATIENT_S

from andrea.cli.app import app
from andrea.records.run import RunSpec
from andrea.store.files import locked
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder

RUNNER = CliRunner()


def andrea(*arguments):
    return RUNNER.invoke(app, [str(a) for a in arguments], prog_name="andrea")


@pytest.fixture
def runs(tmp_path):
    """A store with one study: a good run, a stalled one, a diverged one, a failed one, one at
    work.
    """
    store = RunStore(tmp_path / "runs")
    folder = store.root / "studies" / "norm-placement-ab12cd"
    folder.mkdir(parents=True)
    study = StudyFolder(folder)
    study.write(
        "study.json",
        {"kind": "ablation", "name": "norm-placement", "digest": "ab12cd", "created": "2026-11-30"},
    )
    endings = {
        "aa": {"outcome": "completed", "stalled": False, "loss": 2.5},
        "bb": {"outcome": "completed", "stalled": True, "loss": 3.1},
        "cc": {"outcome": "diverged", "stalled": False, "loss": None},
    }
    for i, run_id in enumerate(("aa", "bb", "cc", "dd", "ee", "ff")):
        lr = 10.0 ** -(i + 1)
        spec = RunSpec(run_id=run_id, arm="post", phase="tune", why="grid", lr=lr, seed=1)
        study.add_run(spec)
        if run_id in endings:
            with store.claim(run_id) as claim:
                claim.finish(claim.attempt({}, {}), endings[run_id])
    with store.claim("dd") as claim:
        claim.fail(claim.attempt({}, {}), "RuntimeError: out of memory", "the log")
    claim = store.claim("ee")
    yield store.root
    claim.release()


def test_status_counts_what_is_done_and_says_why_the_rest_is_not(runs):
    state = json.loads(andrea("status", "norm-placement", "--runs", runs, "--json").stdout)
    assert state["runs"] == {
        "total": 6,
        "running": 1,
        "failed": 1,
        "done": 3,
        "stalled": 1,
        "diverged": 1,
    }
    assert state["live"] is False and state["phase"] == "tune, interrupted"
    assert [(run["run_id"], run["reason"]) for run in state["failed"]] == [
        ("dd", "RuntimeError: out of memory")
    ]
    assert [(run["run_id"], run["ending"]) for run in state["not_completed"]] == [
        ("bb", "stalled"),
        ("cc", "diverged"),
    ]


def test_status_of_a_study_reads_as_text(runs):
    text = andrea("status", "norm-placement", "--runs", runs).stdout
    assert "failed: tune post lr 0.0001 seed 1: RuntimeError: out of memory" in text
    assert "stalled: tune post lr 0.01 seed 1" in text
    assert "running: tune post lr 1e-05 seed 1" in text
    assert "given again, resumes it" in text


def test_status_without_a_name_lists_every_study_and_says_which_is_live(runs):
    with locked(runs / "studies" / "norm-placement-ab12cd" / "lock"):
        [state] = json.loads(andrea("status", "--runs", runs, "--json").stdout)
    assert state["live"] is True and state["phase"] == "tune"
    table = andrea("status", "--runs", runs).stdout.splitlines()
    assert table[1].split() == [
        "norm-placement-ab12cd",
        "tune,",
        "interrupted",
        "3/6",
        "1",
        "1",
        "1",
    ]


def test_a_finished_study_is_done_and_shows_its_verdicts(runs):
    StudyFolder(runs / "studies" / "norm-placement-ab12cd").write(
        "verdict.json", {"complete": True, "verdicts": [{"arm": "post", "verdict": "worse"}]}
    )
    text = andrea("status", "norm-placement", "--runs", runs).stdout
    assert "verdict: post is worse" in text
    assert "post worse" in text.splitlines()[1]
    assert json.loads(andrea("status", "--runs", runs, "--json").stdout)[0]["phase"] == "done"


def test_the_overview_says_in_a_few_words_what_came_out(runs):
    study = StudyFolder(runs / "studies" / "norm-placement-ab12cd")
    arms = {"pre": {"label": "pre-norm"}, "post": {"label": "post-norm"}}
    frozen = {"fingerprint": "ab", "arms": arms, "baseline": "pre", "platform": {}}
    study.write("resolved.json", frozen)

    def shown(name, content):
        study.write(name, {"complete": True, **content})
        return andrea("status", "--runs", runs).stdout

    one = [{"arm": "post", "verdict": "worse"}]
    assert shown("verdict.json", {"verdicts": one}).splitlines()[1].endswith("  post-norm worse")
    several = [
        {"arm": arm, "verdict": verdict}
        for arm, verdict in zip("abc", ("worse", "better", "worse"), strict=True)
    ]
    text = shown("verdict.json", {"verdicts": several, "exploratory": True})
    assert text.splitlines()[1].endswith("  2 worse, 1 better (exploratory)")
    assert text.splitlines()[-1].startswith("exploratory: some runs were there before")
    best = {"train.lr": 0.0046845, "train.warmup": 0.1}
    assert "  best lr 0.00468, warmup 0.1\n" in shown("best.json", {"params": best}).replace(
        " (exploratory)", ""
    )
    assert "tune post-norm lr 0.0001" in andrea("status", "norm-placement", "--runs", runs).stdout


@pytest.mark.parametrize("command", ["status", "report", "dashboard", "sync"])
def test_a_bare_name_of_several_studies_says_which_is_the_latest(runs, command):
    newer = StudyFolder(runs / "studies" / "norm-placement-ef34ab")
    newer.path.mkdir()
    newer.write(
        "study.json", {"kind": "ablation", "name": "norm-placement", "created": "2026-12-01"}
    )
    said = "2 studies are named norm-placement; this is the latest, norm-placement-ef34ab\n"
    assert andrea(command, "norm-placement", "--runs", runs).stderr.startswith(said)
    assert (
        "studies are named" not in andrea(command, "norm-placement-ef34ab", "--runs", runs).stderr
    )
    assert "latest" in andrea(command, "--help").stdout


def test_list_variants_says_axis_name_and_what_it_is():
    lines = andrea("list", "variants").stdout.splitlines()
    assert any(
        line.split()[:2] == ["activation", "swiglu"] and len(line.split()) > 3 for line in lines
    )
    schema = json.loads(andrea("schema", "run").stdout)["$defs"]["ModelConfig"]["properties"]
    assert schema["norm_placement"]["examples"][:2] == ["pre", "post"]


def test_an_unknown_study_gets_a_did_you_mean(runs):
    result = andrea("status", "norm-placment", "--runs", runs)
    assert result.exit_code == 2
    assert "did you mean 'norm-placement'?" in result.stderr


def test_reading_makes_no_runs_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert andrea("status").exit_code == 0
    assert andrea("list", "studies").exit_code == 0
    assert andrea("doctor").exit_code == 0
    assert andrea("report", "x").exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_list_presets_as_json_is_json_alone():
    found = json.loads(andrea("list", "presets", "--json").stdout)
    names = [entry["name"] for entry in found["presets"]]
    assert names[:2] == ["tiny", "andrea-12m"]
    assert all(set(entry) == {"name", "about", "origin"} for entry in found["presets"])


def test_model_show_prints_the_exact_count_and_takes_a_fraction(tmp_path):
    assert json.loads(andrea("model", "show", "gpt2", "--json").stdout)["total"] == 124_439_808
    shown = json.loads(
        andrea("model", "show", "tiny", "--set", "model.mlp_ratio=8/3", "--json").stdout
    )
    assert shown["config"]["mlp_ratio"] == pytest.approx(8 / 3)
    assert "124,439,808" in andrea("model", "show", "gpt2").stdout


def test_model_compare_puts_models_side_by_side():
    head, *rows = andrea("model", "compare", "andrea-120m", "gpt2").stdout.splitlines()
    assert head.split() == ["andrea-120m", "gpt2"]
    assert any(row.split() == ["total", "92,331,264", "124,439,808"] for row in rows)


@pytest.mark.parametrize("what", ["run", "ablation", "sweep"])
def test_schema_is_json_schema_with_the_documentation_of_each_field(what):
    schema = json.loads(andrea("schema", what).stdout)
    assert schema["type"] == "object"
    # Docstrings are wrapped; an editor shows a paragraph on one line.
    texts = re.findall('"description": "(.*)"', json.dumps(schema, indent=1))
    assert len(texts) > 50
    assert not any(r"\n" in text.replace(r"\n\n", "") for text in texts)
    if what == "run":
        assert (
            "learning rate"
            in schema["$defs"]["TrainConfig"]["properties"]["lr"]["description"].lower()
        )


def test_doctor_reports_every_check_and_fails_on_a_folder_that_cannot_be_used(tmp_path):
    good = andrea("doctor", "--runs", tmp_path / "new", "--json")
    assert good.exit_code == 0
    assert {"python", "torch", "device", "runs folder", "free disk", "W&B mode", "corpus sotu"} <= {
        row["what"] for row in json.loads(good.stdout)
    }
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    for bad in (tmp_path / "file", "/proc/andrea"):
        result = andrea("doctor", "--runs", bad)
        assert result.exit_code == 1
        assert "missing  runs folder" in result.stdout


def test_an_unknown_report_format_is_refused(runs):
    result = andrea("report", "norm-placement", "--runs", runs, "--format", "html,doc")
    assert result.exit_code == 2
    assert (
        result.stderr
        == "andrea: --format: unknown 'doc'; there are html, md, csv, parquet, json, tex, pdf\n"
    )


def test_the_dashboard_reads_the_live_journal_and_never_writes_it(tmp_path):
    pytest.importorskip("optuna_dashboard")
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    from andrea.cli.commands.dashboard import serve

    journal = tmp_path / "optuna.journal"
    backend = JournalFileBackend(str(journal), lock_obj=JournalFileOpenLock(str(journal)))
    study = optuna.create_study(storage=JournalStorage(backend), study_name="post")
    study.add_trial(optuna.trial.create_trial(params={}, distributions={}, value=2.5))
    with serve(journal, "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_port}"
        before = journal.read_bytes()
        with urllib.request.urlopen(f"{base}/api/studies", timeout=PATIENT_S) as answer:
            [shown] = json.load(answer)["study_summaries"]
        assert shown["study_name"] == "post"
        delete = urllib.request.Request(f"{base}/api/studies/{shown['study_id']}", method="DELETE")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(delete, timeout=PATIENT_S)
        assert refused.value.code == 403
        refused.value.close()
        assert journal.read_bytes() == before
        study.add_trial(optuna.trial.create_trial(params={}, distributions={}, value=2.4))
        with urllib.request.urlopen(
            f"{base}/api/studies/{shown['study_id']}?after=0", timeout=PATIENT_S
        ) as answer:
            assert len(json.load(answer)["trials"]) == 2
        server.shutdown()
    assert [path.name for path in tmp_path.iterdir()] == ["optuna.journal"]


def test_a_missing_dashboard_is_one_line_with_the_install_command(tmp_path, runs, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "optuna_dashboard", None)
    (runs / "studies" / "norm-placement-ab12cd" / "optuna.journal").write_text("")
    result = andrea("dashboard", "norm-placement", "--runs", runs)
    assert result.exit_code == 2
    assert result.stderr == "andrea: the dashboard is an extra: pip install optuna-dashboard\n"
