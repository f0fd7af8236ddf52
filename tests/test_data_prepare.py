"""Preparing a corpus: the same folder for the same text, whole or not at all, once under two
commands at once.
"""

import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import PATIENT_S

from andrea.data import prepare as room
from andrea.data import prepared as prepared_module
from andrea.data.config import DataConfig
from andrea.data.prepare import fingerprint, prepare
from andrea.data.prepared import Prepared, load_tokenizer, open_prepared, require_vocab
from andrea.data.sources import index
from andrea.data.split import PARTS
from andrea.errors import StudyError, UserError


def corpus(folder: Path, documents: int = 40, words: int = 60) -> DataConfig:
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(7)
    for i in range(documents):
        text = " ".join(rng.choice(["état", "union", "of", "the", "we", "nation", "—"], size=words))
        (folder / f"speech-{i:02}.txt").write_text(f"{i}: {text}\n")
    return DataConfig(source=f"text:{folder}", split=(60, 20, 20))


def text_of(prepared: Prepared, part: str) -> str:
    return load_tokenizer(prepared).decode(prepared.tokens(part))  # type: ignore[arg-type]


@pytest.mark.parametrize("tokenizer", ["byte", "char", "bpe-270"])
def test_every_document_is_in_one_part_and_comes_back_exactly(
    tmp_path: Path, tokenizer: str
) -> None:
    cfg = corpus(tmp_path / "texts").model_copy(update={"tokenizer": tokenizer})
    prepared = prepare(cfg, tmp_path / "runs")
    decoder = load_tokenizer(prepared)
    seen: dict[str, str] = {}
    for part in PARTS:
        names, starts = prepared.documents(part)
        tokens = prepared.tokens(part)
        for name, start, end in zip(names, starts, [*starts[1:], len(tokens)], strict=True):
            assert name not in seen, "a document in two parts would leak"
            seen[name] = decoder.decode(tokens[start:end]).removesuffix("<|endoftext|>")
    assert seen == {path.name: path.read_text() for path in (tmp_path / "texts").iterdir()}
    assert prepared.vocab_size == decoder.vocab_size


def test_one_document_keeps_its_order_and_loses_only_the_gaps(tmp_path: Path) -> None:
    text = "".join(f"é{i} " for i in range(30_000))
    (tmp_path / "book.txt").write_text(text)
    prepared = prepare(DataConfig(source=f"text:{tmp_path}/book.txt"), tmp_path / "runs")
    train, tune, verdict = (text_of(prepared, part) for part in PARTS)
    assert text.startswith(train) and text.endswith(verdict)
    assert text[len(train) + 1024 :].startswith(tune)
    assert len(train) + len(tune) + len(verdict) == len(text) - 2 * 1024
    assert "\ufffd" not in train + tune + verdict


def test_counts_are_the_counts_of_the_text(tmp_path: Path) -> None:
    cfg = corpus(tmp_path / "texts").model_copy(update={"tokenizer": "char"})
    prepared = prepare(cfg, tmp_path / "runs")
    texts = [path.read_text() for path in (tmp_path / "texts").iterdir()]
    assert prepared.meta.documents == 40
    assert prepared.meta.bytes == sum(len(t.encode()) for t in texts)
    assert prepared.meta.characters == sum(map(len, texts)) == sum(prepared.meta.tokens.values())
    for part in PARTS:
        tokens = prepared.tokens(part)
        assert prepared.meta.tokens[part] == len(tokens)
        assert prepared.meta.parts[part].bytes == prepared.token_bytes()[tokens].sum()
    assert np.array_equal(
        prepared.unigram_counts(),
        np.bincount(prepared.tokens("train"), minlength=prepared.vocab_size),
    )


def test_bpe_learns_from_the_train_part_only(tmp_path: Path) -> None:
    cfg = corpus(tmp_path / "texts").model_copy(update={"tokenizer": "bpe-270"})
    first = prepare(cfg, tmp_path / "runs")
    for name in first.documents("verdict")[0]:
        (tmp_path / "texts" / name).write_text(f"quite another text about {name} " * 50)
    second = prepare(cfg, tmp_path / "runs")
    assert second.fingerprint != first.fingerprint
    assert load_tokenizer(second).to_dict() == load_tokenizer(first).to_dict()


