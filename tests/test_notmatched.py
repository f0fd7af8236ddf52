"""What is not matched: everything beside the factor in which an arm differs, and nothing that was
asked to differ.
"""

from pathlib import Path
from typing import Any

import pytest
import stored
from analysis_store import Writer, finished, swept

from andrea.analysis.load import load
from andrea.analysis.tables.not_matched import not_matched_rows


def by_what(writer: Writer, arm: str = "post") -> dict[str, dict[str, Any]]:
    found = not_matched_rows(load(writer.folder, writer.store))
    mine = [row._asdict() for row in found if row.arm == arm]
    assert len({row["what"] for row in mine}) == len(mine)
    return {row["what"]: row for row in mine}


def change(writer: Writer, arm: str, section: str | None = None, **told: Any) -> None:
    """Another resolved arm; with a section, other settings of it."""
    resolved = stored.study_json(writer.folder, "resolved.json")
    place = resolved["arms"][arm]
    (place["config"].setdefault(section, {}) if section else place).update(told)
    writer.folder.write("resolved.json", resolved)


def speeds(writer: Writer, ratio: float, low: float, high: float) -> None:
    """speed.json of two arms whose steps have 512 tokens; the baseline's take 10 ms."""
    steps = {"pre": 0.01, "post": 0.01 * ratio}
    arms = {
        arm: {"step_s": step, "tokens_per_s": 512 / step, "rounds": 20}
        for arm, step in steps.items()
    }
    told = {"post": {"ratio": ratio, "low": low, "high": high}}
    writer.folder.write(
        "speed.json", {"format": 1, "device": "x86_64", "arms": arms, "ratio": told}
    )


def test_counts_rates_and_what_failed_while_tuning(tmp_path: Path) -> None:
    """Of the written study: 96 fewer gains, another rate, two rates at which post stalled."""
    found = by_what(finished(tmp_path))
    parameters = found["parameters"]
    assert (parameters["baseline"], parameters["arm_value"]) == (185088, 184992)
    assert parameters["deviation"] == pytest.approx(-96 / 185088)
    assert found["parameters: norms"]["deviation"] == pytest.approx(-96 / 1248)
    assert found["learning rate"]["unit"] == "rate" and found["learning rate"]["deviation"] < 0
    good = found["successful tuning runs"]
    assert (good["baseline"], good["arm_value"]) == (7, 5) and good[
        "note"
    ] == "diverged or stalled at 0.01, 0.0316"
    assert found.keys() == {
        "parameters",
        "parameters: norms",
        "learning rate",
        "successful tuning runs",
        "tokens per second",
    }


def test_settings_that_were_not_asked_for_and_what_was_solved(tmp_path: Path) -> None:
    writer = finished(tmp_path)
    change(writer, "post", "model", mlp_width=170, final_norm=False)
    change(writer, "pre", "model", mlp_width=None, final_norm=True)
    change(writer, "post", solved={"setting": "model.mlp_width", "was": 192, "became": 170})
    found = by_what(writer)
    solved = found["model.mlp_width"]
    assert (solved["baseline"], solved["arm_value"], solved["deviation"]) == (None, 170, None)
    assert solved["note"] == "solved for by the matching rule: 192 → 170"
    norm = found["model.final_norm"]
    assert (norm["baseline"], norm["arm_value"], norm["deviation"]) == (True, False, None)
    assert norm["note"] == "follows from what was asked"
    assert "model.norm_placement" not in found and "train.lr" not in found


def test_the_centre_of_the_grid_flops_and_memory(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.asked["arms"]["post"]["center"] = 0.1
    writer.save()
    change(writer, "post", flops_per_token=1_770_000.0)
    found = by_what(writer)
    centre = found["centre of the grid"]
    assert (centre["baseline"], centre["arm_value"]) == (0.00316, 0.1)
    assert found["FLOPs per token"]["deviation"] == pytest.approx(0.5)
    assert "peak memory" not in found and "learning rate" not in found  # nothing has run


def test_memory_and_unique_tokens_of_the_replicates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Writer._result

    def result(self: Writer, run: dict[str, Any], *rest: Any) -> dict[str, Any]:
        told = written(self, run, *rest)
        if run["arm"] == "post":
            told["peak_memory_bytes"] += 100_000_000
            told["unique_tokens"] -= 804
        return told

    monkeypatch.setattr(Writer, "_result", result)
    found = by_what(finished(tmp_path))
    assert found["peak memory"]["deviation"] == pytest.approx(100 / 310)
    assert found["peak memory"]["note"] == "median of 5 replicates; ranges do not overlap"
    assert (
        found["unique tokens trained"]["baseline"] - found["unique tokens trained"]["arm_value"]
        == 804
    )
    assert "tokens trained" not in found


def test_resident_memory_that_differs_by_its_noise_is_matched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Writer._result

    def result(self: Writer, run: dict[str, Any], *rest: Any) -> dict[str, Any]:
        return written(self, run, *rest) | {
            "peak_memory_bytes": 310_000_000 + 3_000_000 * (run["arm"] == "post")
        }

    monkeypatch.setattr(Writer, "_result", result)
    assert "peak memory" not in by_what(finished(tmp_path))


def test_memory_that_differs_no_more_between_arms_than_between_runs_is_matched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, sizes = Writer._result, iter(range(100))

    def result(self: Writer, run: dict[str, Any], *rest: Any) -> dict[str, Any]:
        more = 150_000_000 * (run["arm"] == "post") + 60_000_000 * (next(sizes) // 2 % 4)
        return written(self, run, *rest) | {"peak_memory_bytes": 310_000_000 + more}

    monkeypatch.setattr(Writer, "_result", result)
    assert "peak memory" not in by_what(finished(tmp_path))


def test_a_speed_that_was_measured_is_listed_where_it_differs(tmp_path: Path) -> None:
    writer = finished(tmp_path)
    speeds(writer, 1.25, 1.2, 1.3)
    row = by_what(writer)["tokens per second"]
    assert row["baseline"] == pytest.approx(51_200) and row["arm_value"] == pytest.approx(40_960)
    assert row["deviation"] == pytest.approx(-0.2)
    assert (row["low"], row["high"]) == pytest.approx((1 / 1.3 - 1, 1 / 1.2 - 1))
    assert row["note"] == "warm, interleaved, on x86_64; deviation: median within 20 rounds"
    speeds(writer, 1.01, 0.99, 1.02)
    assert "tokens per second" not in by_what(writer)


def test_a_speed_that_was_not_measured_is_not_known_to_be_matched(tmp_path: Path) -> None:
    row = by_what(finished(tmp_path))["tokens per second"]
    assert row["arm_value"] is None and row["deviation"] is None and "not measured" in row["note"]


def test_studies_that_have_hardly_begun_and_sweeps_have_what_is_known(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    assert {"parameters", "parameters: norms", "tokens per second"} == by_what(writer).keys()
    resolved = stored.study_json(writer.folder, "resolved.json")
    for gone in ("parameters", "flops_per_token", "config"):
        for arm in resolved["arms"].values():
            arm.pop(gone)
    writer.folder.write("resolved.json", resolved)
    assert by_what(writer).keys() == {"tokens per second"}
    (writer.folder.path / "resolved.json").unlink()
    assert not_matched_rows(load(writer.folder, writer.store)) == []
    sweep = swept(tmp_path / "sweep")
    assert not_matched_rows(load(sweep.folder, sweep.store)) == []
