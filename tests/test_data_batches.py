"""Batches and evaluated tokens: pure, shared by all arms, fixed, and never from each other's
part.
"""

from math import log
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from andrea.data.batches import (
    EvalSet,
    batch_offsets,
    epochs_trained,
    evaluation_set,
    require_batches,
    training_batch,
    unique_tokens,
)
from andrea.data.config import DataConfig
from andrea.data.prepare import prepare
from andrea.data.prepared import CorpusMeta, Prepared
from andrea.errors import UserError

T = 16
GOLDEN = [[738, 8136, 8151, 1399], [9093, 314, 4823, 9541]]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("batches")
    (folder / "texts").mkdir()
    rng = np.random.default_rng(3)
    for i in range(60):
        words = rng.choice(
            ["état", "union", "of", "the", "we", "nation"], size=int(rng.integers(20, 200))
        )
        (folder / "texts" / f"{i:02}.txt").write_text(f"{i} " + " ".join(words))
    return prepare(DataConfig(source=f"text:{folder}/texts", split=(60, 20, 20)), folder)


def judged(
    prepared: Prepared, part: str = "verdict", tokens: int = 20 * T, curve: int = 5 * T
) -> EvalSet:
    cfg = DataConfig.model_validate(
        {"eval_part": part, "eval_tokens": tokens, "curve_tokens": curve}
    )
    return evaluation_set(prepared, cfg, T)


def test_batch_k_depends_on_seed_k_and_shape_alone(prepared: Prepared) -> None:
    forward = [training_batch(prepared, 5, k, 4, T) for k in range(20)]
    again = {k: training_batch(prepared, 5, k, 4, T) for k in reversed(range(20))}
    for k, (x, y) in enumerate(forward):
        assert np.array_equal(x, again[k][0]) and np.array_equal(y, again[k][1])
        assert x.shape == y.shape == (4, T) and x.dtype == y.dtype == np.int64
        assert np.array_equal(x[:, 1:], y[:, :-1])
    assert len({x.tobytes() for x, _ in forward}) == 20
    assert not np.array_equal(training_batch(prepared, 6, 0, 4, T)[0], forward[0][0])


def test_batches_owe_nothing_to_the_global_generator(prepared: Prepared) -> None:
    np.random.seed(0)
    first = training_batch(prepared, 1, 0, 4, T)[0]
    np.random.seed(1)
    assert np.array_equal(training_batch(prepared, 1, 0, 4, T)[0], first)


def test_a_batch_reads_the_train_part_and_reaches_both_its_ends() -> None:
    drawn = np.concatenate([batch_offsets(T + 3, 1, k, 8, T) for k in range(50)])
    assert set(drawn) == {0, 1, 2}


def test_every_batch_is_a_stretch_of_the_train_part(prepared: Prepared) -> None:
    train = prepared.tokens("train").tobytes()
    x, y = training_batch(prepared, 2, 7, 6, T)
    for row, target in zip(x, y, strict=True):
        assert np.append(row, target[-1]).astype("<u2").tobytes() in train


def test_offsets_of_golden_batches_never_change() -> None:
    assert batch_offsets(10_000, 1, 0, 4, 64).tolist() == GOLDEN[0]
    assert batch_offsets(10_000, 1, 1, 4, 64).tolist() == GOLDEN[1]


def test_evaluation_is_the_same_every_time_and_ignores_the_seed(prepared: Prepared) -> None:
    first, second = judged(prepared), judged(prepared)
    assert first.digest == second.digest
    assert np.array_equal(first.x, second.x) and np.array_equal(first.y, second.y)
    assert first.x.shape == (20, T)


def test_tuning_and_verdict_are_judged_on_different_text(prepared: Prepared) -> None:
    tune, verdict = judged(prepared, "tune"), judged(prepared, "verdict")
    assert tune.digest != verdict.digest
    assert set(tune.names).isdisjoint(verdict.names)
    assert set(tune.names).isdisjoint(prepared.documents("train")[0])
    assert set(verdict.names).isdisjoint(prepared.documents("train")[0])


def test_windows_are_whole_and_no_target_is_judged_twice(prepared: Prepared) -> None:
    everything = judged(prepared, tokens=10**9)
    length = prepared.meta.tokens["verdict"]
    targets = (everything.starts[:, None] + 1 + np.arange(T)).ravel()
    assert len(everything.starts) == (length - 1) // T
    assert len(np.unique(targets)) == targets.size
    assert targets.min() >= 1 and targets.max() == length - 1
    assert np.array_equal(prepared.tokens("verdict")[targets].reshape(-1, T), everything.y)


