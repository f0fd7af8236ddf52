"""A large study's report: drawn points are picked from the logged ones, the page stays small, the
files keep all.
"""

import io
import json
import re
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from andrea.analysis.formats.build import make_report
from andrea.analysis.load import load
from andrea.store.studies import StudyFolder

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_a_report_of_50_runs_and_2000_points_is_small_and_quick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    import report_scale

    report_scale.generate(tmp_path, 50, 2_000)
    study = load("scale", tmp_path)
    script = ROOT / "reports" / "comparison.py"
    start = time.process_time()
    page, *files = make_report(study.store, StudyFolder(study.path), ["html", "parquet"], script)
    assert time.process_time() - start < 10, (
        "seconds of processors: others may be at work on this machine"
    )
    assert page.stat().st_size < 4_000_000
    kept = {path.stem: pd.read_parquet(path) for path in files if path.stem in ("curves", "runs")}
    assert len(kept["curves"]) == 50 * 2_000 and len(kept["runs"]) == 50
    logged = kept["curves"].query("phase == 'replicate' and kind == 'train'")
    drawn = drawn_in(page, "training loss (nats)")
    assert 190 <= drawn["tokens"].nunique() <= 200 + logged["run_id"].nunique()
    values = {float(f"{loss:.6g}") for loss in logged["loss"]}
    assert len(drawn) > 5_000 and set(drawn["loss"]) <= values, "picked, not averaged"
    assert np.isin(drawn["tokens"], logged["tokens"]).all()


def drawn_in(page: Path, title: str) -> pd.DataFrame:
    """The thin lines of the figure with this axis."""
    specs = re.findall(
        r'<script type="application/json" class="spec">(.*?)</script>', page.read_text(), re.DOTALL
    )
    spec = next(json.loads(text) for text in specs if f'"title": "{title}"' in text)
    tables = [
        pd.read_csv(io.StringIO(text))
        for text in _texts(spec)
        if text.startswith("arm,tokens,loss,")
    ]
    assert len(tables) == 1
    return tables[0]


def _texts(spec: object) -> list[str]:
    """Every text in a specification, inline data among them."""
    if isinstance(spec, str):
        return [spec]
    inside = spec.values() if isinstance(spec, dict) else spec if isinstance(spec, list) else []
    return [found for one in inside for found in _texts(one)]
