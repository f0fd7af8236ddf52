"""Reads a report's page without a browser."""

import csv
from html.parser import HTMLParser
from pathlib import Path
from typing import Any


class Page(HTMLParser):
    """Tables by id with their cells' texts and sort keys, elements with their attributes, visible
    text.
    """

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[tuple[str, str]]]] = {}
        self.headers: dict[str, list[str]] = {}
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._table, self._cell, self._header, self._silent = "", None, False, False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.elements.append((tag, found))
        self._silent = self._silent or tag in ("script", "style")
        if tag == "div" and found.get("class") == "table":
            self._table = str(found["id"])
            self.tables[self._table], self.headers[self._table] = [], []
        elif tag == "tr" and self._table:
            self.tables[self._table].append([])
        elif tag in ("td", "th") and self._table:
            self._header = "data-sort" not in found
            self._cell = (found.get("data-sort") or "", "")

    def handle_endtag(self, tag: str) -> None:
        self._silent = self._silent and tag not in ("script", "style")
        if tag in ("td", "th") and self._cell is not None:
            sort, text = self._cell[0], " ".join(self._cell[1].split())
            if self._header:
                self.headers[self._table].append(text)
            else:
                self.tables[self._table][-1].append((text, sort))
            self._cell = None
        elif tag == "table" and self._table:
            self.tables[self._table] = [row for row in self.tables[self._table] if row]
            self._table = ""

    def handle_data(self, data: str) -> None:
        if self._silent:
            return
        self.text += data
        if self._cell is not None:
            self._cell = (self._cell[0], self._cell[1] + data)

    def column(self, table: str, header: str) -> list[tuple[str, str]]:
        """(text, sort key) of every cell of a column."""
        at = self.headers[table].index(header)
        return [row[at] for row in self.tables[table]]


def read_page(path: Path) -> Page:
    """The page in a file."""
    return Page(path.read_text(encoding="utf-8"))


def read_csv(path: Path) -> list[dict[str, Any]]:
    """The rows of a CSV file, all text."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
