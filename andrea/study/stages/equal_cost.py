"""Arms at equal cost: trained again on as many tokens as cost what the baseline's training costs,
schedule and all.

Arms are compared at equal tokens; where a token of an arm costs more or less than one of the
baseline, this says what becomes of the verdict at equal FLOPs or equal training time. A curve's
loss at that cost would not do: its schedule had not ended.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from andrea.config import RunConfig
from andrea.model.accounting import flops_per_token
from andrea.records.events import Run
from andrea.records.extras import BUDGETS, Budget, Extras
from andrea.study.plan.frozen import FrozenStudy
from andrea.study.stages import arm_speed as speeds
from andrea.study.stages.evidence import Record
from andrea.training import schedule
from andrea.verdict.controls import ControlSummary
from andrea.verdict.judge import judge_arms
from andrea.verdict.seeds import replication_seed

TOLERANCE = 0.01
"""Share of the baseline's cost within which an arm's training costs the same: the main comparison
is at equal cost.
"""

SINCE = (
    "its training was not seen to take another time when this budget was planned; what was "
    "measured since changes no "
    "plan, and no family"
)
"""Why an arm is not trained although it is slower or faster now."""


def planned(record: Record, kind: Budget, tokens: Mapping[str, int], generation: int) -> list[Run]:
    """Seed by seed the arms that are trained at this budget, as many tokens as `tokens` says."""
    row = {"phase": "budget", "why": f"equal {kind}", "trial": None, "generation": generation}
    runs = []
    for i in range(record.study.protocol.seeds):
        for arm, count in tokens.items():
            own = {"arm": arm, "lr": record.choices[arm]["lr"], "tokens": count}
            runs.append(record.study.run({**row, **own}, replication_seed(i)))
    return runs


def to_train(
    record: Record, kind: Budget, speed: Mapping[str, Any] | None, recorded: Sequence[Run] = ()
) -> dict[str, int]:
    """Tokens by arm that has a rate and costs other than the baseline.

    Args:
        speed: speed.json, for `time`.
        recorded: what earlier commands have planned: its tokens stay, whatever a later measurement
            says.
    """
    found = {run["arm"]: int(run["tokens"]) for run in recorded}
    # Fewer lines than whole seeds: a kill came while they were written, and other arms may be
    # missing.
    if not recorded or len(recorded) < len(found) * record.study.protocol.seeds:
        equal = speeds.equal_tokens(record.study, speed, kind)
        known, found = found, {}
        for arm in record.others:
            if arm in known or not why_not(record.study, kind, speed, arm):
                found[arm] = known.get(arm) or equal[arm]
    return {arm: count for arm, count in found.items() if record.choices[arm]["lr"] is not None}


def cost(
    configs: Mapping[str, RunConfig],
    baseline: str,
    kind: Budget,
    speed: Mapping[str, Any] | None,
    arm: str,
) -> float | None:
    """What an arm's training costs over what the baseline's costs; None where its speed is not
    known.

    Args:
        configs: by arm.
        speed: speed.json, for `time`.
    """
    one, base = configs[arm], configs[baseline]
    steps = schedule.steps(one) / schedule.steps(base)
    if kind == "time":
        ratio = ((speed or {}).get("ratio") or {}).get(arm)
        return None if ratio is None else float(ratio["ratio"]) * steps
    tokens = steps * schedule.batch_tokens(one) / schedule.batch_tokens(base)
    return flops_per_token(one.model).total / flops_per_token(base.model).total * tokens


def why_not(study: FrozenStudy, kind: Budget, speed: Mapping[str, Any] | None, arm: str) -> str:
    """Why an arm is not trained at this budget; empty where it is."""
    configs = {
        name: RunConfig.model_validate(told["config"])
        for name, told in study.resolved["arms"].items()
    }
    ratio = cost(configs, str(study.baseline), kind, speed, arm)
    if ratio is None:
        return "the speed of the arms is not known: not measured yet, or it could not be"
    own = configs[arm]
    same = speeds.equal_tokens(study, speed, kind)[arm] == schedule.steps(
        own
    ) * schedule.batch_tokens(own)
    if abs(ratio - 1) <= TOLERANCE or same:
        within = "within 1 %" if abs(ratio - 1) <= TOLERANCE else "within half a batch"
        said = f"its training costs what the baseline's does, {within} ({_than(ratio)})"
        return f"{said}: the main comparison is at equal {kind}"
    low, high = (
        _measured_span(configs, str(study.baseline), speed, arm)
        if kind == "time"
        else (ratio, ratio)
    )
    if low <= 1 <= high:
        seen = f"× {ratio:.3f} [{low:.3f}, {high:.3f}]"
        said = f"its training was not seen to take another time than the baseline's ({seen})"
        return f"{said}: the main comparison is at equal {kind} as far as was measured"
    return ""


def _than(ratio: float) -> str:
    share = f"{abs(ratio - 1):.1%}".replace("%", " %")
    return "the same" if ratio == 1 else f"{share} {'more' if ratio > 1 else 'less'}"


def _measured_span(
    configs: Mapping[str, RunConfig], baseline: str, speed: Mapping[str, Any] | None, arm: str
) -> tuple[float, float]:
    """The interval of the ratio of times; where too few rounds gave none, the ratio itself."""
    told = (speed or {})["ratio"][arm]
    steps = schedule.steps(configs[arm]) / schedule.steps(configs[baseline])
    ends = [told["ratio"] if told.get(end) is None else told[end] for end in ("low", "high")]
    return ends[0] * steps, ends[1] * steps


def outcomes(
    record: Record, asked: Extras, speed: Mapping[str, Any] | None, controls: ControlSummary | None
) -> dict[str, dict[str, dict[str, Any]]]:
    """`equal` of verdict.json: by budget and arm, the verdict against the baseline's replicates, or
    why there is none.

    The arms of a budget are a family of their own. Their rates are those of the main comparison,
    not tuned anew.
    """
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for kind in BUDGETS:
        if kind in asked.equal:
            found[kind] = _at(record, kind, speed, controls)
        else:
            na = {"na": f"not asked for: --equal {kind} trains at this budget"}
            found[kind] = {arm: dict(na) for arm in record.others}
    return found


def _at(
    record: Record, kind: Budget, speed: Mapping[str, Any] | None, controls: ControlSummary | None
) -> dict[str, dict[str, Any]]:
    why = f"equal {kind}"
    runs = {arm: record.of(arm, "budget", why) for arm in record.others}
    refused = {
        arm: "" if runs[arm] else why_not(record.study, kind, speed, arm) for arm in record.others
    }
    trained = to_train(record, kind, speed, record.beside("budget", why))
    for arm in record.others:
        if not refused[arm] and arm not in trained and record.choices[arm]["lr"] is not None:
            refused[arm] = SINCE
    family = [arm for arm in record.others if not refused[arm]]
    data = [record.data(arm, "budget", why) for arm in family]
    judged = (
        judge_arms(record.study.protocol, record.data(record.baseline), data, controls=controls)
        if data
        else []
    )
    verdicts = {verdict.contrast.arm: verdict for verdict in judged}
    found: dict[str, dict[str, Any]] = {}
    for arm in record.others:
        if arm in verdicts:
            tokens = runs[arm][0]["tokens"] if runs[arm] else None
            found[arm] = {
                "tokens": tokens,
                "word": verdicts[arm].verdict,
                **verdicts[arm].to_dict(),
            }
        else:
            found[arm] = {"na": refused[arm]}
    return found
