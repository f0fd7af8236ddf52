"""`andrea report`: kinds, several studies, a run; `--watch`: built again as the study moves, and
when it ends.
"""

import json
import threading
import time
from pathlib import Path

import pytest
import stored
from analysis_store import Writer, finished
from report_page import read_page
from typer.testing import CliRunner

from andrea.analysis.formats import watch as watching
from andrea.analysis.formats.build import FORMATS, ReportJob, Vanished
from andrea.analysis.formats.watch import Watched, watch_reports
from andrea.cli.app import app
from andrea.errors import UserError

REPORTS = Path(__file__).parents[1] / "reports"
OWN = """
from andrea.analysis.report import Report
def build(study):
    said = f"{len(study.runs)} runs, {study.runs['ok'].sum()} good."
    return Report("mine", "How many?", said, [], [], {"runs": study.runs})
"""
MANY = """
from andrea.analysis.report import Report
def build_many(studies):
    return Report("all", "How many?", f"{len(studies)} studies", [], [], {})
"""
ONE = MANY.replace("build_many(studies)", "build_run(run)").replace(
    "{len(studies)} studies", "run {run.run_id}"
)


def andrea(*arguments: str) -> tuple[int, str, str]:
    """Status, stdout and stderr of a command."""
    done = CliRunner().invoke(app, [*map(str, arguments)], prog_name="andrea")
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder with reports of the user's own."""
    (tmp_path / "reports").mkdir()
    for name, body in (("mine", OWN), ("all", MANY), ("one", ONE)):
        (tmp_path / "reports" / f"{name}.py").write_text(body)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def half(tmp_path: Path) -> Writer:
    """A study that is tuned, and has two of five replicates."""
    writer = Writer(tmp_path / "andrea-runs")
    writer.points = {"evals": 2, "logs": 2}
    writer.tune()
    writer.replicate({"post": 0.08}, seeds=2)
    return writer


def answer(page: Path) -> str:
    """The sentence on a page."""
    return page.read_text().partition('<p class="answer">')[2].partition("</p>")[0]


def test_a_report_of_ones_own_in_the_working_folder_is_found_and_lies_beside_the_usual_one(
    half: Writer,
) -> None:
    status, out, err = andrea("report", "norm-placement", "--kind", "mine", "--format", "html,json")
    assert (status, err) == (0, "")
    page = Path(out.strip())
    assert page == half.folder.path / "report-mine" / "report.html"
    assert answer(page) == "18 runs, 16 good."
    assert json.loads((page.parent / "report.json").read_text())["answer"] == "18 runs, 16 good."


def test_a_report_that_shadows_a_shipped_one_says_so(half: Writer) -> None:
    (Path("reports") / "comparison.py").write_text(OWN)
    status, out, err = andrea("report", "norm-placement", "--format", "html")
    assert (
        status == 0 and "reports/comparison.py of this folder hides the shipped comparison" in err
    )
    assert answer(Path(out.strip())) == "18 runs, 16 good."
    assert Path(out.strip()).parent == half.folder.path / "report"


def test_a_kind_on_all_studies_needs_no_name_and_takes_some(half: Writer) -> None:
    status, out, _ = andrea("report", "--kind", "all", "--format", "html", "--json")
    assert status == 0
    assert json.loads(out) == {"all": [str(half.store.root / "reports/all/report.html")]}
    assert answer(Path("andrea-runs/reports/all/report.html")) == "1 studies"
    status, out, _ = andrea(
        "report", "norm-placement", "--kind", "all", "--format", "html", "--out", "here"
    )
    assert (status, out) == (0, "here/report.html\n")


def test_a_kind_on_a_run_takes_the_beginning_of_its_id(half: Writer) -> None:
    run = stored.planned(half.folder)[3]["run_id"]
    status, out, _ = andrea("report", run[:8], "--kind", "one", "--format", "html")
    assert (status, out) == (0, f"{half.store.root}/reports/run-{run[:12]}/report.html\n")
    assert answer(Path(out.strip())) == f"run {run}"