def test_the_fingerprint_follows_what_determines_the_tokens_and_nothing_else(
    tmp_path: Path,
) -> None:
    cfg = corpus(tmp_path / "texts")
    before = fingerprint(cfg)
    same = cfg.model_copy(update={"eval_tokens": 99, "eval_part": "tune", "split": (6.0, 2.0, 2.0)})
    assert fingerprint(same) == before
    (tmp_path / "texts").rename(tmp_path / "moved")
    assert fingerprint(cfg.model_copy(update={"source": f"text:{tmp_path}/moved"})) == before
    moved = cfg.model_copy(update={"source": f"text:{tmp_path}/moved"})
    assert fingerprint(moved.model_copy(update={"tokenizer": "char"})) != before
    assert fingerprint(moved.model_copy(update={"split": (50, 25, 25)})) != before
    (tmp_path / "moved" / "speech-00.txt").write_text("other words")
    assert fingerprint(moved) != before


def test_a_second_call_finds_the_folder_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = corpus(tmp_path / "texts")
    notes: list[str] = []
    first = prepare(cfg, tmp_path / "runs", lambda note, share: notes.append(note))
    assert "encoding train" in notes
    monkeypatch.setattr(room, "_write_corpus", lambda *args: pytest.fail("prepared twice"))
    assert prepare(cfg, tmp_path / "runs").meta == first.meta == open_prepared(first.folder).meta
    assert first.folder == tmp_path / "runs" / "data" / fingerprint(cfg)


def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are read or hashed from now on."""
    seen: list[str] = []

    def note(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda path, *more: (seen.append(path.name), original(path, *more))[1]

    monkeypatch.setattr(Path, "read_bytes", note(Path.read_bytes))
    monkeypatch.setattr(prepared_module, "file_digest", note(prepared_module.file_digest))
    return seen


def settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every file have been changed long enough ago."""
    monkeypatch.setattr(index, "SETTLED_NS", -1)


def test_what_is_untouched_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = corpus(tmp_path / "texts")
    settle(monkeypatch)
    first = prepare(cfg, tmp_path / "runs")
    seen = reads(monkeypatch)
    assert prepare(cfg, tmp_path / "runs").fingerprint == first.fingerprint
    assert fingerprint(cfg, tmp_path / "runs") == first.fingerprint
    assert seen == []
    assert fingerprint(cfg) == first.fingerprint and len(seen) == 40


@pytest.mark.parametrize("kept", ["size", "size and time"])
def test_a_touched_source_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    cfg = corpus(tmp_path / "texts")
    settle(monkeypatch)
    first = prepare(cfg, tmp_path / "runs")
    path = tmp_path / "texts" / "speech-07.txt"
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(b"7:", b"8:", 1))
    if kept == "size and time":
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    seen = reads(monkeypatch)
    assert fingerprint(cfg, tmp_path / "runs") != first.fingerprint
    assert seen == ["speech-07.txt"]


def test_a_source_changed_just_now_is_not_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = corpus(tmp_path / "texts")
    prepare(cfg, tmp_path / "runs")
    seen = reads(monkeypatch)
    prepare(cfg, tmp_path / "runs")
    assert len(seen) == 40


@pytest.mark.parametrize("content", ["{", "[]", '{"a": 1}', ""])
def test_a_damaged_index_costs_a_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    cfg = corpus(tmp_path / "texts")
    settle(monkeypatch)
    first = prepare(cfg, tmp_path / "runs")
    (tmp_path / "runs" / "data" / "sources.json").write_text(content)
    assert prepare(cfg, tmp_path / "runs").fingerprint == first.fingerprint
    seen = reads(monkeypatch)
    assert prepare(cfg, tmp_path / "runs").fingerprint == first.fingerprint
    assert seen == []


def test_a_copied_cache_is_checked_in_full_and_found_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = corpus(tmp_path / "texts")
    first = prepare(cfg, tmp_path / "runs")
    os.utime(first.folder / "train.bin")
    seen = reads(monkeypatch)
    monkeypatch.setattr(room, "_write_corpus", lambda *args: pytest.fail("prepared twice"))
    assert prepare(cfg, tmp_path / "runs").meta == first.meta
    assert seen.count("train.bin") == 1 and "tune.bin" not in seen


@pytest.mark.parametrize(
    "damage", ["half", "flipped", "no meta", "torn meta", "old format", "no file"]
)
def test_a_damaged_cache_is_made_anew(tmp_path: Path, damage: str) -> None:
    cfg = corpus(tmp_path / "texts")
    prepared = prepare(cfg, tmp_path / "runs")
    whole = prepared.tokens("train").tolist()
    tokens, meta = prepared.folder / "train.bin", prepared.folder / "meta.json"
    if damage == "half":
        tokens.write_bytes(tokens.read_bytes()[:100])
    elif damage == "flipped":
        tokens.write_bytes(b"\xff" + tokens.read_bytes()[1:])
    elif damage == "no meta":
        meta.unlink()
    elif damage == "torn meta":
        meta.write_text(meta.read_text()[:40])
    elif damage == "old format":
        meta.write_text(json.dumps({**prepared.meta.model_dump(), "format": 0}))
    else:
        tokens.unlink()
    if damage != "flipped":
        with pytest.raises(StudyError, match="missing or damaged"):
            open_prepared(prepared.folder)
    assert prepare(cfg, tmp_path / "runs").tokens("train").tolist() == whole


