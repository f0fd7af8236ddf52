"""A report as files: a page that needs no network, Markdown with SVG beside it, a PDF, numbers and
LaTeX tables.
"""

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import cache, partial
from html import escape
from pathlib import Path
from typing import Any, get_args

import jinja2

from andrea.analysis.figures import theme
from andrea.analysis.formats import latex, machine
from andrea.analysis.formats.pdf import render_pdf
from andrea.analysis.report import Code, Figure, Item, Report
from andrea.errors import UserError
from andrea.store.files import write_atomic
from andrea.text import names

_WHEEL = Path(__file__).parents[2] / "content" / "reports"
SHIPPED = _WHEEL if _WHEEL.is_dir() else Path(__file__).parents[3] / "reports"
"""Folder of the reports that come with andrea: inside a wheel, else beside the package."""


_REFRESH = ' data-refresh="{}"'
"""Attribute of the page that makes it load itself again, after so many seconds."""


class Raw(str):
    """Markdown that is markup already."""


def template_environment(folder: Path, *, markdown: bool = False) -> jinja2.Environment:
    """Return templates from `folder`/templates first, then the shipped ones. Every value is escaped
    for its format.
    """
    loader = jinja2.FileSystemLoader([folder / "templates", SHIPPED / "templates"])
    environment = jinja2.Environment(
        loader=loader,
        autoescape=not markdown,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_escape_markdown if markdown else None,
    )
    kinds: dict[str, Any] = {
        kind.__name__.lower(): partial(_is_instance, kind) for kind in get_args(Item)
    }
    environment.tests |= kinds
    environment.filters |= {"raw": Raw, "fence": _fenced_code}
    return environment


def _is_instance(kind: type, item: object) -> bool:
    return isinstance(item, kind)


def render_page(report: Report, folder: Path, drawings: Mapping[str, str], refresh: int = 0) -> str:
    """Return the page: styles, scripts and figures inside it.

    Args:
        report: what to show.
        folder: of the report's script; its templates/ come first.
        drawings: of `draw_figures`.
        refresh: seconds after which the page loads itself again; 0 for never.
    """
    specs = {
        figure.name: {**names.printable_in(figure.spec), "width": "container"}
        for figure in report.figures()
    }
    template = template_environment(folder).get_template("report.html.j2")
    page = template.render(
        report=report,
        bundle=_scripts() if specs else "",
        specs=specs,
        drawings={
            name: drawing.replace("<svg ", '<svg aria-hidden="true" ', 1)
            for name, drawing in drawings.items()
        },
        variables=theme.page_stylesheet(),
        refresh=_REFRESH.format(refresh) if refresh else "",
    )
    return page.lstrip()


def stop_reloading(page: Path) -> None:
    """Keep a page from loading itself again: nobody builds it any more."""
    text = page.read_text(encoding="utf-8")
    settled = re.sub(_REFRESH.format(r"\d+"), "", text, count=1)
    if settled != text:
        write_atomic(page, settled)


def render_print_page(report: Report, folder: Path, files: Mapping[str, str]) -> str:
    """Return the page for paper: no scripts, drawings as images.

    Args:
        report: what to show.
        folder: of the report's script; its templates/ come first.
        files: drawings that stand alone, of `standalone_svg`, by name.
    """
    images = {
        name: f"data:image/svg+xml;base64,{b64encode(drawing.encode()).decode()}"
        for name, drawing in files.items()
    }
    template = template_environment(folder).get_template("report.print.html.j2")
    return template.render(report=report, images=images).lstrip()


