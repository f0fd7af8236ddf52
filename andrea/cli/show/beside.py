"""What stands beside the verdicts in the terminal: controls, the confirmation, tokens saved, equal
budgets.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from andrea.cli.show.output import table
from andrea.text.numbers import confirmed, count, interval, percent, signed

CONTROLS = {
    "repeat": "repeat",
    "a_a": "A/A",
    "ruler": "ruler, ½ the tokens",
    "ruler_2x": "ruler, 2× the tokens",
}
"""Names of the controls by their keys in verdict.json."""
ENDED = {True: "pass", False: "FAIL", None: "unknown"}


def confirmation(verdict: Mapping[str, Any]) -> dict[str, str]:
    """What the second block says, by arm: `worse +0.1921, agrees`; empty where none was asked for."""
    told = verdict.get("confirmation")
    if not told:
        return {}
    if not told["complete"]:
        return {found["arm"]: "not done" for found in told["verdicts"]}
    said, first = {}, {found["arm"]: found["verdict"] for found in verdict["verdicts"]}
    for found in told["verdicts"]:
        arm = found["arm"]
        word = found["verdict"] + ("" if found["mean"] is None else f" {signed(found['mean'])}")
        again = (
            "not trained"
            if told["agrees"][arm] is None
            else confirmed(first[arm], found["verdict"])
        )
        said[arm] = again if again == "not trained" else f"{word}, {again}"
    return said


def beside(verdict: Mapping[str, Any], called: Mapping[str, str]) -> list[str]:
    """Lines under the verdicts, nothing where nothing was asked for.

    Args:
        verdict: verdict.json.
        called: what arms are called.
    """
    return [*_controls(verdict), *_saved(verdict, called), *_equal(verdict, called)]


def _controls(verdict: Mapping[str, Any]) -> list[str]:
    told = verdict.get("controls") or {}
    rows = [
        [name, _ended(key, told[key]["ok"]), told[key]["reason"]]
        for key, name in CONTROLS.items()
        if told.get(key)
    ]
    return ["", table(rows, ("control", "", "what came out"))] if rows else []


def _ended(key: str, ok: bool | None) -> str:
    # The longer ruler voids nothing: without it improvements are not told in tokens.
    return "not seen" if key == "ruler_2x" and ok is False else ENDED[ok]


def _saved(verdict: Mapping[str, Any], called: Mapping[str, str]) -> list[str]:
    told = verdict.get("tokens_saved") or {}
    lines = by_note((called.get(arm, arm), saved_in_words(saved)) for arm, saved in told.items())
    return ["", *lines] if lines else []


def saved_in_words(told: Mapping[str, Any]) -> str:
    """`saves 20 % of the baseline's tokens [12 %, 28 %]`, or why that cannot be said."""
    share = told["saved"]
    if share is None:
        return f"not told in tokens: {told['reason']}"
    low, high = told["interval"]
    if share >= 0:
        return f"saves {percent(share)} of the tokens that the baseline needs for the same loss{_within(low, high)}"
    return f"takes {percent(-share)} more tokens than the baseline for the same loss{_within(-high, -low)}"


def _within(low: float, high: float) -> str:
    return f" [{percent(low)}, {percent(high)}]"


def _equal(verdict: Mapping[str, Any], called: Mapping[str, str]) -> list[str]:
    """A table of what was trained at equal cost, and a line for every arm that was not."""
    rows, notes = [], []
    for kind, arms in (verdict.get("equal") or {}).items():
        if kind not in (verdict.get("asked") or {}).get("equal", []):
            continue
        for arm, told in arms.items():
            name = called.get(arm, arm)
            if "na" in told:
                notes.append((name, f"at equal {kind} n/a: {told['na']}"))
                continue
            word = f"{told['word']} ({told['cause']})" if told["cause"] else told["word"]
            within = interval(*(told["interval"] or (None, None)))
            rows.append(
                [
                    f"{name} at equal {kind}",
                    word,
                    signed(told["mean"]),
                    within,
                    told["n"],
                    count(told["tokens"]),
                ]
            )
    header = ("arm", "verdict", "difference", "interval", "n", "tokens")
    return [
        *(["", table(rows, header, right=(2, 4, 5))] if rows else []),
        *(["", *by_note(notes)] if notes else []),
    ]


def by_note(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """A line for every note, after the names of all that it is about."""
    about: dict[str, list[str]] = {}
    for name, note in pairs:
        about.setdefault(note, []).append(name)
    return [f"{'; '.join(dict.fromkeys(names))}: {note}" for note, names in about.items()]
