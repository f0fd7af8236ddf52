"""The pages of the kinds leaderboard, claims, run and sweep in a real browser."""

from pathlib import Path

import pytest
import stored
from analysis_store import Writer, finished, swept
from browser import Browser

from andrea.analysis.formats.build import ReportJob

REPORTS = Path(__file__).parents[1] / "reports"
pytestmark = pytest.mark.slow

WIDE = """[...document.querySelectorAll(".plot svg")]
  .filter((drawing) => drawing.getBoundingClientRect().right > innerWidth)
  .map((drawing) => drawing.closest("figure").id)"""
BARE = """[...document.querySelectorAll("figure")]
  .filter((figure) => !figure.querySelector(".plot svg path[aria-label][d], .plot svg text[aria-label]"))
  .map((figure) => figure.id)"""
AXE = """axe.run(document).then((told) => told.violations
  .filter((v) => ['serious', 'critical'].includes(v.impact)).map((v) => [v.id, v.nodes[0].html]))"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of every kind, from a store with a good study, a stalled arm, another size and a
    sweep.
    """
    root = tmp_path_factory.mktemp("kinds")
    good = finished(root, digest="a", effects={"post": 0.09})
    larger = finished(root, digest="b", effects={"post": 0.05})
    resolved = stored.study_json(larger.folder, "resolved.json")
    resolved["arms"]["pre"]["parameters"]["mlp"] *= 10
    larger.folder.write("resolved.json", resolved)
    fates = {"none": {1: "stalled", 2: "diverged"}}
    finished(
        root, name="norm <script>", digest="c", arms=("layernorm", "none"), effects={}, fates=fates
    )
    made = {kind: job(good, kind).make(["html"])[0] for kind in ("leaderboard", "claims")}
    run = next(run["run_id"] for run in stored.planned(good.folder) if run["phase"] == "replicate")
    made["run"] = ReportJob(good.store, REPORTS / "run.py", run=run).make(["html"])[0]
    sweep = swept(tmp_path_factory.mktemp("swept"), trials=24)
    made["sweep"] = ReportJob(sweep.store, REPORTS / "sweep.py", (sweep.folder,)).make(["html"])[0]
    return made


def job(writer: Writer, kind: str) -> ReportJob:
    return ReportJob(writer.store, REPORTS / f"{kind}.py")


@pytest.mark.parametrize("kind", ["leaderboard", "claims", "run", "sweep"])
def test_a_page_draws_everything_and_keeps_nobody_out(
    browser: Browser, axe: str, pages: dict[str, Path], kind: str
) -> None:
    with browser.page(pages[kind], 360) as page:
        assert page.complaints == [] and page.requests == []
        assert page.evaluate(BARE) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert page.evaluate(WIDE) == []
        page.evaluate(axe)
        assert page.evaluate(AXE) == []
        page.set_media(dark=True)
        assert (
            page.evaluate(AXE.replace("document", "document, {runOnly: ['color-contrast']}")) == []
        )


def test_a_click_hides_a_groups_rows_in_the_forest(
    browser: Browser, pages: dict[str, Path]
) -> None:
    marks = "[...document.querySelectorAll('#forest .plot path[aria-label]')]"
    worse = f"{marks}.filter((path) => path.ariaLabel.includes('verdict: worse')).length"
    with browser.page(pages["leaderboard"]) as page:
        assert page.evaluate(worse) >= 1
        page.click("#forest [data-arm=worse]")
        page.wait(f"{worse} === 0")
        assert page.complaints == []


def test_a_pointer_on_a_trial_follows_it_across_the_axes(
    browser: Browser, pages: dict[str, Path]
) -> None:
    paths = "[...document.querySelectorAll('#parallel-coordinates .plot path')]"
    thick = f"{paths}.filter((path) => path.getAttribute('stroke-width') === '4').length"
    mark = f"{paths}.find((path) => /trial: 7; parameter: train.lr/.test(path.ariaLabel))"
    middle = "((box) => [box.x + box.width / 2, box.y + box.height / 2])"
    with browser.page(pages["sweep"]) as page:
        assert page.evaluate(thick) == 0
        page.evaluate(f"{mark}.scrollIntoView({{block: 'center'}})")
        x, y = page.evaluate(f"{middle}({mark}.getBoundingClientRect())")
        page.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        page.wait(f"{thick} === 1")
