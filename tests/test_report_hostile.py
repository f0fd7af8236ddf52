"""Names by others and scripts with mistakes: text stays text in every format, a fault is a line
that says where.
"""

import csv
import io
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import stored
from analysis_store import Writer, finished
from report_page import read_page
from waiting import PATIENT_S

from andrea.analysis.figures import marks
from andrea.analysis.formats import machine
from andrea.analysis.formats.build import make_report
from andrea.analysis.formats.render import draw_figures, render_page
from andrea.analysis.report import Column, Figure, Report, Section, Table
from andrea.errors import AndreaError, StudyError, UserError
from andrea.text import names
from andrea.text import numbers as text

SCRIPT = Path(__file__).parents[1] / "reports" / "comparison.py"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Writer:
    """A judged ablation with few points."""
    return finished(tmp_path_factory.mktemp("whole"))


@pytest.mark.slow
def test_labels_of_control_characters_lines_and_javascripts_own_names_are_drawn(
    tmp_path: Path,
) -> None:
    writer = finished(tmp_path, effects={"constructor": 0.08}, arms=("pre", "constructor"))
    evil = "two\nlines\r\0\x1b[31m \u202e$x$"
    writer.asked["arms"] = {
        "pre": {"label": evil, "set": {}},
        "constructor": {"label": "toString", "set": {}},
    }
    writer.asked |= {"question": evil, "factor": evil}
    writer.save()
    folder = make_report(writer.store, writer.folder, ["html", "md", "json"], SCRIPT, None)[
        0
    ].parent
    shown = read_page(folder / "report.html").column("verdicts", "arm")
    assert [cell for cell, _ in shown] == ["two lines ��[31m �$x$", "toString"]
    for drawing in (folder / "figures").glob("*.svg"):
        ElementTree.parse(drawing)
    assert "$" not in (folder / "report.md").read_text().split("```")[0], (
        "no formula on a code host"
    )


def test_no_sign_that_ends_the_drawing_reaches_it() -> None:
    spec = {
        "data": {"values": [{"a": "x\0y"}]},
        "mark": "text",
        "encoding": {"text": {"field": "a"}},
    }
    report = Report("t", "q?", "a.", [Figure("f", "c", spec)], [], {})
    drawings = draw_figures(report)
    assert "x�y" in drawings["f"] and "x\\u0000y" not in render_page(
        report, SCRIPT.parent, drawings
    )
    assert names.one_line(" a\t\r\n b\u2028") == "a b" and names.one_line("👩‍👧 é") == "👩‍👧 é"


def test_csv_holds_what_a_reader_finds_again() -> None:
    told = ["a\rb", "c\nd", 'e"', "=1+1", "NaN"]
    frame = pd.DataFrame({"name": told, "x": [np.inf, -np.inf, np.nan, -0.0, 0.1 + 0.2]})
    rows = list(csv.DictReader(io.StringIO(machine.format_csv(frame), newline="")))
    assert [row["name"] for row in rows] == told
    assert [row["x"] for row in rows] == ["", "", "", "-0.0", "0.30000000000000004"]
    assert '"a\rb"' in marks.inline_data(frame).values


def test_numbers_at_the_ends_of_their_range() -> None:
    assert [text.number(-0.0), text.signed(-0.0), text.signed(-1e-5)] == [
        "0.0000",
        "+0.0000",
        "−0.0000",
    ]
    assert [text.number(3.4e38), text.signed(12345678), text.count(-0.4)] == [
        "3.4e+38",
        "+12,345,678.0000",
        "0",
    ]
    assert [
        text.signed(nothing) for nothing in (None, np.nan, np.float64("nan"), pd.NA, pd.NaT)
    ] == [text.NOTHING] * 5
    infinite = [show(np.inf) for show in (text.count, text.memory, text.seconds, text.big)]
    assert infinite == ["inf", "inf MiB", "inf s", "inf"]