@cache
def _scripts() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script, safe inside a page."""
    import vl_convert

    bundle: str = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # its stub forgets the default snippet
    return bundle.replace("</script", "<\\/script")


def draw_figures(report: Report) -> dict[str, str]:
    """Return every figure as SVG by name, its colours the page's variables (`theme.resolve_colors`
    makes one that stands alone).
    """
    import vl_convert

    drawings = {}
    for figure in report.figures():
        try:
            # A control character would end the process: names are text, whoever wrote them.
            drawing = str(
                vl_convert.vegalite_to_svg(names.printable_in(figure.spec), allowed_base_urls=[])
            )
        except ValueError as error:
            fault = " ".join(line.strip() for line in str(error).splitlines()[:2])
            raise UserError(f"figure {figure.name!r} cannot be drawn: {fault}") from error
        drawings[figure.name] = _number_clips(_UNSEEN.sub("", drawing), figure.name)
    return drawings


_UNSEEN = re.compile(r'<path [^<>]* opacity="0"/>')
"""A mark that only holds a tooltip, in thousands: a drawing has none."""


def standalone_svg(figure: Figure, drawing: str) -> str:
    """Return a drawing as a file: plain colours, and above it the legend that a page shows as
    buttons.
    """
    head = re.match(r'<svg[^>]* width="(\d+)" height="(\d+)" viewBox="0 0 \1 \2">', drawing)
    if head is None or not figure.legend:
        return theme.resolve_colors(drawing)
    width, height = int(head[1]), int(head[2])
    marks, x, row = [], 8, 0
    for label, color in figure.legend.values():
        advance = 30 + 8 * len(label)  # no font is measured here: a little more than letters take
        if x > 8 and x + advance > width:
            x, row = 8, row + 1
        y = 20 * row
        marks.append(f'<rect x="{x}" y="{y + 6}" width="11" height="11" rx="3" fill="{color}"/>')
        marks.append(
            f'<text x="{x + 17}" y="{y + 16}" '
            f'fill="{theme.css_color("ink")}">{escape(names.printable(label))}</text>'
        )
        x += advance
    strip = 20 * (row + 1) + 6
    legend = (
        f'<g transform="translate(0,{-strip})" font-family="{theme.FONT}" font-size="12">'
        f'<rect width="{width}" height="{strip}" fill="{theme.css_color("paper")}"/>'
        f"{''.join(marks)}</g>"
    )
    taller = head[0].replace(
        f'height="{height}" viewBox="0 0', f'height="{height + strip}" viewBox="0 {-strip}'
    )
    taller = taller.replace(f'{width} {height}">', f'{width} {height + strip}">')
    return theme.resolve_colors(taller + legend + drawing[head.end() :])


def _number_clips(drawing: str, name: str) -> str:
    """Number clips within their figure: unique in a page, and the same whenever the figure is
    drawn.
    """
    numbers: dict[str, int] = {}
    return re.sub(
        r"\bclip(\d+)\b",
        lambda clip: f"{name}-clip{numbers.setdefault(clip[1], len(numbers))}",
        drawing,
    )


def render_markdown(report: Report, folder: Path) -> str:
    """Return the same report in Markdown; its figures are `figures/<name>.svg`."""
    return (
        template_environment(folder, markdown=True)
        .get_template("report.md.j2")
        .render(report=report)
    )


def write_report(
    report: Report, folder: Path, out: Path, formats: Sequence[str], refresh: int = 0
) -> list[Path]:
    """Write the report in these formats; every file is replaced in one step, none before all pages
    are rendered.

    Args:
        report: what to show.
        folder: of the report's script; its templates/ come first.
        out: folder to write to.
        formats: of html, md, pdf, json, tex, csv, parquet.
        refresh: seconds after which the page loads itself again; 0 for never.

    Returns:
        The files; the page first where there is one.
    """
    written: list[Path] = []

    def write_file(name: str, content: str | bytes) -> None:
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content)
        written.append(path)

    pages: dict[str, str | bytes] = {}
    drawings = draw_figures(report) if {"html", "md", "pdf"} & set(formats) else {}
    files = {
        figure.name: standalone_svg(figure, drawings[figure.name])
        for figure in report.figures()
        if drawings
    }
    if "html" in formats:
        pages["report.html"] = render_page(report, folder, drawings, refresh)
    if "md" in formats:
        pages["report.md"] = render_markdown(report, folder)
        for name, drawing in files.items():
            pages[f"figures/{name}.svg"] = drawing
    if "pdf" in formats:
        pages["report.pdf"] = render_pdf(render_print_page(report, folder, files))
    if "json" in formats:
        pages["report.json"] = machine.format_json(report)
    if "tex" in formats:
        for table in report.shown():
            pages[f"{table.name}.tex"] = latex.render_table(table, report.title.split(" · ")[0])
        pages["report.tex"] = latex.render_document(report)
    for name, page in pages.items():
        write_file(name, page)
    for name, frame in report.tables().items() if {"csv", "parquet"} & set(formats) else ():
        if "csv" in formats:
            write_file(f"{name}.csv", machine.format_csv(frame))
        if "parquet" in formats:
            write_file(f"{name}.parquet", machine.format_parquet(frame))
    return written


def _escape_markdown(value: Any) -> Any:
    """Return text that Markdown and the HTML inside it take literally."""
    if isinstance(value, Raw | jinja2.Undefined):
        return value
    return " ".join(str(value).split()).translate(_MARKDOWN_ESCAPES)


# A code host takes text between two dollars for a formula, even after a backslash.
_MARKDOWN_ESCAPES = str.maketrans(
    {sign: f"\\{sign}" for sign in "\\`*_[]|#~"}
    | {"&": "&amp;", "<": "&lt;", ">": "&gt;", "$": "&#36;"}
)


def _fenced_code(code: Code) -> Raw:
    """Return a fenced block whose fence is longer than any inside it."""
    ticks = "```"
    while ticks in code.body:
        ticks += "`"
    return Raw(f"{ticks}{code.language}\n{code.body.rstrip()}\n{ticks}")
