"""The results of a study: its verdicts or its best config, what stands beside them, the report."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from andrea.catalogue import find_file
from andrea.cli.show.output import table
from andrea.cli.show.trials import best_as_json, load_trials, trials_as_text
from andrea.cli.show.verdict_table import contrast_cells, effect_table, verdict_table
from andrea.errors import warn
from andrea.records.verdict import ControlOutcomes, StudyVerdict
from andrea.store.files import read_mapping
from andrea.store.runs import RunStore
from andrea.store.studies import StudyFolder
from andrea.text.numbers import NOTHING, confirmed, count, percent, signed
from andrea.verdict.tokens_saved import TokensSaved

COLUMNS = ("arm", "verdict", "difference", "interval", "n", "lr")
EFFECT_COLUMNS = ("effect", "verdict", "difference", "interval", "n")
EQUAL_COST_COLUMNS = ("arm", "verdict", "difference", "interval", "n", "tokens")

EXPLORATORY = "exploratory: some runs were there before the study's protocol was frozen"
CONTROL_STATES = {True: "pass", False: "FAIL", None: "unknown"}


def arm_labels(folder: StudyFolder) -> dict[str, str]:
    """Return the labels of a study's arms by name."""
    resolved = folder.load_resolved()
    arms = resolved.arms if resolved else {}
    return {name: arm.label or name for name, arm in arms.items()}


def results_as_json(folder: StudyFolder, store: RunStore) -> dict[str, object]:
    """Return verdict.json and the chosen rates, or the trials and the best config."""
    path, kind = folder.path, folder.load_info().kind
    answer: dict[str, object] = {"study": path.name, "folder": str(path), "kind": kind}
    if kind == "sweep":
        answer["best"] = best_as_json(folder, store)
        answer["trials"] = [trial.to_json() for trial in load_trials(folder, store)]
        return answer
    # The files as they are: programs read them here and there alike.
    answer |= read_mapping(folder.path / "verdict.json") or {}
    answer["choices"] = read_mapping(folder.path / "choices.json")
    return answer


def results_as_text(folder: StudyFolder, store: RunStore) -> str:
    """Return the results for people."""
    if folder.load_info().kind == "sweep":
        return trials_as_text(folder, store)
    return verdicts_as_text(folder)


def verdicts_as_text(folder: StudyFolder) -> str:
    """Return the tables of verdicts and effects, what stands beside them, and notes."""
    labels = arm_labels(folder)
    verdict = folder.load_verdict() or StudyVerdict()
    confirmations = confirmation_cells(verdict)
    columns = (*COLUMNS, "confirmation") if confirmations else COLUMNS
    rows, notes = [], []
    for row in verdict_table(folder):
        arm = row["arm"]
        named = row | {"arm": labels.get(arm, arm), "confirmation": confirmations.get(arm, "")}
        rows.append([named[column] for column in columns])
        notes.append((named["arm"], row["note"]))
    lines = [table(rows, columns, right=(2, 4)), protocol_line(folder)]
    # Notes are sentences: in a column of the table they would wrap in the middle of it.
    note_lines = lines_by_note(notes)
    if verdict.exploratory:
        note_lines.append(EXPLORATORY)
    if effects := effect_table(folder):
        rows = [[row[column] for column in EFFECT_COLUMNS] for row in effects]
        lines += ["", table(rows, EFFECT_COLUMNS, right=(2, 4))]
        note_lines += untested_effect_lines(effects, {note for _, note in notes})
    lines += control_lines(verdict.controls)
    lines += tokens_saved_lines(verdict.tokens_saved, labels)
    lines += equal_cost_lines(verdict, labels)
    return "\n".join([*lines, *([""] if note_lines else []), *note_lines])


def protocol_line(folder: StudyFolder) -> str:
    """Return the smallest effect of interest, the number of pairs and the tokens of a run."""
    protocol, resolved = folder.load_question().protocol, folder.load_resolved()
    if protocol is None:
        raise folder.damaged("protocol.yaml", "without the rules of an ablation")
    text = f"m = {protocol.m:g} nats; n = {protocol.seeds} pairs"
    if resolved is None:
        return text
    config = next(iter(resolved.arms.values())).config
    batch_tokens = config["train"]["batch_size"] * config["model"]["context"]
    trained = config["train"]["tokens"] // batch_tokens * batch_tokens
    return f"{text}; {count(trained)} tokens a run"


def untested_effect_lines(
    effects: Sequence[Mapping[str, str]], arm_notes: Collection[str]
) -> list[str]:
    """Return why effects could not be tested, where no arm's note says the same."""
    untested = [row for row in effects if row["difference"] == NOTHING]
    return lines_by_note(
        (row["effect"], row["note"]) for row in untested if row["note"] not in arm_notes
    )


