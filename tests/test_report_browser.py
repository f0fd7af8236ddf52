"""The page in a real browser: drawn, quiet, offline, usable by hand, by key and by ear, on a phone
and in the dark.
"""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import stored
from analysis_store import Writer, swept
from browser import Browser, Page

from andrea.analysis.formats.build import ReportJob, make_report
from andrea.cli.show.verdict_table import verdict_table

REPORTS = Path(__file__).parents[1] / "reports"
pytestmark = pytest.mark.slow

LABELS = {
    "pre": "pre-norm before every sublayer",
    "post": "post-norm after the residual addition",
    "both": "sandwich: RMSNorm before and after, with query-key normalisation",
    "one": "parallel attention and MLP, one norm shared by both branches",
}
OVERFLOW = """[...document.querySelectorAll("table.stacked")]
  .filter((table) => table.scrollWidth > table.parentElement.clientWidth + 1)
  .map((table) => table.closest(".table").id)"""
WIDE = """[...document.querySelectorAll(".plot svg")]
  .filter((drawing) => drawing.getBoundingClientRect().right > innerWidth).length"""
BARE = """[...document.querySelectorAll("figure")]
  .filter((figure) => !figure.querySelector(".plot svg path[aria-label][d]")).map((figure) => figure.id)"""
ROWS = """(id) => [...document.querySelectorAll(`#${id} .behind table`)]
  .map((table) => [...table.rows].map((row) => [...row.cells].map((cell) => cell.textContent)))"""
MARKS = """(arm) => [...document.querySelectorAll(".plot path[aria-label]")]
  .filter((path) => path.getAttribute("aria-label").includes(`arm: ${arm}`)).length"""
# Contrast by WCAG's formula, of the page's ink and of an axis' letters against the paper.
CONTRAST = """(() => {
  const parts = (color) => color.match(/[\\d.]+/g).slice(0, 3).map((part) => Number(part) / 255)
    .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  const light = (color) => parts(color).reduce((sum, part, i) => sum + part * [0.2126, 0.7152, 0.0722][i], 0);
  const ratio = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
  const body = getComputedStyle(document.body);
  const axis = getComputedStyle(document.querySelector(".plot .role-axis-label text")).fill;
  const swatches = [...document.querySelectorAll(".swatch")].map((part) => getComputedStyle(part).backgroundColor);
  return { paper: light(body.backgroundColor), ink: ratio(body.color, body.backgroundColor),
    axis: ratio(axis, body.backgroundColor),
    arms: Math.min(...swatches.map((color) => ratio(color, body.backgroundColor))) };
})()"""


def labelled(root: Path, labels: dict[str, str], **asked: Any) -> Writer:
    """A judged ablation whose arms have these labels; the second stalls at one seed."""
    writer = Writer(root, arms=tuple(labels), **asked)
    writer.asked["arms"] = {
        a: {"label": label, "set": {"model.norm_placement": a}} for a, label in labels.items()
    }
    writer.save()
    writer.tune()
    _, second, *others = labels
    writer.replicate({second: 0.08, **dict.fromkeys(others, -0.01)}, **{second: {2: "stalled"}})
    writer.judge()
    return writer


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Writer:
    """A judged ablation whose labels are long."""
    return labelled(tmp_path_factory.mktemp("study"), LABELS)


@pytest.fixture(scope="module")
def report(judged: Writer) -> Path:
    """Its report."""
    return make_report(judged.store, judged.folder, ["html"], REPORTS / "comparison.py", None)[0]


def untroubled(page: Page) -> None:
    """Nothing on the console, nothing asked of anybody, every figure drawn with marks in it."""
    assert page.complaints == []
    assert page.requests == []
    figures = page.evaluate("document.querySelectorAll('figure').length")
    assert page.evaluate("Number(document.documentElement.dataset.drawn)") == figures > 0
    assert page.evaluate(BARE) == []


def test_the_page_draws_its_figures_offline_and_quietly(browser: Browser, report: Path) -> None:
    with browser.page(report) as page:
        untroubled(page)
        assert page.evaluate("document.querySelectorAll('.plot.vega-embed svg').length") >= 7
        shown = page.evaluate(CONTRAST)
        assert (
            shown["paper"] > 0.9 and shown["ink"] > 7 and shown["axis"] > 4.5 and shown["arms"] > 3
        )


def test_in_the_dark_the_page_and_its_figures_can_be_read(browser: Browser, report: Path) -> None:
    with browser.page(report, dark=True) as page:
        shown = page.evaluate(CONTRAST)
        assert (
            shown["paper"] < 0.03 and shown["ink"] > 7 and shown["axis"] > 4.5 and shown["arms"] > 3
        )
        page.set_media(dark=True, media="print")
        assert page.evaluate(CONTRAST)["paper"] > 0.9, "paper is white"


