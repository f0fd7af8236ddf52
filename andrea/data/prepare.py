"""Text into tokens, once: `prepare` fills `<root>/data/<fingerprint>/` or finds it filled.

Documents are encoded one after the other and appended, so memory follows the longest document, not
the corpus. The folder appears by one rename under a lock: two commands at once prepare it once, and
a kill leaves nothing half done.
"""

import contextlib
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from andrea.data import tokenizers
from andrea.data.config import DataConfig, Part
from andrea.data.index import Index
from andrea.data.prepared import FILES, FORMAT, Prepared, read_meta, written
from andrea.data.sources import Scan, scan
from andrea.data.split import PARTS, Split, split
from andrea.errors import StudyError
from andrea.store.digest import digest
from andrea.store.files import locked, write_json

Progress = Callable[[str, float], None]
"""Called with what is being done and the share of it that is done."""
Check = Callable[[Prepared], object]
"""Raises where the text does not do."""


def fingerprint(cfg: DataConfig, root: Path | None = None) -> str:
    """Hex digest of what determines the tokens: bytes and names of the documents, split, tokenizer
    and its version.

    Args:
        root: folder of a run store, which may know the files from an earlier reading.

    Raises:
        UserError: the source is missing, empty or not UTF-8.
    """
    return _fingerprint(cfg, scan(cfg.source, Index(root)))


def prepare(
    cfg: DataConfig, root: Path, progress: Progress | None = None, check: Check | None = None
) -> Prepared:
    """Tokenize a corpus, or find it tokenized. A damaged folder is made anew. What is untouched
    since it was last read (sources) or written (tokens) is not read again.

    Args:
        root: folder of the run store.
        progress: called now and then with what is being done and the share that is done.
        check: is shown the tokens before they get their place; a text that it refuses leaves
            nothing behind.

    Raises:
        UserError: the source is missing, empty, not UTF-8, or too small for its split or tokenizer.
        StudyError: the disk refused, or a file changed meanwhile.
    """
    index = Index(root)
    scanned = scan(cfg.source, index)
    name = _fingerprint(cfg, scanned)
    folder = root / "data" / name
    meta = read_meta(folder, thorough=True)
    check = check or (lambda prepared: None)
    if meta is None:
        parts = split(scanned.documents, cfg.split)
        try:
            meta = _fill(folder, cfg, scanned, parts, progress or (lambda note, share: None), check)
        except BrokenPipeError:
            raise  # nobody reads what `progress` says any more
        except OSError as error:
            raise StudyError(
                f"cannot write the prepared data to {folder}: {error.strerror or error}"
            ) from error
    prepared = Prepared(folder, meta)
    check(prepared)
    index.save()
    return prepared


def _fingerprint(cfg: DataConfig, scanned: Scan) -> str:
    total = sum(cfg.split)
    return digest(
        {
            "format": FORMAT,
            "documents": [[document.name, document.digest] for document in scanned.documents],
            "split": [share / total for share in cfg.split],
            "tokenizer": [cfg.tokenizer, tokenizers.version(cfg.tokenizer)],
        }
    )


