"""Claims against what was measured: the rule, regimes apart, what is not measured, and what needs
only counting.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import stored
import yaml
from analysis_store import Writer, finished

from andrea import catalogue
from andrea.analysis.formats.build import ReportJob, load_script
from andrea.analysis.load import load, load_all
from andrea.analysis.report import Report
from andrea.analysis.tables import claims
from andrea.analysis.tables.claims import (
    CONTRADICTED,
    NOT_SHOWN,
    NOT_TESTED,
    SUPPORTED,
    Claim,
    judge_claim,
)
from andrea.analysis.tables.leaderboard import ShownVerdict
from andrea.errors import UserError
from andrea.records.study import AskedStudy
from andrea.study.plan.resolve import _digest
from andrea.study.question.ablation import Ablation

SCRIPT = Path(__file__).parents[1] / "reports" / "claims.py"
pytestmark = pytest.mark.usefixtures("undrawn")
MINE = {"claim": "Post-norm is worse.", "claimed": {"post": ["worse", "unstable"]}}


def built(writer: Writer) -> Report:
    """The report on the writer's store."""
    report: Report = load_script(SCRIPT).build(load_all(writer.store))
    return report


def rows_of(writer: Writer, *known: Claim) -> list[dict[Any, Any]]:
    """The rows of its study alone."""
    table = claims.claims_table(claims.match_studies(known, [load(writer.folder, writer.store)]))
    return table[table["study"] != ""].to_dict("records")


# ---- the rule
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdict", "more", "word", "why"),
    [
        ("worse", {}, SUPPORTED, "worse"),
        ("unstable", {}, SUPPORTED, "unstable"),
        ("better", {}, CONTRADICTED, "better"),
        ("equivalent", {}, CONTRADICTED, "equivalent"),
        ("inconclusive", {"cause": "rate at edge"}, NOT_SHOWN, "inconclusive (rate at edge)"),
        ("invalid", {"cause": "control failed"}, NOT_SHOWN, "invalid (control failed)"),
        ("worse", {"exploratory": True}, NOT_SHOWN, "exploratory"),
        ("pending", {}, NOT_TESTED, "not judged yet"),
        (None, {}, NOT_TESTED, "not judged yet"),
    ],
)
def test_a_verdict_says_how_the_claim_stands(
    verdict: str | None, more: dict[str, Any], word: str, why: str
) -> None:
    found, said = judge_claim(["worse", "unstable"], ShownVerdict(verdict, **more))
    assert found == word and said.startswith(why)


def test_significant_is_not_said_to_be_large() -> None:
    near = ShownVerdict("worse", low=0.01, high=0.05)
    far = near._replace(low=0.03)
    assert "whether by more than m is open" in judge_claim(["worse"], near, 0.02)[1]
    assert "by more than m" in judge_claim(["worse"], far, 0.02)[1]
    assert "open" not in judge_claim(["worse"], far, 0.02)[1]


@pytest.mark.parametrize(
    ("words", "together"),
    [
        ([SUPPORTED, SUPPORTED], SUPPORTED),
        ([SUPPORTED, CONTRADICTED, NOT_SHOWN], CONTRADICTED),
        ([SUPPORTED, NOT_SHOWN], NOT_SHOWN),
        ([SUPPORTED, NOT_TESTED], NOT_SHOWN),
        ([NOT_TESTED, NOT_TESTED], NOT_TESTED),
    ],
)
def test_a_claim_about_several_arms_needs_all_of_them(words: list[str], together: str) -> None:
    assert claims.combine_words(words) == together


# ---- studies
# --------------------------------------------------------------------------------------------------


def test_a_measured_claim_has_the_numbers_of_the_verdict_and_its_regime(tmp_path: Path) -> None:
    writer = finished(tmp_path, effects={"post": 0.09}, **MINE)
    [row] = rows_of(writer)
    [verdict] = stored.study_json(writer.folder, "verdict.json")["verdicts"]
    assert (
        row["word"] == SUPPORTED and row["why"] == "worse by more than m, claimed worse or unstable"
    )
    assert (row["mean"], row["n"]) == (verdict["mean"], 5)
    assert [row["low"], row["high"]] == verdict["interval"]
    assert row["regime"] == "185 k parameters, 205 k tokens, sotu, tokenizer byte"


