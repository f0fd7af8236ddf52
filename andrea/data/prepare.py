"""Text into tokens, once: `prepare` fills `<root>/data/<fingerprint>/` or finds it filled.

Documents are encoded and appended one after the other, so that memory grows with the longest
document and not with the corpus. The folder appears by one rename under a lock: two commands at
once prepare it once, and a kill leaves nothing half done.
"""

import contextlib
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from andrea.data import tokenizers
from andrea.data.config import DataConfig, Part
from andrea.data.prepared import CorpusMeta, FileRecord, PartCounts, Prepared, read_meta
from andrea.data.sources.index import FileIndex
from andrea.data.sources.scan import Scan, scan_source
from andrea.data.split import PARTS, Split, split_documents
from andrea.data.tokenizers import Ids, Tokenizer, split_pieces, tokenizer_version
from andrea.errors import StudyError
from andrea.store.digest import digest
from andrea.store.files import locked, write_json

Progress = Callable[[str, float], None]
"""Called with the work at hand and the share of it that is done."""
Check = Callable[[Prepared], object]
"""Raises where the text is unsuitable."""


def fingerprint(cfg: DataConfig, root: Path | None = None) -> str:
    """Hex digest of everything that determines the tokens: bytes and names of the documents, split,
    tokenizer and its version.

    Args:
        root: folder of a run store, whose index may have the files from an earlier reading.

    Raises:
        UserError: the source is missing, empty or not UTF-8.
    """
    return _corpus_digest(cfg, scan_source(cfg.source, FileIndex(root)))


def prepare(
    cfg: DataConfig, root: Path, progress: Progress | None = None, check: Check | None = None
) -> Prepared:
    """Tokenize a corpus, or find it tokenized. A damaged folder is made anew. Sources that are
    unchanged since they were read, and tokens that are unchanged since they were written, are not
    read again.

    Args:
        root: folder of the run store.
        progress: called now and then with the work at hand and the share of it that is done.
        check: called with the tokens before they get their place; a text that it refuses leaves
            nothing behind.

    Raises:
        UserError: the source is missing, empty, not UTF-8, or too small for its split or tokenizer.
        StudyError: the disk refused, or a file changed meanwhile.
    """
    progress = progress or (lambda work, share: None)
    check = check or (lambda prepared: None)
    index = FileIndex(root)
    scanned = scan_source(cfg.source, index)
    folder = root / "data" / _corpus_digest(cfg, scanned)
    meta = read_meta(folder, thorough=True)
    if meta is None:
        parts = split_documents(scanned.documents, cfg.split)
        try:
            meta = _fill_folder(folder, cfg, scanned, parts, progress, check)
        except BrokenPipeError:
            raise  # the reader of what `progress` prints is gone: no fault of the disk
        except OSError as error:
            message = f"cannot write the prepared data to {folder}: {error.strerror or error}"
            raise StudyError(message) from error
    prepared = Prepared(folder, meta)
    check(prepared)
    index.save()
    return prepared


def _corpus_digest(cfg: DataConfig, scanned: Scan) -> str:
    total = sum(cfg.split)
    return digest(
        {
            "format": CorpusMeta.FORMAT,
            "documents": [[document.name, document.digest] for document in scanned.documents],
            "split": [share / total for share in cfg.split],
            "tokenizer": [cfg.tokenizer, tokenizer_version(cfg.tokenizer)],
        }
    )


