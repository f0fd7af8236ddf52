"""The page in a real browser: drawn, quiet, offline, usable on a phone and in the dark."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from analysis_store import finished, swept

from andrea.analysis.build import make_report

REPORTS = Path(__file__).parents[1] / "reports"
pytestmark = pytest.mark.slow

PROBE = """
<pre id="probe"></pre><script>
(async () => {
  const figures = document.querySelectorAll("figure");
  const limit = Date.now() + 30000;
  while (document.documentElement.dataset.drawn !== String(figures.length) && Date.now() < limit) {
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  const marks = (arm) => [...document.querySelectorAll(".plot path[aria-label]")]
    .filter((path) => path.getAttribute("aria-label").includes(`arm: ${arm}`)).length;
  const luminance = (color) => color.match(/[\\d.]+/g).slice(0, 3).reduce((sum, part) => sum + Number(part) / 3, 0);
  const style = getComputedStyle(document.body);
  const axis = document.querySelector(".plot .role-axis-label text");
  const told = {
    width: innerWidth, scroll: document.documentElement.scrollWidth, figures: figures.length,
    drawn: Number(document.documentElement.dataset.drawn), alerted: window.alerted ?? false,
    svgs: document.querySelectorAll(".plot.vega-embed svg").length,
    wide: [...document.querySelectorAll(".plot svg")]
      .filter((svg) => svg.getBoundingClientRect().right > innerWidth).length,
    cut: [...document.querySelectorAll("table.stacked")]
      .filter((table) => table.scrollWidth > table.parentElement.clientWidth).length,
    requests: performance.getEntriesByType("resource")
      .map((entry) => entry.name).filter((name) => !name.startsWith("data:")),
    paper: luminance(style.backgroundColor), ink: luminance(style.color),
    axis: luminance(getComputedStyle(axis).fill), before: marks("post"),
  };
  const button = document.querySelector('[data-arm="post"]');
  if (button) {
    button.focus();
    told.focused = document.activeElement === button;
    button.click();
    await new Promise((resolve) => setTimeout(resolve, 1500));
    told.hidden = marks("post");
    told.others = marks("pre");
    told.pressed = button.getAttribute("aria-pressed");
    button.click();
    await new Promise((resolve) => setTimeout(resolve, 1500));
    told.shown = marks("post");
  }
  const table = document.querySelector("#runs table") ?? document.querySelector("table.sortable");
  const column = table.closest("#runs") ? 6 : 0;
  const losses = () => [...table.tBodies[0].rows].map((row) => row.children[column].dataset.sort);
  const header = table.tHead.rows[0].children[column];
  header.querySelector("button").click();
  told.up = losses();
  header.querySelector("button").click();
  told.down = losses();
  told.sorted = header.getAttribute("aria-sort");
  document.querySelector("#probe").textContent = JSON.stringify(told);
  parent.postMessage(JSON.stringify(told), "*");
})();
</script>
"""


# A window cannot be as narrow as a phone, a frame can.
FRAME = """<!DOCTYPE html><meta name="color-scheme" content="light dark"><body style="margin: 0"><pre id="probe"></pre>
<iframe src="probed.html" style="border: 0; width: {width}px; height: 900px"></iframe>
<script>onmessage = (event) => {{ document.querySelector("#probe").textContent = event.data; }};</script>"""


def look(chromium: str, page: Path, tmp_path: Path, width: int = 1280, *flags: str) -> tuple[dict[str, Any], str]:
    """What the probe found in the page, and the browser's console."""
    probed, frame = tmp_path / "probed.html", tmp_path / "frame.html"
    frame.write_text(FRAME.format(width=width))
    body, end, rest = page.read_text(encoding="utf-8").rpartition("</body>")
    probed.write_text(body + PROBE + end + rest, encoding="utf-8")
    command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command += ["--window-size=1400,900", "--virtual-time-budget=60000", "--enable-logging=stderr", *flags]
    answer = subprocess.run(
        [*command, "--dump-dom", frame.as_uri()], capture_output=True, text=True, timeout=180, check=True
    )
    found = re.search(r'<pre id="probe">(.*?)</pre>', answer.stdout, re.DOTALL)
    assert found and found[1], answer.stderr[-2000:]
    told: dict[str, Any] = json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    console = "\n".join(line for line in answer.stderr.splitlines() if "CONSOLE" in line)
    return told, console


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a judged ablation."""
    writer = finished(tmp_path_factory.mktemp("study"), fates={"post": {2: "stalled"}})
    return make_report(writer.store, writer.folder, ["html"], REPORTS / "comparison.py", None)[0]


def test_s45_the_page_draws_its_figures_offline_and_quietly(chromium: str, page: Path, tmp_path: Path) -> None:
    told, console = look(chromium, page, tmp_path)
    assert told["drawn"] == told["figures"] == told["svgs"] == 7
    assert console == ""
    assert told["requests"] == []
    assert told["paper"] > 240 and told["ink"] < 60


def test_a_click_in_the_legend_hides_an_arm_and_tables_sort(chromium: str, page: Path, tmp_path: Path) -> None:
    told, _ = look(chromium, page, tmp_path)
    assert told["focused"] and told["pressed"] == "false"
    assert told["before"] > 0 and told["hidden"] == 0 and told["others"] > 0
    assert told["shown"] == told["before"]
    up = [float(key) for key in told["up"] if key]
    down = [float(key) for key in told["down"] if key]
    assert up == sorted(up) and down == sorted(down, reverse=True) and len(up) == 24
    assert told["sorted"] == "descending"


def test_on_a_phone_nothing_scrolls_sideways(chromium: str, page: Path, tmp_path: Path) -> None:
    told, console = look(chromium, page, tmp_path, 360)
    assert told["width"] == 360 and told["scroll"] <= 360 and told["wide"] == 0
    assert told["cut"] == 0, "the verdicts and the protocol are read without scrolling in their boxes"
    assert console == ""


def test_in_the_dark_the_page_and_its_figures_are_light_on_dark(chromium: str, page: Path, tmp_path: Path) -> None:
    told, _ = look(chromium, page, tmp_path, 1280, "--blink-settings=preferredColorScheme=0")
    assert told["paper"] < 40 and told["ink"] > 200 and told["axis"] > 140


def test_names_that_are_markup_do_nothing(chromium: str, tmp_path: Path) -> None:
    evil = "<img src=x onerror=window.alerted=1><script>window.alerted=1</script>"
    writer = finished(tmp_path / "study", {evil: 0.0}, name="evil", arms=("pre", evil), question=evil)
    page = make_report(writer.store, writer.folder, ["html"], REPORTS / "comparison.py", None)[0]
    told, console = look(chromium, page, tmp_path)
    assert told["alerted"] is False and told["drawn"] == told["figures"] and console == ""


def test_a_sweeps_page_draws_too(chromium: str, tmp_path: Path) -> None:
    writer = swept(tmp_path / "study")
    page = make_report(writer.store, writer.folder, ["html"], REPORTS / "sweep.py", None)[0]
    told, console = look(chromium, page, tmp_path, 360)
    assert told["drawn"] == told["figures"] == 3 and console == "" and told["scroll"] <= 360
