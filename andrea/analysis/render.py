"""A report as files: one HTML page that needs no network, Markdown with SVG beside it, CSV and Parquet."""

import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from andrea.analysis import report as parts
from andrea.analysis import theme
from andrea.analysis.report import Figure, Report
from andrea.store.files import write_atomic

_WHEEL = Path(__file__).parents[1] / "content" / "reports"
SHIPPED = _WHEEL if _WHEEL.is_dir() else Path(__file__).parents[2] / "reports"
"""Folder of the reports that come with andrea: inside a wheel, else beside the package."""


class Raw(str):
    """Markdown that is markup already."""


def environment(folder: Path, *, markdown: bool = False) -> jinja2.Environment:
    """Templates from `folder`/templates first, then the shipped ones. Every value is escaped for its format."""
    loader = jinja2.FileSystemLoader([folder / "templates", SHIPPED / "templates"])
    made = jinja2.Environment(
        loader=loader,
        autoescape=not markdown,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_markdown if markdown else None,
    )
    kinds = {name: getattr(parts, name) for name in ("Table", "Figure", "Text", "Bullets", "Callout", "Code")}
    made.tests |= {name.lower(): lambda item, kind=kind: isinstance(item, kind) for name, kind in kinds.items()}
    made.filters |= {"raw": Raw, "fence": _fence}
    return made


def html(report: Report, folder: Path, drawings: Mapping[str, str]) -> str:
    """The page: styles, scripts and figures inside it.

    Args:
        report: what to show.
        folder: of the report's script; its templates/ come first.
        drawings: of `drawn`.
    """
    bundle = _scripts()
    specs = {figure.name: {**figure.spec, "width": "container"} for figure in report.figures()}
    template = environment(folder).get_template("report.html.j2")
    page = template.render(report=report, bundle=bundle, specs=specs, drawings=drawings, variables=theme.stylesheet())
    return page.lstrip()


def _scripts() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, safe inside a page."""
    import vl_convert

    bundle: str = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # its stub forgets the default snippet
    return bundle.replace("</script", "<\\/script")


def drawn(report: Report) -> dict[str, str]:
    """Every figure as SVG by name, its colours the page's variables (`theme.plain` makes one that stands alone)."""
    import vl_convert

    drawings = {}
    for figure in report.figures():
        drawing = str(vl_convert.vegalite_to_svg(figure.spec, allowed_base_urls=[]))
        drawings[figure.name] = _own_ids(drawing, figure.name)
    return drawings


def alone(figure: Figure, drawing: str) -> str:
    """A drawing as a file: plain colours, and above it the legend that a page shows as buttons."""
    head = re.match(r'<svg[^>]* width="(\d+)" height="(\d+)" viewBox="0 0 \1 \2">', drawing)
    if head is None or not figure.legend:
        return theme.plain(drawing)
    width, height = int(head[1]), int(head[2])
    marks, x, row = [], 8, 0
    for label, color in figure.legend.values():
        advance = 30 + 8 * len(label)  # no font is measured here: a little more than letters take
        if x > 8 and x + advance > width:
            x, row = 8, row + 1
        y = 20 * row
        marks.append(f'<rect x="{x}" y="{y + 6}" width="11" height="11" rx="3" fill="{color}"/>')
        marks.append(f'<text x="{x + 17}" y="{y + 16}" fill="{theme.var("ink")}">{escape(label)}</text>')
        x += advance
    strip = 20 * (row + 1) + 6
    legend = (
        f'<g transform="translate(0,{-strip})" font-family="{theme.FONT}" font-size="12">'
        f'<rect width="{width}" height="{strip}" fill="{theme.var("paper")}"/>{"".join(marks)}</g>'
    )
    taller = head[0].replace(f'height="{height}" viewBox="0 0', f'height="{height + strip}" viewBox="0 {-strip}')
    taller = taller.replace(f'{width} {height}">', f'{width} {height + strip}">')
    return theme.plain(taller + legend + drawing[head.end() :])


def _own_ids(drawing: str, name: str) -> str:
    """Clips numbered within their figure: unique in a page, and the same whenever the figure is drawn."""
    numbers: dict[str, int] = {}
    return re.sub(r"\bclip(\d+)\b", lambda found: f"{name}-clip{numbers.setdefault(found[1], len(numbers))}", drawing)


def markdown(report: Report, folder: Path) -> str:
    """The same report in Markdown; its figures are `figures/<name>.svg`."""
    return environment(folder, markdown=True).get_template("report.md.j2").render(report=report)


def write(report: Report, folder: Path, out: Path, formats: Sequence[str]) -> list[Path]:
    """Write the report in these formats; every file is replaced in one step.

    Returns:
        The files; the page first where there is one.
    """
    out.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []

    def put(name: str, content: str | bytes) -> None:
        path = out / name
        path.parent.mkdir(exist_ok=True)
        write_atomic(path, content)
        written.append(path)

    drawings = drawn(report) if {"html", "md"} & set(formats) else {}
    if "html" in formats:
        put("report.html", html(report, folder, drawings))
    if "md" in formats:
        put("report.md", markdown(report, folder))
        for figure in report.figures():
            put(f"figures/{figure.name}.svg", alone(figure, drawings[figure.name]))
    for name, frame in report.tables().items():
        if "csv" in formats:
            put(f"{name}.csv", frame.to_csv(index=False, lineterminator="\n"))
        if "parquet" in formats:
            put(f"{name}.parquet", columnar(frame).to_parquet(index=False))
    return written


def columnar(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with columns of mixed values (settings of several kinds) as text, which Parquet can hold."""
    told = frame.copy()
    for key in told.columns:
        if told[key].dtype == object and len({type(value) for value in told[key].dropna()}) > 1:
            told[key] = [None if value is None else str(value) for value in told[key]]
    return told


def _markdown(value: Any) -> Any:
    """Text that Markdown and the HTML inside it take literally."""
    if isinstance(value, Raw | jinja2.Undefined):
        return value
    text = " ".join(str(value).split())
    for sign in "\\`*_[]|#~":
        text = text.replace(sign, f"\\{sign}")
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _fence(code: parts.Code) -> Raw:
    """A fenced block whose fence is longer than any inside it."""
    ticks = "```"
    while ticks in code.body:
        ticks += "`"
    return Raw(f"{ticks}{code.language}\n{code.body.rstrip()}\n{ticks}")
