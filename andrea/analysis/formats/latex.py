"""The tables of a report in LaTeX (booktabs), to be put into a paper with `\\input`."""

import re
import textwrap
from collections.abc import Sequence

from andrea.analysis.report import Cell, Report, Table

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    # Typeset as they stand these would be other signs in some fonts, or join to ligatures.
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "`": r"\textasciigrave{}",
    "'": r"\textquotesingle{}",
    "-": r"{-}",
    "−": r"\ensuremath{-}",
    "–": r"\textendash{}",
    "—": r"\textemdash{}",
    "…": r"\textellipsis{}",
    "\N{NO-BREAK SPACE}": "~",
    "×": r"\texttimes{}",
    "±": r"\textpm{}",
    "·": r"\textperiodcentered{}",
    "µ": r"\textmu{}",
    "°": r"\textdegree{}",
    "√": r"\ensuremath{\surd}",
    "∞": r"\ensuremath{\infty}",
    "≤": r"\ensuremath{\leq}",
    "≥": r"\ensuremath{\geq}",
    "≠": r"\ensuremath{\neq}",
    "≈": r"\ensuremath{\approx}",
    "→": r"\textrightarrow{}",
    "←": r"\textleftarrow{}",
    "₀": r"\textsubscript{0}",
    "₁": r"\textsubscript{1}",
    "₂": r"\textsubscript{2}",
    "₃": r"\textsubscript{3}",
    "²": r"\texttwosuperior{}",
    "³": r"\textthreesuperior{}",
}
_GREEK = {
    letter: rf"\ensuremath{{\{name}}}"
    for letter, name in {
        "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "varepsilon", "η": "eta", "θ": "theta",
        "κ": "kappa", "λ": "lambda", "μ": "mu", "π": "pi", "ρ": "rho", "σ": "sigma", "τ": "tau", "φ": "varphi",
        "χ": "chi", "ω": "omega", "Δ": "Delta", "Σ": "Sigma", "Ω": "Omega",
    }.items()
}  # fmt: skip
SIGNS = _SPECIAL | _GREEK
"""LaTeX's spelling of signs."""
_ESCAPES = str.maketrans(SIGNS)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters but tabs and ends of lines, which are blanks."""

_WIDE = 28
"""Characters from which a column of text is broken into lines."""
_LONG = 45
"""Rows from which a table may break over pages."""
_LETTERS_PER_LINE = 85
"""About what a line of small type holds in an article."""
NEEDS = r"\usepackage[T1]{fontenc} and \usepackage{booktabs,array,graphicx,longtable,textcomp}"
"""What the preamble of a paper must load."""


def escape(text: str) -> str:
    """Return text that LaTeX sets as it stands; letters beyond ASCII stay (pdflatex knows Latin ones,
    LuaLaTeX all).
    """
    line = re.sub(r"[\t\n]+", " ", _CONTROLS.sub("", text))
    return line.translate(_ESCAPES)


def render_table(item: Table, of: str = "") -> str:
    """Return one table: caption, label, rules of booktabs, no wider than the text; over 45 rows one that
    breaks over pages.

    Needs what `NEEDS` says. Same cells as in every other format.

    Args:
        item: the table.
        of: what it is about, which makes its label, `tab:<of>-<name>`, one of several reports in a
            paper.
    """
    cells = item.rows()
    rows = [[escape(cell.text) for cell in row] for row in cells]
    header = [_header_cell(item, cells, i) for i in range(len(item.columns))]
    spec = " ".join(_column_type(item, cells, i) for i in range(len(item.columns)))
    label = "-".join(filter(None, [label_slug(of), item.name]))
    title = rf"\caption{{{escape(item.caption)}}}\label{{tab:{label}}}"
    head = [r"\toprule", " & ".join(header) + r" \\", r"\midrule"] if any(header) else [r"\toprule"]
    body = [" & ".join(row) + r" \\" for row in rows]
    if len(rows) > _LONG:
        lines = [
            r"{\footnotesize\setlength{\tabcolsep}{3pt}",
            rf"\begin{{longtable}}{{@{{}}{spec}@{{}}}}",
            title + r"\\",
            *head,
            r"\endfirsthead",
            # Once more without caption and label: a label that is set on every page is defined
            # several times.
            *head,
            r"\endhead",
            *body,
            r"\bottomrule",
            r"\end{longtable}}",
        ]
    else:
        lines = [
            r"\begin{table}[htbp]",
            r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
            title,
            r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
            rf"\begin{{tabular}}{{@{{}}{spec}@{{}}}}",
            *head,
            *body,
            r"\bottomrule",
            r"\end{tabular}}",
            r"\end{table}",
        ]
    return "\n".join([f"% andrea; needs {NEEDS}", *lines]) + "\n"


def label_slug(text: str) -> str:
    """Return a text as a part of a label: letters and digits of ASCII, the rest as single hyphens."""
    return "-".join(re.findall(r"[a-z0-9]+", text.lower()))


def _count_letters(item: Table, cells: Sequence[Sequence[Cell]], at: int) -> int:
    """Return the letters of the widest cell of a column, or of the longest word over it."""
    return max(map(len, [*(row[at].text for row in cells), *item.columns[at].header.split(" ")]))


def _header_cell(item: Table, cells: Sequence[Sequence[Cell]], at: int) -> str:
    """Return the header of a column, in as many lines as keep it from being wider than the cells."""
    column = item.columns[at]
    lines = textwrap.wrap(
        column.header,
        _count_letters(item, cells, at),
        break_long_words=False,
        break_on_hyphens=False,
    )
    header = r"\\".join(map(escape, lines))
    if len(lines) <= 1:
        return header
    return rf"\shortstack[{'r' if column.numeric else 'l'}]{{{header}}}"


def _column_type(item: Table, cells: Sequence[Sequence[Cell]], at: int) -> str:
    """Return the type of a column: numbers right, short text left, long text in lines of a share of
    the width.
    """
    column = item.columns[at]
    if column.numeric:
        return "r"
    longest = [_count_letters(item, cells, i) for i in range(len(item.columns))]
    if longest[at] <= _WIDE:
        return "l"
    fixed, n_broken = 0, 0
    for letters, other in zip(longest, item.columns, strict=True):
        if other.numeric or letters <= _WIDE:
            fixed += letters
        else:
            n_broken += 1
    share = max(0.22, min(0.6, (1 - fixed / _LETTERS_PER_LINE) / n_broken))
    return rf">{{\raggedright\arraybackslash}}p{{{share:.2f}\linewidth}}"


def render_document(report: Report) -> str:
    """Return a document that shows every table, to look at them: each is `\\input` from its own file."""
    inputs = "\n".join(rf"\input{{{item.name}.tex}}" for item in report.shown())
    return (
        "% Made by andrea. `pdflatex report.tex` (lualatex where names are not in Latin letters).\n"
        "\\documentclass[10pt]{article}\n"
        "\\usepackage[a4paper,landscape,margin=15mm]{geometry}\n"
        "\\usepackage[T1]{fontenc}\n"
        "\\IfFileExists{lmodern.sty}{\\usepackage{lmodern}}{}\n"
        "\\usepackage{booktabs,array,graphicx,longtable,textcomp}\n"
        f"\\title{{{escape(report.question)}}}\n"
        f"\\author{{{escape(report.title)}}}\n"
        "\\date{}\n"
        "\\begin{document}\n"
        "\\maketitle\n"
        f"{escape(report.answer)}\n\n"
        f"{inputs}\n"
        "\\end{document}\n"
    )