def test_a_click_in_the_legend_hides_an_arm_in_every_figure(browser: Browser, report: Path) -> None:
    with browser.page(report) as page:
        before, others = page.evaluate(f"({MARKS})('post')"), page.evaluate(f"({MARKS})('both')")
        page.click("#learning-rates [data-arm=post]")
        page.wait(f"({MARKS})('post') === 0")
        assert before > 0 and page.evaluate(f"({MARKS})('both')") == others > 0
        pressed = "[...document.querySelectorAll('[data-arm=post]')].map((b) => b.ariaPressed)"
        assert set(page.evaluate(pressed)) == {"false"}
        # And back, with the keyboard.
        page.evaluate("document.querySelector('#learning-rates [data-arm=post]').focus()")
        page.press(" ", 32, " ")
        page.wait(f"({MARKS})('post') === {before}")
        assert page.complaints == []


def test_a_table_sorts_by_a_click_and_by_a_key(browser: Browser, report: Path) -> None:
    keys = (
        "[...document.querySelector('#runs table').tBodies[0].rows].map((r) => "
        "r.children[{}].dataset.sort)"
    )
    with browser.page(report) as page:
        heads = page.evaluate(
            "[...document.querySelectorAll('#runs thead th')].map((th) => th.textContent)"
        )
        at = heads.index("final loss (nats)")
        head = f"#runs thead th:nth-child({at + 1})"
        page.click(f"{head} button")
        up = [float(key) for key in page.evaluate(keys.format(at)) if key]
        assert up == sorted(up) and len(up) > 40
        assert page.evaluate(f"document.querySelector('{head}').ariaSort") == "ascending"
        page.press("Enter", 13, "\r")
        down = [float(key) for key in page.evaluate(keys.format(at)) if key]
        assert (
            down == up[::-1]
            and page.evaluate(f"document.querySelector('{head}').ariaSort") == "descending"
        )


def test_the_keyboard_reaches_the_contents_first_and_shows_where_it_is(
    browser: Browser, report: Path
) -> None:
    with browser.page(report) as page:
        page.press("Tab", 9)
        assert page.evaluate("document.activeElement.textContent") == "Skip to the contents"
        assert page.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
        page.press("Enter", 13, "\r")
        page.press("Tab", 9)
        assert page.evaluate("document.activeElement.closest('nav').id") == "contents"
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_a_figures_numbers_can_be_read_as_a_table(browser: Browser, report: Path) -> None:
    with browser.page(report) as page:
        page.click("#differences-per-seed .behind summary")
        page.wait("document.querySelector('#differences-per-seed .behind table')")
        tables = page.evaluate(f"({ROWS})('differences-per-seed')")
        seeds = next(t for t in tables if "seed" in t[0])
        assert [row[0] for row in seeds[1:]] == [
            LABELS[arm] for arm in ("post", "both", "one") for _ in range(5)
        ]
        plot = "document.querySelector('#differences-per-seed .plot')"
        assert page.evaluate(f"{plot}.ariaLabel").startswith("Paired differences")
        assert page.evaluate(f"[{plot}.role, {plot}.querySelector('svg').ariaHidden]") == [
            "img",
            "true",
        ]


@pytest.mark.parametrize("width", [360, 760, 1100, 1920])
def test_nothing_scrolls_sideways_and_what_is_read_whole_is_not_cut(
    browser: Browser, report: Path, width: int
) -> None:
    with browser.page(report, width) as page:
        assert page.evaluate("innerWidth") == width
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(OVERFLOW) == []
        assert page.evaluate(WIDE) == 0 and page.complaints == []


def faults(page: Page, axe: str, *rules: str) -> list[list[str]]:
    """What axe-core calls serious or critical: rule and element."""
    page.evaluate(axe)
    options = json.dumps({"runOnly": list(rules)} if rules else {})
    told = page.evaluate(
        f"axe.run(document, {options}).then((told) => ({{passes: told.passes.length, faults: "
        "told.violations"
        ".filter((v) => ['serious', 'critical'].includes(v.impact)).map((v) => [v.id, "
        "v.nodes[0].html])}))"
    )
    assert told["passes"] > (0 if rules else 15), "it did look"
    found: list[list[str]] = told["faults"]
    return found


@pytest.mark.parametrize("width", [360, 1280])
def test_axe_finds_nothing_that_keeps_people_out(
    browser: Browser, axe: str, report: Path, width: int
) -> None:
    with browser.page(report, width) as page:
        page.evaluate(
            "document.querySelectorAll('details:not(.behind)').forEach((part) => { part.open = "
            "true; })"
        )
        page.click("#differences-per-seed .behind summary")
        page.wait("document.querySelector('.behind table')")
        assert faults(page, axe) == []
        page.set_media(dark=True)
        assert faults(page, axe, "color-contrast") == []
        # It would find them: letters hardly paler than the paper, a button without a name.
        page.evaluate("document.querySelector('h1').style.color = '#333'")
        page.evaluate("document.querySelector('[data-arm]').textContent = ''")
        page.evaluate("document.querySelector('[data-arm]').title = ''")
        assert {rule for rule, _ in faults(page, axe, "color-contrast", "button-name")} == {
            "color-contrast",
            "button-name",
        }