def confirmation_cells(verdict: StudyVerdict) -> dict[str, str]:
    """Return the outcome of the second block of seeds by arm: `worse +0.1921, agrees`.

    It is empty where no confirmation was asked for.
    """
    confirmation = verdict.confirmation
    if confirmation is None:
        return {}
    if not confirmation.complete:
        return {again.arm: "not done" for again in confirmation.verdicts}
    cells = {}
    for again in confirmation.verdicts:
        first = verdict.of(again.arm)
        if first is None or confirmation.agrees.get(again.arm) is None:
            cells[again.arm] = "not trained"
            continue
        difference = "" if again.mean is None else f" {signed(again.mean)}"
        agreement = confirmed(first.verdict, again.verdict)
        cells[again.arm] = f"{again.verdict}{difference}, {agreement}"
    return cells


def control_lines(controls: ControlOutcomes | None) -> list[str]:
    """Return a table of the controls that were run."""
    if controls is None:
        return []
    named = {
        "repeat": controls.repeat,
        "A/A": controls.a_a,
        "ruler, ½ the tokens": controls.ruler,
        "ruler, 2× the tokens": controls.ruler_2x,
    }
    rows = []
    for name, control in named.items():
        if control is None:
            continue
        state = CONTROL_STATES[control.ok]
        # The longer ruler voids nothing: without it improvements are not told in tokens.
        if control is controls.ruler_2x and control.ok is False:
            state = "not seen"
        rows.append([name, state, control.reason])
    return ["", table(rows, ("control", "", "what came out"))] if rows else []


def tokens_saved_lines(saved: Mapping[str, TokensSaved], labels: Mapping[str, str]) -> list[str]:
    """Return a line for every arm whose effect is worth a number of tokens."""
    lines = lines_by_note(
        (labels.get(arm, arm), saved_in_words(saving)) for arm, saving in saved.items()
    )
    return ["", *lines] if lines else []


def saved_in_words(saving: TokensSaved) -> str:
    """Return `saves 20 % of the tokens that the baseline needs … [12 %, 28 %]`, or why that cannot
    be said.
    """
    if saving.saved is None or saving.interval is None:
        return f"not told in tokens: {saving.reason}"
    low, high = saving.interval
    if saving.saved >= 0:
        within = f"[{percent(low)}, {percent(high)}]"
        share = f"{percent(saving.saved)} of the tokens that the baseline needs"
        return f"saves {share} for the same loss {within}"
    within = f"[{percent(-high)}, {percent(-low)}]"
    share = f"{percent(-saving.saved)} more tokens than the baseline"
    return f"takes {share} for the same loss {within}"


def equal_cost_lines(verdict: StudyVerdict, labels: Mapping[str, str]) -> list[str]:
    """Return a table of what was trained at equal cost, and a line for every arm that was not."""
    rows: list[list[str]] = []
    notes: list[tuple[str, str]] = []
    for budget, arms in verdict.equal.items():
        if budget not in verdict.asked.equal:
            continue
        for arm, cost in arms.items():
            label = labels.get(arm, arm)
            if cost.verdict is None:
                notes.append((label, f"at equal {budget} n/a: {cost.na}"))
            else:
                cells = contrast_cells(cost.verdict).values()
                rows.append([f"{label} at equal {budget}", *cells, count(cost.tokens)])
    lines = ["", table(rows, EQUAL_COST_COLUMNS, right=(2, 4, 5))] if rows else []
    return [*lines, *(["", *lines_by_note(notes)] if notes else [])]


def lines_by_note(notes: Iterable[tuple[str, str]]) -> list[str]:
    """Return every note once: after the name that it is about, or above a list of several.

    Args:
        notes: pairs of a name and a note; an empty note is left out.
    """
    names_by_note: dict[str, list[str]] = {}
    for name, note in notes:
        names = names_by_note.setdefault(note, [])
        if name not in names:
            names.append(name)
    lines = []
    for note, names in names_by_note.items():
        if not note:
            continue
        if len(names) == 1:
            lines.append(f"{names[0]}: {note}")
        else:
            lines += [note, *(f"  {name}" for name in names)]
    return lines


def default_report_kind(folder: StudyFolder) -> str:
    """Return the kind of report that a study gets when nobody names one."""
    return "sweep" if folder.load_info().kind == "sweep" else "comparison"


def write_report(folder: StudyFolder, store: RunStore) -> Path | None:
    """Write the report that a study ends with, and return its page.

    A report that fails costs a warning: the runs are in the store.
    """
    from andrea.analysis.formats.build import make_report

    try:
        script = find_file("reports", default_report_kind(folder))
        paths = make_report(store, folder, None, script, None)
    except Exception as error:
        fault = " ".join(f"{type(error).__name__}: {error}".split())
        warn(f"no report ({fault}); `andrea report {folder.path.name}` builds it from the store")
        return None
    return paths[0] if paths else None