@given(st.integers(2, 400), st.integers(1, 40), st.integers(1, 30))
@settings(max_examples=200)
def test_windows_fit_any_part(length: int, wanted: int, context: int) -> None:
    from andrea.data.batches import _spaced_windows

    starts = _spaced_windows(length, wanted, context)
    assert len(starts) == min(wanted, (length - 1) // context)
    if len(starts):
        assert starts[0] == 0 and starts[-1] + context <= length - 1
        assert len(starts) == 1 or np.diff(starts).min() >= context


def test_at_least_one_window_is_judged_and_one_drawn(prepared: Prepared) -> None:
    small = judged(prepared, tokens=1, curve=1)
    assert small.x.shape == (1, T)
    assert small.curve.tolist() == [0]


def test_the_curve_is_an_even_subset_of_the_windows(prepared: Prepared) -> None:
    full = judged(prepared)
    assert full.curve.tolist() == [2, 6, 10, 14, 18]
    assert full.curve_bytes == int(prepared.token_bytes()[full.y[full.curve]].sum())
    assert judged(prepared, curve=20 * T).curve.tolist() == list(range(20))


def test_every_target_knows_its_document(prepared: Prepared) -> None:
    full = judged(prepared, tokens=10**9)
    tokens = prepared.tokens("verdict")
    names, starts = prepared.documents("verdict")
    ends = [*starts[1:], len(tokens)]
    for index, (start, end) in enumerate(zip(starts, ends, strict=True)):
        positions = full.starts[:, None] + 1 + np.arange(T)
        inside = (positions >= start) & (positions < end)
        assert np.array_equal(full.document == index, inside), names[index]


def test_the_digest_sees_tokens_and_positions(prepared: Prepared) -> None:
    digests = {judged(prepared, tokens=n * T).digest for n in (5, 6, 20)}
    assert len(digests) == 3


def test_unigram_loss_is_that_of_an_independent_count(prepared: Prepared) -> None:
    full = judged(prepared)
    train = bytes(prepared.tokens("train").astype(np.uint8))
    total = 0.0
    for target in full.y.ravel():
        total -= log((train.count(bytes([int(target)])) + 1) / (len(train) + 256))
    assert full.unigram_loss == pytest.approx(total / full.y.size, abs=1e-12)


def test_unique_tokens_are_those_an_explicit_set_holds(prepared: Prepared) -> None:
    length = prepared.meta.tokens["train"]
    for steps in (0, 1, 7, 200):
        seen: set[int] = set()
        for k in range(steps):
            for start in batch_offsets(length, 4, k, 3, T):
                seen.update(range(start + 1, start + 1 + T))
        assert unique_tokens(prepared, 4, steps, 3, T) == len(seen)
    assert epochs_trained(prepared, 2 * length) == 2.0


def test_a_text_shorter_than_one_batch_is_refused_with_both_numbers(prepared: Prepared) -> None:
    length = prepared.meta.tokens["train"]
    require_batches(prepared, 1, 4)
    require_batches(prepared, (length - 1) // T, T)
    with pytest.raises(
        UserError,
        match=rf"the train part has {length} tokens, one batch of .* needs {length * T + 1}",
    ):
        require_batches(prepared, length, T)
    short = min(prepared.meta.tokens["tune"], prepared.meta.tokens["verdict"])
    with pytest.raises(UserError, match=f"part has {short} tokens, one window"):
        require_batches(prepared, 1, short)
    with pytest.raises(UserError, match="one window"):
        evaluation_set(prepared, DataConfig(), prepared.meta.tokens["verdict"])


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_memory_does_not_grow_with_the_memory_map(tmp_path: Path) -> None:
    size = 200_000_000
    with (tmp_path / "train.bin").open("wb") as file:
        file.truncate(size)
    meta = CorpusMeta.model_construct(dtype="<u2", tokens={"train": size // 2})
    prepared = Prepared(tmp_path, meta)
    training_batch(prepared, 1, 0, 64, 64)
    before = resident()
    for k in range(400):
        training_batch(prepared, 1, k, 64, 64)
    assert resident() - before < 20_000_000