def _fill(
    folder: Path, cfg: DataConfig, scanned: Scan, parts: Split, progress: Progress, check: Check
) -> dict[str, Any]:
    lock = folder.with_name(f"{folder.name}.lock")
    with locked(lock, make_folder=True):
        found = read_meta(folder, thorough=True)
        if found is not None:
            return found
        fresh = folder.with_name(f".{folder.name}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        try:
            meta = _build(fresh, cfg, scanned, parts, progress)
            meta["fingerprint"] = folder.name
            write_json(fresh / "meta.json", meta)
            check(Prepared(fresh, meta))
            shutil.rmtree(folder, ignore_errors=True)
            fresh.rename(folder)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            lock.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                folder.parent.rmdir()
            raise
        return meta


def _build(
    fresh: Path, cfg: DataConfig, scanned: Scan, parts: Split, progress: Progress
) -> dict[str, Any]:
    tokenizer = _tokenizer(cfg.tokenizer, parts, progress)
    dtype = np.dtype("<u4" if tokenizer.vocab_size > 65_535 else "<u2")
    unigram = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    counts: dict[str, dict[str, int]] = {}
    for part in PARTS:
        counts[part], seen = _write_part(
            fresh, part, tokenizer, dtype, _watched(parts, part, progress)
        )
        if part == "train":
            unigram = seen
    write_json(fresh / "tokenizer.json", tokenizer.describe())
    np.save(fresh / "token_bytes.npy", tokenizer.token_bytes())
    np.save(fresh / "unigram.npy", unigram)
    return {
        "format": FORMAT,
        "source": cfg.source,
        "tokenizer": cfg.tokenizer,
        "split": list(cfg.split),
        "vocab_size": tokenizer.vocab_size,
        "dtype": dtype.str,
        "documents": len(scanned.documents),
        "duplicates": scanned.duplicates,
        "empty": scanned.empty,
        "bytes": sum(document.size for document in scanned.documents),
        "characters": sum(counts[part]["characters"] for part in PARTS),
        "tokens": {part: counts[part]["tokens"] for part in PARTS},
        "parts": counts,
        "files": {name: written(fresh / name) for name in FILES},
        "versions": {"tokenizer": tokenizers.version(cfg.tokenizer)},
    }


def _tokenizer(name: str, parts: Split, progress: Progress) -> tokenizers.Tokenizer:
    if name == "byte":
        return tokenizers.ByteTokenizer()
    if name == "char":
        # Of all parts: a character that only the held-out text has must have a token too.
        whole = PARTS[:1] if parts.single else PARTS
        documents = (document for part in whole for document in parts.parts[part])
        return tokenizers.CharTokenizer(
            frozenset().union(*(set(document.read()) for document in documents))
        )
    texts = (text for _, text in _watched(parts, "train", progress, doing="reading"))
    return tokenizers.train_bpe(texts, int(name.removeprefix("bpe-")))


def _watched(
    parts: Split, part: Part, progress: Progress, doing: str = "encoding"
) -> Iterator[tuple[str, str]]:
    total = sum(document.size for document in parts.parts[part])
    done = 0
    for document, (name, text) in zip(parts.parts[part], parts.texts(part), strict=True):
        progress(f"{doing} {part}", done / total)
        yield name, text
        done += document.size
    progress(f"{doing} {part}", 1.0)


def _write_part(
    fresh: Path,
    part: Part,
    tokenizer: tokenizers.Tokenizer,
    dtype: np.dtype[Any],
    texts: Iterable[tuple[str, str]],
) -> tuple[dict[str, int], Any]:
    """Append the tokens of a part's documents to its file; returns its counts and how often each
    token occurs.
    """
    names: list[str] = []
    starts: list[int] = []
    counts = {"documents": 0, "bytes": 0, "characters": 0, "tokens": 0}
    seen = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    with (fresh / f"{part}.bin").open("wb") as file:
        for name, text in texts:
            names.append(name)
            starts.append(counts["tokens"])
            for ids in _encoded(tokenizer, text):
                file.write(ids.astype(dtype).tobytes())
                seen += np.bincount(ids, minlength=tokenizer.vocab_size)
                counts["tokens"] += ids.size
            counts["documents"] += 1
            counts["characters"] += len(text)
            counts["bytes"] += sum(len(piece.encode()) for piece in tokenizers.pieces(text))
    write_json(fresh / f"{part}.documents.json", {"names": names, "starts": starts})
    return counts, seen


def _encoded(tokenizer: tokenizers.Tokenizer, text: str) -> Iterator[tokenizers.Ids]:
    for piece in tokenizers.pieces(text):
        yield tokenizer.encode(piece)
    if tokenizer.end is not None:
        yield np.array([tokenizer.end], dtype=np.int64)
