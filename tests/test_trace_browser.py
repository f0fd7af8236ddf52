"""The traced token's page in a real browser: quiet, offline, on a phone and in the dark, whatever
the text says.
"""

import json
import re
import subprocess
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from waiting import PATIENT_S

from andrea.cli.app import app

pytestmark = pytest.mark.slow
EVIL = "<img src=x onerror=window.alerted=1><script>window.alerted=1</script>"

# The page itself forbids scripts; one beside it looks into its frame, which can also be as narrow
# as a phone.
FRAME = """<!DOCTYPE html><meta name="color-scheme" content="light dark"><body style="margin: 0"><pre id="probe"></pre>
<iframe srcdoc="{page}" style="border: 0; width: {width}px; height: 900px"></iframe>
<script>
const frame = document.querySelector("iframe");
frame.onload = () => {{
  const page = frame.contentDocument, view = frame.contentWindow;
  page.querySelector("details").open = true;
  const box = (found) => found.getBoundingClientRect();
  // Heads of tables that are blocks on a phone are there to be heard, not seen.
  const clipped = (head) => head && view.getComputedStyle(head).clipPath !== "none";
  const luminance = (color) => color.match(/[\\d.]+/g).slice(0, 3).reduce((sum, part) => sum + Number(part) / 3, 0);
  const style = view.getComputedStyle(page.body);
  const drawn = [...page.querySelectorAll(".stream .draw svg")].map(box);
  const shown = (cell) => view.getComputedStyle(cell).display !== "none";
  document.querySelector("#probe").textContent = JSON.stringify({{
    width: view.innerWidth, scroll: page.documentElement.scrollWidth, alerted: view.alerted ?? false,
    beyond: [...page.querySelectorAll("table *, p, dl")]
      .filter((part) => !clipped(part.closest("thead")) && box(part).right > view.innerWidth + 0.5).length,
    gaps: drawn.slice(1).map((next, i) => Math.abs(next.top - drawn[i].bottom)),
    rows: drawn.length, columns: [...page.querySelectorAll(".stream thead th")].filter(shown).length,
    paper: luminance(style.backgroundColor), ink: luminance(style.color),
    requests: view.performance.getEntriesByType("resource").map((entry) => entry.name)
      .filter((name) => !name.startsWith("data:")),
    unnamed: [...page.querySelectorAll("[role=region], [tabindex]")]
      .filter((part) => !part.getAttribute("aria-label") && !part.getAttribute("aria-labelledby")).length,
    heard: [...page.querySelectorAll("svg")].filter((part) => part.getAttribute("aria-hidden") !== "true").length,
    text: page.querySelector(".passage").textContent,
  }});
}};
</script>"""


def look(chromium: str, page: Path, width: int = 1280, *flags: str) -> tuple[dict[str, Any], str]:
    """What the page is like at this width, and the browser's console."""
    frame = page.with_name("frame.html")
    frame.write_text(
        FRAME.format(page=escape(page.read_text(encoding="utf-8")), width=width), encoding="utf-8"
    )
    command = [
        chromium,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
    ]
    command += [
        f"--user-data-dir={page.parent / 'profile'}",
        "--window-size=1400,900",
        "--virtual-time-budget=5000",
    ]
    command += ["--enable-logging=stderr", *flags, "--dump-dom", frame.as_uri()]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=PATIENT_S, check=True)
    found = re.search(r'<pre id="probe">(.*?)</pre>', answer.stdout, re.DOTALL)
    assert found and found[1], answer.stderr[-2000:]
    console = "\n".join(line for line in answer.stderr.splitlines() if "CONSOLE" in line)
    return json.loads(unescape(found[1])), console


def written(path: Path, text: str, *options: str) -> Path:
    """The page of a fresh model."""
    arguments = [
        "trace",
        text,
        "--token",
        "7",
        "--logit-lens",
        "--set",
        "model.context=80",
        *options,
    ]
    result = CliRunner().invoke(app, [*arguments, "--html", str(path)], prog_name="andrea")
    assert result.exit_code == 0, result.output
    return path


@pytest.mark.parametrize(
    "setting",
    [
        "norm_placement=pre",
        "norm_placement=post",
        "norm_placement=parallel_two",
        "residual=off",
        "init_std=1.5",
    ],
)
def test_on_a_phone_nothing_scrolls_sideways_and_the_stream_has_no_gaps(
    chromium: str, tmp_path: Path, setting: str
) -> None:
    page = written(
        tmp_path / "trace.html", "Fellow citizens of the Senate", "--set", f"model.{setting}"
    )
    told, console = look(chromium, page, 360)
    assert told["width"] == 360 and told["scroll"] <= 360 and told["beyond"] == 0
    assert told["rows"] == 14 and max(told["gaps"]) < 0.1 and told["columns"] == 4
    assert console == "" and told["requests"] == []


def test_on_a_wide_screen_every_column_is_there_and_everything_that_can_be_focused_has_a_name(
    chromium: str, tmp_path: Path
) -> None:
    page = written(tmp_path / "trace.html", "Fellow citizens", "--set", "model.norm_placement=post")
    told, console = look(chromium, page)
    assert told["columns"] == 8 and max(told["gaps"]) < 0.1 and told["beyond"] == 0
    assert told["unnamed"] == 0 and told["heard"] == 0, "what is drawn is said by the table"
    assert told["paper"] > 240 and told["ink"] < 60 and console == ""


def test_in_the_dark_it_is_light_on_dark(chromium: str, tmp_path: Path) -> None:
    page = written(tmp_path / "trace.html", "Fellow citizens")
    told, _ = look(chromium, page, 1280, "--blink-settings=preferredColorScheme=0")
    assert told["paper"] < 40 and told["ink"] > 200


def test_a_text_that_is_markup_is_a_text(chromium: str, tmp_path: Path) -> None:
    told, console = look(chromium, written(tmp_path / "trace.html", EVIL))
    assert (
        told["text"] == EVIL
        and told["alerted"] is False
        and told["requests"] == []
        and console == ""
    )
