"""What a report is made of: sections of text, tables, figures and code, free of any format."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import pandas as pd

from andrea.analysis.tables.frames import Frames
from andrea.errors import UserError, nearest
from andrea.text import numbers as text

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)


def _require_name(kind: str, name: object) -> None:
    """A name is a file's and an anchor's: nothing that a path, a page or a shell would read
    otherwise.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name == "report":
        raise UserError(
            f"{kind} {name!r}: its name becomes a file's; use letters, digits, - . and _, and "
            "another than 'report'"
        )


@dataclass(frozen=True)
class Column:
    """One column of a table as it is shown."""

    key: str | tuple[str, ...]
    """Column of the frame; several for what is shown together, as an interval's ends. The first one
    sorts.
    """
    header: str
    show: Callable[..., str] = text.plain
    """Writes the value or values of `key`."""
    numeric: bool = False
    """Aligned right, sorted by number."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The frame's columns behind it."""
        return (self.key,) if isinstance(self.key, str) else self.key


def numbers(
    key: str | tuple[str, ...], header: str, show: Callable[..., str] = text.loss
) -> Column:
    """A column of numbers."""
    return Column(key, header, show, numeric=True)


def intervals(show: Callable[[Any], str]) -> Callable[[Any, Any], str]:
    """Return what writes an interval, each end of it by `show`."""
    return partial(text.between, show=show)


@dataclass(frozen=True)
class Cell:
    """A value as it is shown, and the value that sorts it."""

    text: str
    sort: str
    numeric: bool
    badge: str = ""
    """The text's first word, where it is shown as a badge."""

    @property
    def rest(self) -> str:
        """The text without the badge."""
        return self.text[len(self.badge) :].strip()


@dataclass(frozen=True)
class Table:
    """A table: the frame holds raw numbers and goes to CSV whole, the columns say how it is
    read.
    """

    name: str
    """File name without an ending, unique in a report."""
    caption: str
    frame: pd.DataFrame
    columns: Sequence[Column]
    sortable: bool = True
    stacked: bool = False
    """On a phone every row becomes a block, a line per cell, instead of a table to scroll."""
    mark: str | None = None
    """Column whose first words are shown as badges (verdicts, outcomes)."""

    def __post_init__(self) -> None:
        _require_name("Table", self.name)

    def rows(self) -> list[list[Cell]]:
        """What is shown, row by row."""
        return self._rows

    @cached_property
    def _rows(self) -> list[list[Cell]]:
        records = self.frame.to_dict("records")
        missing = [key for column in self.columns for key in column.keys if key not in self.frame]
        if records and missing:
            hint = nearest(str(missing[0]), map(str, self.frame))
            raise UserError(f"table {self.name!r}: no column {missing[0]!r}; {hint}")
        return [[_cell(column, record, self.mark) for column in self.columns] for record in records]


def _cell(column: Column, record: dict[Any, Any], mark: str | None) -> Cell:
    values = [record[key] for key in column.keys]
    sort = ""
    if not text.absent(values[0]):
        sort = repr(float(values[0])) if column.numeric else str(values[0])
    shown = column.show(*values)
    return Cell(shown, sort, column.numeric, shown.split(" ")[0] if column.key == mark else "")


def facts_table(name: str, caption: str, facts: Sequence[tuple[str, str]]) -> Table:
    """Return a table of names and what is said of them, in this order."""
    frame = pd.DataFrame(facts, columns=["what", "how"])
    return Table(name, caption, frame, [Column("what", ""), Column("how", "")], sortable=False)


@dataclass(frozen=True)
class Figure:
    """A figure: one Vega-Lite specification, which is interactive on the page and an SVG
    beside it.
    """

    name: str
    """File name without an ending, unique in a report."""
    caption: str
    """What to see in it."""
    spec: dict[str, Any]
    legend: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Arm → (label, colour): the buttons that hide and show the arm."""
    keys: dict[str, str] = field(default_factory=dict)
    """What other marks mean: sign → meaning."""

    def __post_init__(self) -> None:
        _require_name("Figure", self.name)

    @property
    def description(self) -> str:
        """What is drawn, in a sentence, for those who do not see it."""
        return str(self.spec.get("description") or self.caption)


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    body: str


@dataclass(frozen=True)
class Bullets:
    """A list of short statements."""

    items: Sequence[str]


@dataclass(frozen=True)
class Callout:
    """Something that must not be overlooked."""

    title: str
    body: str
    kind: str = "warning"
    """warning or note."""


@dataclass(frozen=True)
class Code:
    """Text to copy, folded where it is long."""

    title: str
    body: str
    language: str = "yaml"
    folded: bool = True


Item = Table | Figure | Text | Bullets | Callout | Code
_KINDS = "Table, Figure, Text, Bullets, Callout and Code"


@dataclass(frozen=True)
class Section:
    """A titled part of a report."""

    title: str
    items: Sequence[Item]

    @property
    def anchor(self) -> str:
        """Its name in links; no table and no figure has it."""
        return "about-" + "-".join(
            "".join(c if c.isalnum() else " " for c in self.title.lower()).split()
        )


@dataclass(frozen=True)
class Report:
    """A report: the first screen, then sections, and the tables that are written as files."""

    title: str
    question: str
    answer: str
    """One sentence."""
    head: Sequence[Item]
    """The rest of the first screen."""
    sections: Sequence[Section]
    frames: dict[str, pd.DataFrame] | Frames
    """Whole tables by file name; every shown table is written too."""
    details: Sequence[tuple[str, str]] = ()
    """Small facts under the title: name, value."""
    verdicts: Sequence[Mapping[str, Any]] = ()
    """What was judged, for programs (report.json): one mapping per verdict, as in verdict.json."""

    def __post_init__(self) -> None:
        for item in self.items():
            if not isinstance(item, Item):
                raise UserError(
                    f"this report has a {type(item).__name__} among its items; they are of {_KINDS}"
                )
        for name in self.frames:
            _require_name("frame", name)
        names = Counter(item.name for item in self.items() if isinstance(item, Table | Figure))
        twice = [name for name, n in names.items() if n > 1]
        if twice:
            raise UserError(
                f"this report has two tables or figures named {twice[0]!r}; names are files' and "
                "unique"
            )

    def items(self) -> list[Item]:
        """Everything in reading order."""
        return [*self.head, *(item for section in self.sections for item in section.items)]

    def figures(self) -> list[Figure]:
        """Every figure in reading order."""
        return [item for item in self.items() if isinstance(item, Figure)]

    def shown(self) -> list[Table]:
        """Every table that is shown, in reading order."""
        return [item for item in self.items() if isinstance(item, Table)]

    def tables(self) -> Mapping[str, pd.DataFrame]:
        """Every file of numbers: the whole tables, and those that are shown and not among them."""
        shown = {item.name: item.frame for item in self.shown() if item.name not in self.frames}
        return self.frames | shown