@pytest.mark.parametrize("kind", ["leaderboard", "claims", "run"])
def test_the_other_kinds_are_as_quiet_as_usable_and_as_narrow(
    browser: Browser, axe: str, judged: Writer, kind: str, tmp_path: Path
) -> None:
    run = stored.planned(judged.folder)[-1]["run_id"] if kind == "run" else None
    made = ReportJob(judged.store, REPORTS / f"{kind}.py", run=run, out=tmp_path).make(["html"])[0]
    with browser.page(made, 360) as page:
        if kind != "claims":  # it has no figures
            untroubled(page)
        assert page.complaints == [] and page.requests == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert faults(page, axe) == []


def test_names_that_are_markup_are_names(browser: Browser, tmp_path: Path) -> None:
    evil = "<script>window.alerted=1</script><img src=x onerror=window.alerted=1>"
    named = {"source": f"text:{evil}", "tokenizer": evil}
    writer = labelled(
        tmp_path,
        {"pre": "</script><b>", "post": evil},
        question=f"{evil} javascript:alert(1)?",
        data=named,
    )
    for path in writer.store.root.glob("runs/*/*/result.json"):
        path.write_text(path.read_text().replace("speech-0", evil.replace('"', "'")))
    writer.fail(writer.plan("post", "replicate", "replicate", 0.1, 99))
    [failure] = writer.store.root.glob("runs/*/*/failure.json")
    failure.write_text(json.dumps({"reason": evil, "log": evil}))
    writer.folder.write(
        "study.json", stored.study_json(writer.folder, "study.json") | {"name": evil}
    )
    made = make_report(writer.store, writer.folder, ["html", "md"], REPORTS / "comparison.py", None)
    with browser.page(made[0]) as page:
        untroubled(page)
        assert page.evaluate("window.alerted ?? null") is None
        assert page.evaluate("document.querySelector('.overline').textContent").startswith(evil)
        assert (
            page.evaluate("document.querySelector('h1').textContent")
            == f"{evil} javascript:alert(1)?"
        )
        labels = (
            "[...document.querySelectorAll('#learning-rates [data-arm]')].map((b) => "
            "b.textContent.trim())"
        )
        assert page.evaluate(labels) == ["</script><b>", evil]
        assert page.evaluate("document.querySelectorAll('main img, main b').length") == 0
        assert page.evaluate("document.querySelector('#runs').textContent").count(evil) >= 2, (
            "labels and a reason"
        )
        links = page.evaluate(
            "[...document.querySelectorAll('a')].map((a) => a.getAttribute('href'))"
        )
        assert links and all(link.startswith("#") for link in links)
    for drawing in made[0].parent.glob("figures/*.svg"):
        with browser.page(drawing) as page:
            assert page.evaluate("window.alerted ?? null") is None and page.requests == []


def test_a_sweeps_page_draws_too(browser: Browser, tmp_path: Path) -> None:
    writer = swept(tmp_path)
    made = make_report(writer.store, writer.folder, ["html"], REPORTS / "sweep.py", None)[0]
    with browser.page(made, 360) as page:
        untroubled(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_a_watched_page_loads_itself_again_as_its_reader_left_it(
    browser: Browser, tmp_path: Path
) -> None:
    writer = Writer(tmp_path)
    writer.tune()
    writer.replicate({"post": 0.08})
    job = ReportJob(writer.store, REPORTS / "comparison.py", (writer.folder,))
    path = job.make(["html"], refresh=1)[0]
    with browser.page(path) as page:
        page.evaluate("window.first = true")
        page.click("#learning-rates [data-arm=post]")
        page.click("#runs thead th:nth-child(2) button")
        page.evaluate(
            "document.querySelectorAll('details.behind')[0].open = true; scrollTo(0, 900)"
        )
        page.wait(
            "window.first === undefined && document.documentElement.dataset.drawn !== undefined"
        )
        assert page.evaluate("document.querySelector('[data-arm=post]').ariaPressed") == "false"
        assert page.evaluate(f"({MARKS})('post')") == 0
        assert (
            page.evaluate("document.querySelector('#runs thead th:nth-child(2)').ariaSort")
            == "ascending"
        )
        assert page.evaluate("document.querySelector('details.behind').open") is True
        assert page.evaluate("document.activeElement.closest('th')?.textContent") == "arm"
        assert abs(page.evaluate("scrollY") - 900) < 2
        page.evaluate("window.second = true")
        page.click(".pause")
        time.sleep(1.5)
        assert page.evaluate("window.second") is True, "it stays as long as its reader says so"
        page.click(".pause")
        page.wait(
            "window.second === undefined && document.documentElement.dataset.drawn !== undefined"
        )
        # Complete: it is loaded once more and then stays.
        writer.judge()
        job.make(["html"])
        page.wait("document.documentElement.dataset.refresh === undefined")
        page.wait("document.documentElement.dataset.drawn !== undefined")
        assert page.evaluate("document.querySelector('[data-arm=post]').ariaPressed") == "false"
        assert page.evaluate("document.querySelector('.answer').textContent").startswith(
            "At the rate"
        )
        assert verdict_table(writer.folder)[1]["verdict"] in page.evaluate(
            "document.querySelector('#verdicts').textContent"
        )
        assert page.complaints == [] and page.requests == []