def test_a_kill_in_the_middle_leaves_nothing_that_looks_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = corpus(tmp_path / "texts")
    (tmp_path / "runs" / "data" / f".{fingerprint(cfg)}.new").mkdir(parents=True)
    (tmp_path / "runs" / "data" / f".{fingerprint(cfg)}.new" / "train.bin").write_bytes(
        b"left by a kill"
    )
    prepared = prepare(cfg, tmp_path / "runs")
    assert [p.name for p in (tmp_path / "runs" / "data").iterdir() if p.is_dir()] == [
        prepared.fingerprint
    ]


def test_a_full_disk_is_a_failure_that_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(room, "_write_part", full)
    with pytest.raises(StudyError, match="No space left"):
        prepare(corpus(tmp_path / "texts"), tmp_path / "runs")
    assert not (tmp_path / "runs" / "data").exists()


def prepare_elsewhere(cfg: DataConfig, root: Path, start: object, out: object) -> None:
    start.wait()  # type: ignore[attr-defined]
    notes: list[str] = []
    prepared = prepare(cfg, root, lambda note, share: notes.append(note))
    out.put((prepared.fingerprint, bool(notes), int(prepared.tokens("train").sum())))  # type: ignore[attr-defined]


def test_two_commands_at_once_prepare_once(tmp_path: Path) -> None:
    cfg = corpus(tmp_path / "texts", documents=120)
    context = multiprocessing.get_context("fork")
    start, out = context.Barrier(2), context.Queue()
    workers = [
        context.Process(target=prepare_elsewhere, args=(cfg, tmp_path / "runs", start, out))
        for _ in range(2)
    ]
    for worker in workers:
        worker.start()
    results = [out.get(timeout=PATIENT_S) for _ in workers]
    for worker in workers:
        worker.join(PATIENT_S)
    assert len({(name, total) for name, _, total in results}) == 1
    assert sorted(built for _, built, _ in results) == [False, True]


def test_more_than_65535_tokens_take_four_bytes_each(tmp_path: Path) -> None:
    points = [c for c in range(32, 0x11000) if not 0xD800 <= c < 0xE000]
    (tmp_path / "all.txt").write_text("".join(map(chr, points)), newline="")
    cfg = DataConfig(source=f"text:{tmp_path}/all.txt", tokenizer="char")
    prepared = prepare(cfg, tmp_path / "runs")
    assert prepared.vocab_size == len(points) > 65_535
    assert prepared.meta.dtype == "<u4"
    assert (
        text_of(prepared, "verdict")
        == "".join(map(chr, points))[-prepared.meta.tokens["verdict"] :]
    )


def test_a_model_needs_a_token_for_everything_the_tokenizer_writes(tmp_path: Path) -> None:
    prepared = prepare(corpus(tmp_path / "texts"), tmp_path / "runs")
    assert require_vocab(prepared, None) == 256
    assert require_vocab(prepared, 8449) == 8449
    with pytest.raises(
        UserError, match=r"model\.vocab_size 255: the tokenizer byte has 256 tokens"
    ):
        require_vocab(prepared, 255)


def test_bad_text_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(b"\xff")
    with pytest.raises(UserError, match="not UTF-8"):
        prepare(DataConfig(source=f"text:{tmp_path}/bad.txt"), tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_text_that_the_caller_refuses_leaves_nothing_and_whoever_waits_for_it_makes_its_own(
    tmp_path: Path,
) -> None:
    cfg = corpus(tmp_path / "texts")
    waiting = threading.Thread(target=prepare, args=(cfg, tmp_path / "runs"))

    def refuse(prepared: Prepared) -> None:
        assert prepared.meta.tokens["train"] > 0
        waiting.start()
        time.sleep(0.3)
        raise UserError("too short for this model")

    with pytest.raises(UserError, match="too short"):
        prepare(cfg, tmp_path / "runs", check=refuse)
    waiting.join()
    assert open_prepared(tmp_path / "runs" / "data" / fingerprint(cfg)).vocab_size == 256
