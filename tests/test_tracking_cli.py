"""`andrea sync`, and the mirror of `andrea train`."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tracking_study import curve, finished, judged_study, make_study, plan, train
from typer.testing import CliRunner
from wandb.sdk.lib.wbauth import read_netrc_auth
from wandb_reader import read_offline_runs

from andrea.cli.app import app
from andrea.cli.commands import doctor
from andrea.cli.commands.train import PreparedRun
from andrea.config import RunConfig
from andrea.records.run import RunResult
from andrea.store.runs import RunStore
from andrea.tracking.destination import Destination
from andrea.tracking.mirror import Mirror
from andrea.tracking.subject import SingleRun

pytestmark = pytest.mark.filterwarnings("ignore:Pydantic V1 style:DeprecationWarning")


def synced(store: RunStore, *arguments: str) -> Any:
    return CliRunner().invoke(
        app, ["sync", *arguments, "--runs", str(store.root)], prog_name="andrea"
    )


@pytest.mark.slow
def test_a_run_of_andrea_train_is_mirrored_by_itself_and_found_by_the_beginning_of_its_id(
    store: RunStore,
) -> None:
    planned = plan(make_study(store), "", seed=1)
    train(store, planned, curve(), eval_part="tune")
    run_id = planned.run_id
    first = synced(
        store,
        run_id[:8],
        *("--wandb", "offline", "--wandb-project", "mine", "--wandb-tags", "mine"),
    )
    assert first.stdout == "1 run written (offline)\n", first.output
    [run] = read_offline_runs(store.root / "train" / run_id[:12]).values()
    assert (run.id, run.group, run.job_type, run.project) == (
        f"{run_id[:12]}-train",
        "train",
        "train",
        "mine",
    )
    assert (run.name, run.tags) == ("lr=0.00316 seed=1", ["train", "mine"])
    assert run.axes["eval/*"] == "tokens"
    assert len(run.history) == 5
    again = synced(store, run_id[:8], "--wandb", "offline")
    assert again.stdout == "every run that has ended is mirrored already (offline)\n", again.output


def test_the_run_of_a_train_command_is_mirrored_as_it_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    monkeypatch.setattr(
        "andrea.tracking.mirror.Mirror.close", lambda mirror, *_: told.append(mirror._to)
    )
    monkeypatch.setattr(
        "andrea.cli.commands.train.train_run", lambda *_: RunResult(outcome="completed")
    )
    run = PreparedRun(RunConfig(), "ab" * 32, {}, tmp_path)
    monkeypatch.setattr("andrea.cli.commands.train.prepare_run", lambda *_: run)
    monkeypatch.setattr("andrea.cli.commands.train.result_as_text", lambda *_: "")
    for asked in (
        ["--wandb", "online", "--wandb-entity", "team", "--wandb-tags", "a,b"],
        ["--wandb", "off"],
    ):
        command = ["train", "--runs", str(tmp_path / "runs"), *asked]
        result = CliRunner().invoke(app, command, prog_name="andrea")
        assert result.exit_code == 0, result.output
    assert told == [Destination("online", "andrea", "team", ("a", "b"))]


def test_a_project_that_w_b_would_refuse_is_refused_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("andrea.cli.commands.train.train_run", lambda *_: pytest.fail("it trains"))
    command = [
        "train",
        "--runs",
        str(tmp_path / "runs"),
        "--wandb",
        "offline",
        "--wandb-project",
        "team/p",
    ]
    result = CliRunner().invoke(app, command, prog_name="andrea")
    assert result.exit_code == 2
    assert "W&B project 'team/p'" in result.stderr


def test_a_study_stays_in_the_project_where_it_was_put(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_study(store)
    finished(store, folder, "pre", 1)
    assert (
        "1 run written"
        in synced(store, "norm-placement", "--wandb", "offline", "--wandb-project", "mine").stdout
    )
    assert "mirrored already" in synced(store, "norm-placement", "--wandb", "offline").stdout
    told = json.loads(synced(store, "norm-placement", "--online", "--dry-run", "--json").stdout)
    assert (told["project"], len(told["runs"])) == ("mine", 1)
    monkeypatch.setenv("WANDB_PROJECT", "other")
    assert "1 run written" in synced(store, "norm-placement", "--wandb", "offline").stdout
    assert {run.project for run in read_offline_runs(folder.path).values()} == {"other"}


def test_a_run_that_failed_is_found_by_the_beginning_of_its_id_and_mirrored_with_its_reason(
    store: RunStore,
) -> None:
    run_id = plan(make_study(store), "", seed=1).run_id
    with store.claim(run_id) as claim:
        claim.fail(claim.attempt({"config": {"seed": 1}}, {}), "out of memory")
    told = synced(store, run_id[:8], "--wandb", "offline", "--dry-run")
    assert told.stdout.startswith("1 run would be written (offline)"), told.output
    assert (
        synced(store, run_id[:8], "--wandb", "offline").stdout
        == "1 run written; 1 run without a result (offline)\n"
    )
    [run] = read_offline_runs(store.root / "train" / run_id[:12]).values()
    assert (run.exit_code, run.summary["reason"]) == (1, "out of memory")


@pytest.mark.parametrize(
    "damage", ["{", "[]", '{"ID": 3}', '{"ID": {}}', '{"ID": {"mode": "offline"}}']
)
def test_a_damaged_ledger_is_none(store: RunStore, damage: str) -> None:
    folder = make_study(store)
    run_id = finished(store, folder, "pre", 1).run_id
    (folder.path / "wandb").mkdir()
    (folder.path / "wandb" / "mirrored.json").write_text(
        damage.replace("ID", f"{run_id[:12]}-012345")
    )
    (folder.path / "wandb" / "destination.json").write_text(
        '{"project": 3, "entity": "team", "tags": 5}'
    )
    told = synced(store, "norm-placement", "--wandb", "offline", "--dry-run", "--json")
    answer = json.loads(told.stdout)
    assert (answer["project"], answer["entity"], answer["runs"]) == (
        "andrea",
        "team",
        [f"{run_id[:12]}-012345"],
    )


def test_a_dry_run_says_what_would_be_sent_and_writes_nothing(store: RunStore) -> None:
    folder = judged_study(store)
    before = sorted(store.root.rglob("*"))
    told = synced(
        store,
        "norm-placement",
        "--wandb",
        "online",
        "--wandb-entity",
        "team",
        "--dry-run",
        "--json",
    )
    answer = json.loads(told.stdout)
    assert (answer["mode"], answer["project"], answer["entity"]) == ("online", "andrea", "team")
    assert len(answer["runs"]) == 12
    assert answer["runs"][-1] == "study-0123456789ab"
    assert (answer["workspace"]["displayName"], answer["workspace"]["entity"]) == (
        folder.path.name,
        "team",
    )
    text = synced(store, "norm-placement", "--wandb", "offline", "--dry-run").stdout
    assert text.startswith("12 runs would be written (offline) to project andrea\n")
    assert "panels" not in text
    text = synced(store, "norm-placement", "--online", "--wandb-entity", "team", "--dry-run").stdout
    assert text.startswith(
        "12 runs would be written (online) to project team/andrea at https://api.wandb.ai\n"
    )
    assert "Verdicts (2 panels)" in text
    assert sorted(store.root.rglob("*")) == before


@pytest.mark.slow
def test_a_dry_run_counts_what_the_sync_then_writes(store: RunStore) -> None:
    judged_study(store)
    for arguments, count in (([], 12), ([], 0), (["--wandb-tags", "new"], 1)):
        asked = ["norm-placement", "--wandb", "offline", *arguments]
        told = json.loads(synced(store, *asked, "--dry-run", "--json").stdout)
        assert (
            len(told["runs"])
            == json.loads(synced(store, *asked, "--json").stdout)["written"]
            == count
        )


@pytest.mark.parametrize(
    ("netrc", "server", "found"),
    [
        ("machine api.wandb.ai login user password KEY", "", True),
        ("machine api.wandb.ai\n  login user\n  password KEY\n", "https://api.wandb.ai/", True),
        ("machine api.wandb.ai login user password KEY", "http://localhost:8080", False),
        ("machine localhost:8080 login user password KEY", "http://localhost:8080", True),
        ("machine localhost login user password KEY", "http://localhost:8080", False),
        ("machine api.wandb.ai login user", "", False),
        ("machine", "", False),
        ("", "", False),
    ],
)
def test_a_key_is_found_where_wandb_finds_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, netrc: str, server: str, found: bool
) -> None:
    for variable in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_BASE_URL", "NETRC"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))
    if server:
        monkeypatch.setenv("WANDB_BASE_URL", server)
    (tmp_path / ".netrc").write_text(netrc.replace("KEY", "k" * 40))
    assert (read_netrc_auth(host=server or "https://api.wandb.ai") is not None) == found
    row = doctor.check_wandb()
    assert row.state == ("ok" if found else "note")
    (tmp_path / ".netrc").unlink()
    (tmp_path / "settings").write_text(f"[default]\napi_key = {'k' * 40}\n")
    assert doctor.check_wandb().state == "ok"
    (tmp_path / "settings").unlink()
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    assert doctor.check_wandb().state == "ok"


def test_without_a_key_it_is_said_before_anything_is_trained_or_sent(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_BASE_URL", "http://localhost:8080")
    told = "no key found for http://localhost:8080: `wandb login`, or set WANDB_API_KEY"
    folder = judged_study(store)
    lines: list[str] = []
    Mirror(folder, store, Destination("online"), warn=lines.append)
    assert lines == [
        f"W&B: {told}; mirroring offline, publish later with "
        f"`andrea sync {folder.path.name} --wandb online --runs {store.root}`"
    ]
    result = synced(store, "norm-placement", "--online")
    assert (result.exit_code, result.stderr) == (2, f"andrea: W&B: {told}\n")
    assert f"note: W&B: {told}\n" in synced(store, "norm-placement", "--online", "--dry-run").stderr
    asked = [
        "ablate",
        "norm-placement",
        "--wandb",
        "online",
        "--dry-run",
        "--runs",
        str(store.root),
    ]
    assert f"note: W&B: {told}\n" in CliRunner().invoke(app, asked, prog_name="andrea").output


@pytest.mark.slow
def test_the_mirrors_process_takes_a_run_that_belongs_to_no_study(store: RunStore) -> None:
    planned = plan(make_study(store), "", seed=1)
    train(store, planned, curve(), eval_part="tune")
    subject = SingleRun(store, planned.run_id)
    with closing(Mirror(subject, store, Destination("offline"), warn=pytest.fail)):
        pass
    assert [run.group for run in read_offline_runs(subject.path).values()] == ["train"]


@pytest.mark.slow
def test_the_checkpoint_of_the_best_run_goes_along_when_asked(store: RunStore) -> None:
    folder = judged_study(store)
    best = finished(store, folder, "pre", 7, loss=3.0)
    (store.folder(best.run_id) / "checkpoint").write_bytes(b"weights")
    assert synced(store, "norm-placement", "--wandb", "offline").exit_code == 0
    [study] = (run for run in read_offline_runs(folder.path).values() if run.job_type == "report")
    assert set(study.artifacts) == {
        *(f"run-{study.id}-{key}" for key in ("outcomes", "verdicts", "rates", "layers"))
    } | {f"{folder.path.name}-report"}
    assert (
        "1 run written"
        in synced(store, "norm-placement", "--wandb", "offline", "--checkpoint").stdout
    )
    [study] = (run for run in read_offline_runs(folder.path).values() if run.job_type == "report")
    assert study.artifacts[f"{folder.path.name}-best"] == ["checkpoint", "config.json"]
    assert study.summary["best_run"] == best.run_id[:12]
    again = synced(store, "norm-placement", "--wandb", "offline")
    assert "mirrored already" in again.stdout, "attached once is attached"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["norm-placement", "--online", "--wandb", "offline"], "say different things"),
        (["norm-placement"], "WANDB_MODE turns W&B off"),
        (["0000000000", "--online"], "no study '0000000000'"),
        (
            ["norm-placement", "--online", "--wandb-project", "team/p"],
            "W&B project 'team/p': use up to 128 characters",
        ),
        (
            ["norm-placement", "--wandb", "offline", "--wandb-project", "p" * 129],
            "use up to 128 characters",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(
    store: RunStore, arguments: list[str], told: str
) -> None:
    make_study(store)
    result = synced(store, *arguments)
    assert result.exit_code == 2
    assert told in result.stderr


@pytest.mark.slow
def test_what_breaks_the_table_of_verdicts_costs_no_run(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = judged_study(store)

    def broken(*_: object, **__: object) -> None:
        raise KeyError("arm")

    monkeypatch.setattr("andrea.tracking.writer.pending_study", broken)
    result = synced(store, "norm-placement", "--wandb", "offline")
    assert result.exit_code == 1
    assert "W&B: the table of verdicts is not mirrored" in result.stderr
    assert "1 part of norm-placement-0123456789 could not be mirrored" in result.stderr
    assert len(read_offline_runs(folder.path)) == 11


def test_a_damaged_verdict_costs_that_verdict_alone(store: RunStore) -> None:
    folder = judged_study(store)
    folder.write("verdict.json", {"complete": True, "verdicts": [{"verdict": "worse"}]})
    result = synced(store, "norm-placement", "--wandb", "offline")
    assert result.exit_code == 0
    assert "verdict.json: damaged in verdicts" in result.stderr
    runs = read_offline_runs(folder.path)
    assert len(runs) == 12
    [study] = (run for run in runs.values() if run.job_type == "report")
    assert study.summary["verdict.post"] == "pending"