def test_a_result_whose_numbers_are_none_costs_itself_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from andrea.analysis.load import load

    writer = finished(tmp_path)
    run = stored.planned(writer.folder)[-1]["run_id"]
    path = writer.store.folder(run) / "result.json"
    path.write_text(
        '{"outcome": "completed", "loss": "low", "parameters": {"mlp": "many"}, "steps": true}'
    )
    runs = load(writer.folder, writer.store).runs.set_index("run_id")
    assert not runs.loc[run, "ok"] and np.isnan(runs.loc[run, "loss"]) and runs["ok"].sum() > 5
    assert "damaged in loss, steps, parameters; treated as absent" in capsys.readouterr().err


HEAD = "from andrea.analysis.report import *\ndef build(s): return Report('t', 'q', 'a', "


@pytest.mark.parametrize(
    ("body", "error", "said"),
    [
        (
            "import sys\nsys.exit(0)",
            UserError,
            r"mine\.py:2: this report script does not run \(SystemExit: 0",
        ),
        (
            "def build(s):\n    raise SystemExit(3)",
            StudyError,
            r"mine\.py:2: the report failed \(SystemExit: 3",
        ),
        (
            f"{HEAD}[Table('x', 'c', s.runs, [Column('arms', 'h')])], [], {{}})",
            UserError,
            "'x': no column 'arms'; did",
        ),
        (
            f"{HEAD}[Table('x', 'c', s.runs, [Column('arm', 'h', lambda v: 1 / 0)])], [], {{}})",
            StudyError,
            r"y:2: .*Z",
        ),
        (
            f"{HEAD}[Figure('f', 'c', {{'mark': 'no'}})], [], {{}})",
            UserError,
            r"mine\.py: figure 'f' cannot be drawn",
        ),
        (
            f"{HEAD}[None], [], {{}})",
            UserError,
            r"mine\.py:2: this report has a NoneType among its items",
        ),
        (
            f"{HEAD}[], [], {{'../up': s.runs}})",
            UserError,
            r"mine\.py:2: frame '\.\./up': its name becomes a file's",
        ),
    ],
)
def test_a_mistake_in_a_script_is_told_with_its_place_and_nothing_is_written(
    whole: Writer, tmp_path: Path, body: str, error: type[AndreaError], said: str
) -> None:
    script = tmp_path / "mine.py"
    script.write_text(body)
    with pytest.raises(error, match=said):
        make_report(whole.store, whole.folder, ["md", "json"], script, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_mistake_in_a_template_is_told_with_its_line(whole: Writer, tmp_path: Path) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "report.md.j2").write_text("fine\n{{ nope }}\n")
    script = tmp_path / "mine.py"
    script.write_text(f"{HEAD}[], [], {{}})")
    with pytest.raises(
        StudyError, match=r"report\.md\.j2:2: the report cannot be rendered \(UndefinedError"
    ):
        make_report(whole.store, whole.folder, ["json", "md"], script, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_row_that_is_shown_again_is_not_made_again() -> None:
    table = Table("x", "c", pd.DataFrame({"a": [1]}), [Column("a", "a")])
    report = Report("t", "q", "a", [], [Section("s", [table])], {})
    assert report.shown()[0].rows() is table.rows()


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGHUP])
def test_a_watch_that_is_ended_leaves_a_page_that_stays_as_it_is(
    tmp_path: Path, ending: int
) -> None:
    writer = Writer(tmp_path / "andrea-runs")
    writer.points = {"evals": 2, "logs": 2}
    writer.tune()
    command = [
        sys.executable,
        "-c",
        "from andrea.cli.app import main; main()",
        "report",
        "norm-placement",
        "--watch",
    ]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        preexec_fn=partial(signal.signal, ending, signal.SIG_DFL),  # also below `nohup`
    ) as watching:
        try:
            assert watching.stdout is not None and "built in" in watching.stdout.readline()
            page = writer.folder.path / "report" / "report.html"
            assert 'data-refresh="' in page.read_text()[:200]
            watching.send_signal(ending)
            assert watching.wait(PATIENT_S) == 130
        finally:
            watching.kill()
    assert 'data-refresh="' not in page.read_text()[:200]