def _fill_folder(
    folder: Path, cfg: DataConfig, scanned: Scan, parts: Split, progress: Progress, check: Check
) -> CorpusMeta:
    lock = folder.with_name(f"{folder.name}.lock")
    with locked(lock, make_folder=True):
        # Another command may have filled it while this one waited for the lock.
        meta = read_meta(folder, thorough=True)
        if meta is not None:
            return meta
        fresh = folder.with_name(f".{folder.name}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        try:
            meta = _write_corpus(fresh, cfg, scanned, parts, progress)
            write_json(fresh / "meta.json", meta.model_dump(mode="json"))
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


def _write_corpus(
    fresh: Path, cfg: DataConfig, scanned: Scan, parts: Split, progress: Progress
) -> CorpusMeta:
    """Write every file but meta.json into the folder `fresh`; returns what meta.json will hold."""
    tokenizer = _make_tokenizer(cfg.tokenizer, parts, progress)
    # Little-endian, so that the files are the same on every machine.
    dtype = np.dtype("<u4" if tokenizer.vocab_size > 65_535 else "<u2")
    counts: dict[Part, PartCounts] = {}
    for part in PARTS:
        texts = _read_with_progress(parts, part, progress, "encoding")
        counts[part], occurrences = _write_part(fresh, part, tokenizer, dtype, texts)
        if part == "train":
            np.save(fresh / "unigram.npy", occurrences)
    write_json(fresh / "tokenizer.json", tokenizer.to_dict())
    np.save(fresh / "token_bytes.npy", tokenizer.token_bytes())
    return CorpusMeta(
        format=CorpusMeta.FORMAT,
        source=cfg.source,
        tokenizer=cfg.tokenizer,
        split=list(cfg.split),
        vocab_size=tokenizer.vocab_size,
        dtype=dtype.str,
        documents=len(scanned.documents),
        duplicates=scanned.duplicates,
        empty=scanned.empty,
        bytes=sum(document.size for document in scanned.documents),
        characters=sum(part.characters for part in counts.values()),
        tokens={part: counts[part].tokens for part in PARTS},
        parts=counts,
        files={name: FileRecord.of_file(fresh / name) for name in CorpusMeta.FILES},
        versions={"tokenizer": tokenizer_version(cfg.tokenizer)},
        fingerprint=_corpus_digest(cfg, scanned),
    )


def _make_tokenizer(name: str, parts: Split, progress: Progress) -> Tokenizer:
    if name == "byte":
        return tokenizers.ByteTokenizer()
    if name == "char":
        # Of all parts: a character that only the held-out text has must have a token too.
        whole = PARTS[:1] if parts.is_one_document else PARTS
        characters: set[str] = set()
        for part in whole:
            for document in parts.parts[part]:
                characters.update(document.read_text())
        return tokenizers.CharTokenizer(characters)
    texts = (text for _, text in _read_with_progress(parts, "train", progress, "reading"))
    return tokenizers.train_bpe(texts, int(name.removeprefix("bpe-")))


def _read_with_progress(
    parts: Split, part: Part, progress: Progress, verb: str
) -> Iterator[tuple[str, str]]:
    total = sum(document.size for document in parts.parts[part])
    done = 0
    for document, (name, text) in zip(parts.parts[part], parts.read_texts(part), strict=True):
        progress(f"{verb} {part}", done / total)
        yield name, text
        done += document.size
    progress(f"{verb} {part}", 1.0)


def _write_part(
    fresh: Path,
    part: Part,
    tokenizer: Tokenizer,
    dtype: np.dtype[Any],
    texts: Iterable[tuple[str, str]],
) -> tuple[PartCounts, Ids]:
    """Write the tokens of a part's documents into its file; returns its counts and the occurrences
    of each token, [V].
    """
    names: list[str] = []
    starts: list[int] = []
    counts = PartCounts()
    occurrences = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    with (fresh / f"{part}.bin").open("wb") as file:
        for name, text in texts:
            names.append(name)
            starts.append(counts.tokens)
            # Piece by piece: the tokens of a long document are never all in memory.
            for ids in _encode_pieces(tokenizer, text):
                file.write(ids.astype(dtype).tobytes())
                occurrences += np.bincount(ids, minlength=tokenizer.vocab_size)
                counts.tokens += ids.size
            counts.documents += 1
            counts.characters += len(text)
            counts.bytes += sum(len(piece.encode()) for piece in split_pieces(text))
    write_json(fresh / f"{part}.documents.json", {"names": names, "starts": starts})
    return counts, occurrences


def _encode_pieces(tokenizer: Tokenizer, text: str) -> Iterator[Ids]:
    for piece in split_pieces(text):
        yield tokenizer.encode(piece)
    if tokenizer.end is not None:
        yield np.array([tokenizer.end], dtype=np.int64)