def test_a_run_is_watched_until_it_has_ended(half: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    run = half.plan("pre", "replicate", "replicate", 0.001, 77)
    said: list[str] = []
    with half.store.claim(run["run_id"]) as claim:
        attempt = claim.attempt({"config": {"train": {"lr": 0.001}}, "identity": {}}, {})
        (attempt / "metrics.jsonl").write_text("")
    Steps(monkeypatch, lambda: None, lambda: half.train(run, 2.5))
    job = ReportJob(half.store, Path("reports/one.py"), run=run["run_id"][:8].upper())
    watch_reports([Watched(job, "it")], said.append, said.append)
    assert [
        "0 of 1 runs done; built" in said[0],
        "1 of 1 runs done, complete" in said[1],
        len(said),
    ] == [True, True, 2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name a study (`andrea status` lists them)"),
        (["--kind", "one"], "name a run by the beginning of its id"),
        (["--kind", "mine"], "name a study"),
        (["norm-placemen"], "did you mean 'norm-placement'?"),
        (["norm-placement", "--kind", "min"], "did you mean 'mine'?"),
        (["norm-placement", "--format", "jsn"], "--format: unknown 'jsn'; did you mean 'json'?"),
        (["norm-placement", "--format", ","], "--format: names none"),
        (
            ["norm-placement", "--kind", "mine", "--watch", "--format", "htm"],
            "did you mean 'html'?",
        ),
    ],
)
def test_a_request_that_is_wrong_is_one_line(half: Writer, arguments: list[str], said: str) -> None:
    status, out, err = andrea("report", *arguments)
    assert (status, out) == (2, "") and said in err and err.count("\n") == 1
    assert not (half.folder.path / "report").exists()


def test_a_script_that_defines_two_kinds_of_report_is_refused(half: Writer) -> None:
    (Path("reports") / "both.py").write_text(OWN + MANY)
    status, _, err = andrea("report", "norm-placement", "--kind", "both")
    assert status == 2 and "there is build and build_many" in err


def test_a_study_that_is_complete_is_built_once_in_all_formats_and_the_watch_ends(
    tmp_path: Path,
) -> None:
    writer = finished(tmp_path / "andrea-runs")
    status, out, err = andrea("report", "norm-placement", "--kind", "mine", "--watch")
    assert (status, err) == (0, "") and out.count("\n") == 1
    assert "24 of 24 runs done, complete; built in" in out and "\x1b" not in out
    folder = writer.folder.path / "report-mine"
    assert {path.suffix[1:] for path in folder.iterdir()} == set(FORMATS)
    assert "data-refresh" not in (folder / "report.html").read_text().split("<head>")[0]


