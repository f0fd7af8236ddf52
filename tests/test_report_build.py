"""Making a report: the user's own scripts and templates, formats, and what goes wrong on the
way.
"""

import shutil
from pathlib import Path

import pytest
import stored
from analysis_store import Writer, finished, swept
from report_page import read_csv, read_page

from andrea.analysis.formats.build import make_report
from andrea.errors import StudyError, UserError

REPORTS = Path(__file__).parents[1] / "reports"
pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Writer:
    """A judged ablation."""
    return finished(tmp_path_factory.mktemp("whole"))


def own(folder: Path, body: str) -> Path:
    """A report script of the user's."""
    folder.mkdir(exist_ok=True)
    script = folder / "mine.py"
    script.write_text(body)
    return script


def test_a_copied_script_can_be_changed_and_finds_the_shipped_templates(
    whole: Writer, tmp_path: Path
) -> None:
    script = tmp_path / "reports" / "comparison.py"
    script.parent.mkdir()
    changed = (
        (REPORTS / "comparison.py")
        .read_text()
        .replace('title=f"{study.name} · ablation"', 'title="my own report"')
    )
    script.write_text(changed)
    paths = make_report(whole.store, whole.folder, ["html"], script, tmp_path / "out")
    assert paths[0] == tmp_path / "out" / "report.html"
    assert "my own report" in read_page(paths[0]).text


def test_a_users_template_comes_before_the_shipped_one(whole: Writer, tmp_path: Path) -> None:
    script = tmp_path / "reports" / "comparison.py"
    (script.parent / "templates").mkdir(parents=True)
    shutil.copy(REPORTS / "comparison.py", script)
    (script.parent / "templates" / "report.md.j2").write_text("mine: {{ report.question }}\n")
    make_report(whole.store, whole.folder, ["md"], script, tmp_path / "out")
    assert (tmp_path / "out" / "report.md").read_text().startswith("mine: Does it matter")


def test_a_small_report_of_ones_own_takes_a_few_lines(whole: Writer, tmp_path: Path) -> None:
    script = own(
        tmp_path / "reports",
        "from andrea.analysis.report import Column, Report, Section, Table, numbers\n"
        "def build(study):\n"
        "    runs = study.runs.groupby('arm', as_index=False)['seconds'].sum()\n"
        "    table = Table('time', 'Seconds per arm.', runs, [Column('arm', 'arm'), "
        "numbers('seconds', 's')])\n"
        "    return Report('mine', 'How long?', 'Not long.', [table], [Section('More', [])], {})\n",
    )
    out = make_report(whole.store, whole.folder, ["html", "csv"], script, tmp_path / "out")[
        0
    ].parent
    assert {row["arm"] for row in read_csv(out / "time.csv")} == {"pre", "post"}


def test_only_the_formats_asked_for_are_written(whole: Writer, tmp_path: Path) -> None:
    paths = make_report(
        whole.store, whole.folder, ["csv"], REPORTS / "comparison.py", tmp_path / "out"
    )
    assert {path.suffix for path in paths} == {".csv"}


def test_bad_requests_are_told_in_one_line(whole: Writer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    script = REPORTS / "comparison.py"
    with pytest.raises(UserError, match=r"unknown 'htm'; did you mean 'html'\?"):
        make_report(whole.store, whole.folder, ["htm"], script, None)
    with pytest.raises(UserError, match="is a file"):
        make_report(whole.store, whole.folder, ["html"], script, tmp_path / "file")
    with pytest.raises(UserError, match="no such report script"):
        make_report(whole.store, whole.folder, ["html"], tmp_path / "none.py", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_fault_in_a_users_script_is_told_with_its_line(whole: Writer, tmp_path: Path) -> None:
    cases = [
        ("x = 1\n", UserError, r"mine\.py: .*there is no build"),
        ("def build(study:\n", UserError, r"mine\.py:1: .*SyntaxError"),
        ("import pandas\nx = nowhere\n", UserError, r"mine\.py:2: .*NameError"),
        (
            "def build(study):\n    return study.runs['nope']\n",
            StudyError,
            r"mine\.py:2: .*KeyError.*untouched",
        ),
        ("def build(study):\n    return 3\n", UserError, r"returned int, not a Report"),
    ]
    for body, error, message in cases:
        with pytest.raises(error, match=message):
            make_report(
                whole.store,
                whole.folder,
                ["html"],
                own(tmp_path / "reports", body),
                tmp_path / "out",
            )
    assert not (tmp_path / "out").exists()


def test_a_sweep_has_a_table_of_trials_best_first_and_a_configuration_to_copy(
    tmp_path: Path,
) -> None:
    writer = swept(tmp_path)
    out = make_report(
        writer.store, writer.folder, ["html", "md", "csv", "parquet"], REPORTS / "sweep.py", None
    )[0].parent
    page = read_page(out / "report.html")
    best = stored.study_json(writer.folder, "best.json")
    order = [int(text) for text, _ in page.column("trial-values", "trial")]
    expected = sorted(
        (row for row in best["trials"] if row["ok"]), key=lambda row: (row["loss"], row["trial"])
    )
    assert order == [*(row["trial"] for row in expected), 3], "what stalled comes last"
    assert f"the lowest of 12 trials is trial {best['trial']} with" in page.text
    assert (
        f"--set train.lr={best['params']['train.lr']} --set "
        f"train.weight_decay={best['params']['train.weight_decay']}" in page.text
    )
    figures = {attributes["id"] for tag, attributes in page.elements if tag == "figure"}
    slices = {"slice-train-lr", "slice-train-weight-decay"}
    assert figures == {"history", "parallel-coordinates", "pair"} | slices
    assert "1 stalled of 12 trials" in page.text and "n_startup_trials" in page.text
    losses = {row["trial"]: float(row["loss"]) for row in read_csv(out / "trial-values.csv")}
    assert losses == pytest.approx({str(row["trial"]): row["loss"] for row in best["trials"]})


def test_a_sweep_on_its_way_names_no_best(tmp_path: Path) -> None:
    writer = swept(tmp_path, unfinished=3)
    page = read_page(
        make_report(writer.store, writer.folder, ["html"], REPORTS / "sweep.py", None)[0]
    )
    assert (
        "Half finished" in page.text
        and "Not decided yet: 9 of 12 trials are done; the best so far is trial" in page.text
    )
    assert "--set" not in page.text