def test_the_rule_of_the_frozen_protocol_comes_before_a_later_one(tmp_path: Path) -> None:
    later = Claim("norm-placement", MINE["claim"], AskedStudy(claimed={"post": ["better"]}))
    [row] = rows_of(finished(tmp_path / "a", effects={"post": 0.09}, **MINE), later)
    assert row["word"] == SUPPORTED and "after this study" not in row["why"]
    [row] = rows_of(finished(tmp_path / "b", effects={"post": 0.09}, claim=MINE["claim"]), later)
    assert row["word"] == CONTRADICTED and row["why"].endswith(
        "the rule was written after this study was frozen"
    )


def test_a_claim_without_a_rule_is_never_decided(tmp_path: Path) -> None:
    [row] = rows_of(finished(tmp_path, claim="Something is so."))
    assert row["word"] == NOT_SHOWN and "does not say which verdicts" in row["why"]


def test_an_interaction_supports_a_claim_by_its_sign(tmp_path: Path) -> None:
    factors = {
        "model.norm_placement": {"pre": {"set": {}}, "post": {"set": {}, "label": "post-norm"}},
        "train.warmup": {"warm": {"set": {}}, "cold": {"set": {}, "label": "no warmup"}},
    }
    arms = ("pre+warm", "pre+cold", "post+warm", "post+cold")
    asked = {
        "arms": arms,
        "factors": factors,
        "factor": "norm_placement × warmup",
        "claim": "Together they hurt.",
    }
    asked["claimed"] = {"post × cold": ["worse"]}
    hurts = finished(tmp_path / "a", effects={"post+cold": 0.2}, **asked)
    helps = finished(
        tmp_path / "b", effects={"post+warm": 0.2, "pre+cold": 0.2, "post+cold": 0.2}, **asked
    )
    [row] = rows_of(hurts)
    assert (row["word"], row["effect"], row["verdict"]) == (
        SUPPORTED,
        "post-norm × no warmup",
        "worse",
    )
    seeds = sorted({seed for _, seed in hurts.losses})
    signs = {"post+cold": 1, "post+warm": -1, "pre+cold": -1, "pre+warm": 1}
    crossed = [sum(sign * hurts.losses[arm, seed] for arm, sign in signs.items()) for seed in seeds]
    assert row["mean"] == pytest.approx(sum(crossed) / len(crossed))
    assert [row["word"] for row in rows_of(helps)] == [CONTRADICTED]


def test_regimes_are_never_pooled_and_a_claim_may_hold_at_one_of_them(tmp_path: Path) -> None:
    writer = finished(tmp_path, name="mine", digest="a", effects={"post": 0.09}, **MINE)
    other = finished(tmp_path, name="mine", digest="b", effects={"post": 0.0}, **MINE)
    resolved = stored.study_json(other.folder, "resolved.json")
    resolved["arms"]["pre"]["parameters"]["mlp"] *= 10
    other.folder.write("resolved.json", resolved)
    report = built(writer)
    stands = report.frames["stands"]
    mine = stands[stands["claim"] == MINE["claim"]]
    assert list(mine["word"]) == [SUPPORTED, CONTRADICTED] and mine["regime"].nunique() == 2
    assert "1 different at different sizes, budgets or corpora" in report.answer
    assert len(report.verdicts) == 2


def test_claims_that_nobody_measured_come_with_the_command_that_would(tmp_path: Path) -> None:
    writer = finished(tmp_path, effects={"post": 0.09}, **MINE)
    pages = ReportJob(writer.store, SCRIPT, out=tmp_path / "out").make(["md", "csv"])
    told = pages[0].read_text()
    listed = pd.read_csv(tmp_path / "out" / "not-measured.csv")
    commands = listed["command"]
    assert "mlp_ratio 1 worse or unstable" in " ".join(listed["claimed"]), (
        "a bare number says nothing"
    )
    claimed = [entry.name for entry in catalogue.list_entries("ablations") if claims_of(entry.path)]
    # The study is of its name, arms and rule: the same claim in other words.
    assert set(commands) == {f"andrea ablate {name}" for name in claimed} - {
        "andrea ablate norm-placement"
    }
    assert "andrea ablate gated-mlp" in told.partition("## Not measured here")[2]