class Steps:
    """Instead of waiting: what happens between one look and the next."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *steps: object) -> None:
        self.steps = list(steps)
        monkeypatch.setattr(watching.time, "sleep", self.sleep)

    def sleep(self, _: float) -> None:
        step = self.steps.pop(0)
        if callable(step):
            step()


def test_a_watched_report_follows_its_study_until_it_is_complete(
    half: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    page = half.folder.path / "report-mine" / "report.html"
    seen: list[str] = []

    def look() -> None:
        seen.append(answer(page))
        assert 'data-refresh="10"' in page.read_text().split("<head>")[0]

    def more() -> None:
        look()
        half.train(half.plan("pre", "replicate", "replicate", 0.001, 77), 2.5)

    def end() -> None:
        look()
        half.judge()

    Steps(monkeypatch, more, look, lambda: None, end)
    one = Watched(
        ReportJob(half.store, Path("reports/mine.py"), (half.folder,)), "norm-placement", ["html"]
    )
    watch_reports([one], said.append, said.append)
    assert seen == ["18 runs, 16 good.", "19 runs, 17 good.", "19 runs, 17 good."]
    assert len(said) == 3, "no line for a look that found nothing new"
    assert (
        "18 of 18 runs done" in said[0] and "19 of 19" in said[1] and said[2].count("complete") == 1
    )
    assert "data-refresh" not in page.read_text().split("<head>")[0]


def test_a_build_that_fails_is_said_once_and_tried_again(
    half: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Path("reports/mine.py")
    said: list[str] = []
    complaints: list[str] = []
    broken = OWN.replace("study.runs['ok']", "study.nothing")
    Steps(
        monkeypatch,
        lambda: script.write_text(broken),
        lambda: None,
        lambda: script.write_text("def build(study:\n"),
        lambda: (script.write_text(OWN), half.judge()),
    )
    watch_reports(
        [Watched(ReportJob(half.store, script, (half.folder,)), "it", ["html"])],
        said.append,
        complaints.append,
    )
    assert len(said) == 2 and len(complaints) == 2
    assert (
        "it: not built, will try again: reports/mine.py:4: the report failed (AttributeError"
        in complaints[0]
    )
    assert "SyntaxError" in complaints[1]


def test_a_request_that_is_wrong_from_the_start_ends_the_watch(half: Writer) -> None:
    job = ReportJob(half.store, Path("reports/none.py"), (half.folder,))
    with pytest.raises(UserError, match="no such report script"):
        watch_reports([Watched(job, "it")], print, print)


def test_a_study_that_vanishes_ends_the_watch_and_is_not_made_again(
    half: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = half.folder.path.with_name("gone")
    Steps(monkeypatch, lambda: half.folder.path.rename(gone))
    one = Watched(ReportJob(half.store, Path("reports/mine.py"), (half.folder,)), "it", ["html"])
    with pytest.raises(Vanished, match="the study is gone"):
        watch_reports([one], print, print)
    assert not half.folder.path.exists()
    with pytest.raises(Vanished, match="the study is gone"):
        one.job.make(["html"])
    assert not half.folder.path.exists()


def test_ctrl_c_ends_the_watch_and_leaves_a_page_that_stays(
    half: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    Steps(monkeypatch, interrupt)
    status, out, err = andrea("report", "norm-placement", "--kind", "mine", "--watch")
    assert status == 130 and "18 of 18 runs done; built" in out and err == "andrea: interrupted\n"
    page = half.folder.path / "report-mine" / "report.html"
    assert "data-refresh" not in page.read_text().split("<head>")[0]
    assert [path.name for path in page.parent.iterdir()] == ["report.html"], (
        "all formats come with the last run"
    )


def test_a_reader_never_sees_half_a_page(half: Writer) -> None:
    job = ReportJob(half.store, Path("reports/mine.py"), (half.folder,))
    [page] = job.make(["html"])
    ended = threading.Event()
    torn: list[int] = []

    def read() -> None:
        while not ended.is_set():
            text = page.read_text()
            if not text.endswith("</html>"):
                torn.append(len(text))
            time.sleep(0)

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(5):
        job.make(["html"], refresh=10)
    ended.set()
    reader.join()
    assert torn == []


@pytest.mark.slow
def test_a_half_finished_studys_page_says_what_is_missing_and_that_it_loads_itself_again(
    half: Writer,
) -> None:
    job = ReportJob(half.store, REPORTS / "comparison.py", (half.folder,))
    text = read_page(job.make(["html"], refresh=10)[0]).text
    assert "Half finished" in text and "3 replicates not planned yet" in text
    assert "this page loads itself again while it is being watched" in text
    assert "loads itself again" not in read_page(job.make(["html"])[0]).text


def test_the_report_that_the_guide_shows_works(half: Writer) -> None:
    guide = (Path(__file__).parents[1] / "docs" / "reports.md").read_text(encoding="utf-8")
    [script] = [
        part
        for part in guide.split("```python\n")
        if part.startswith('"""How long every arm took."""')
    ]
    (Path("reports") / "time.py").write_text(script.partition("```")[0])
    status, out, _ = andrea("report", "norm-placement", "--kind", "time", "--format", "html,csv")
    assert status == 0 and answer(Path(out.strip())).endswith("seconds in all.")
    assert "How long every arm took." in andrea("list", "reports")[1]