def test_a_study_with_a_claim_of_its_own_is_not_taken_for_a_shipped_one_of_its_name(
    tmp_path: Path,
) -> None:
    writer = finished(
        tmp_path, effects={"post": 0.09}, claim="Post-norm is better.", claimed={"post": ["better"]}
    )
    table = claims.claims_table(
        claims.match_studies(claims.catalogued_claims(), load_all(writer.store))
    )
    [mine] = table[table["study"] != ""].to_dict("records")
    assert (mine["claim"], mine["word"]) == ("Post-norm is better.", CONTRADICTED)
    assert (table["ablation"] == "norm-placement").sum() == 2 and NOT_TESTED in set(table["word"])


def claims_of(path: Path) -> str:
    return str(yaml.safe_load(path.read_text()).get("claim") or "")


def test_an_empty_store_still_counts_and_lists() -> None:
    report = load_script(SCRIPT).build([])
    assert "0 were tested in this store" in report.answer
    assert {section.title for section in report.sections} >= {
        "Counted, without any training",
        "Not measured here",
    }


@pytest.mark.slow
def test_claims_are_counted_without_torch() -> None:
    code = (
        "import sys; from pathlib import Path; from andrea.analysis.formats.build import "
        "load_script; "
        f"load_script(Path({str(SCRIPT)!r})).build([]); print('torch' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


# ---- counted
# --------------------------------------------------------------------------------------------------


def test_counted_claims_are_counted_from_the_configuration() -> None:
    exact = load_script(SCRIPT).build([]).tables()["counted"].set_index("claim")
    numbers = {round(float(row["counted"]), 3): row["word"] for _, row in exact.iterrows()}
    # 98,820,096 = 92,331,264 + 8,449 · 768; the rest are published counts of this family.
    assert numbers.pop(92_331_264) == numbers.pop(98_820_096) == CONTRADICTED
    assert numbers.pop(98_698_752) == numbers.pop(12_780_288) == SUPPORTED
    assert numbers.pop(25) == numbers.pop(4_718_592) == SUPPORTED
    assert numbers.pop(1.0) == CONTRADICTED  # equal operations are not fewer
    assert set(numbers.values()) == {CONTRADICTED} and min(numbers) > 1  # more memory


# ---- the field
# --------------------------------------------------------------------------------------------------

ASKED = """question: Which?
claim: The first is better.
hypothesis: None.
factor: activation
baseline: a
arms:
  a: {model.activation: gelu_tanh}
  b: {model.activation: relu}
protocol: {m: 0.02}
"""


def loaded(folder: Path, text: str) -> Ablation:
    path = folder / "mine.yaml"
    path.write_text(text)
    return Ablation.load(path)


def test_what_is_claimed_changes_no_studys_name(tmp_path: Path) -> None:
    digests = set()
    for more in ("", "claimed: {b: [worse, unstable]}\n", "claimed: {b: better}\n"):
        spec = loaded(tmp_path, ASKED + more)
        digests.add(
            _digest(spec, {arm: spec.arm_config(arm) for arm in spec.arms}, "ab" * 32, None)
        )
    assert digests == {GOLDEN}  # what it was before there was such a field


GOLDEN = "9d2375925974bcdf13d1c1e846345bc997a10f4bac4a2d42df95338afb068d00"


def test_every_shipped_claim_says_what_would_support_it() -> None:
    for entry in catalogue.list_entries("ablations"):
        spec = Ablation.load(entry.path)
        assert spec.claimed, f"{entry.name} has a claim and no rule"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("claimed: {c: worse}", "claimed: 'c' is not judged here"),
        ("claimed: {a: worse}", "claimed: 'a' is not judged here"),  # the baseline has no verdict
        ("claimed: {b: bad}", "claimed.b"),
        ("claimed: {b: []}", "claimed.b"),
    ],
)
def test_a_claim_about_what_is_not_judged_is_refused_with_its_line(
    tmp_path: Path, line: str, message: str
) -> None:
    with pytest.raises(UserError, match=r"mine\.yaml:10") as refused:
        loaded(tmp_path, ASKED + line + "\n")
    assert message in str(refused.value)
