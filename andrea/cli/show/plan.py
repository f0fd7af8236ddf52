"""A plan in words and as JSON."""

from collections.abc import Sequence

from andrea.cli.settings import available_cores
from andrea.cli.show.output import table
from andrea.model.size_matching import UNITS
from andrea.study.plan.plan import ArmPlan, Plan
from andrea.study.question.ablation import Ablation
from andrea.study.stages.stage import Forecast
from andrea.text.numbers import big, percent, plural, rate, relative, seconds
from andrea.verdict.design import KINDS, factorial_contrasts
from andrea.verdict.rates import FULL_TRIALS, rate_grid

ARM_COLUMNS = ("arm", "parameters", "", "training FLOPs/token", "", "FLOPs/run")


def device_of(plan: Plan) -> str:
    """Return the kind of device that the runs were resolved to."""
    return next(iter(plan.arms.values())).config.train.device


def plan_as_text(plan: Plan, slots: int) -> str:
    """Return the question, the arms with parameters and FLOPs, the rules, runs and time."""
    rows = [arm_row(name, arm, plan.tokens) for name, arm in plan.arms.items()]
    # The first arm has no deviation from itself.
    rows[0][2] = rows[0][4] = ""
    lines = [
        f"{plan.name}: {plan.question}",
        "",
        table(rows, ARM_COLUMNS, right=(1, 2, 3, 4, 5)),
        *matching_lines(plan),
        *center_lines(plan),
        *rule_lines(plan),
        "",
        budget_line(plan, slots),
        *extra_lines(plan.extra_forecasts, plan.tokens),
    ]
    train, cores = next(iter(plan.arms.values())).config.train, available_cores()
    if train.device == "cpu" and slots * train.threads > max(cores, train.threads):
        carry = f"the {plural(cores, 'core')} carry"
        lines.append(f"{slots} slots are more than {carry}: slower, same numbers")
    return "\n".join(lines)


def arm_row(name: str, arm: ArmPlan, tokens: int) -> list[str]:
    """Return the cells of one arm, whose runs train that many tokens."""
    more = {quantity: relative(share) for quantity, share in arm.deviation.items()}
    parameters = [f"{sum(arm.parameters.values()):,}", more.get("params", "")]
    flops = [big(arm.flops_per_token), more.get("flops", ""), big(arm.flops_per_token * tokens)]
    return [arm.label or name, *parameters, *flops]


def budget_line(plan: Plan, slots: int) -> str:
    """Return the number of runs, their tokens, and the time that they take."""
    runs = f"{plural(plan.run_count, 'run')} of {plan.tokens:,} tokens, {slots} at once"
    duration = plan.estimate_s(slots)
    if not duration:
        return f"{runs}: all of them are done"
    return f"{runs}: about {seconds(duration)} on {device_of(plan)}"


def extra_lines(extras: Sequence[Forecast], tokens: int) -> list[str]:
    """Return which of the runs controls, equal budgets and a confirmation are, and what they may
    add.

    Args:
        tokens: of a run of the study's own.
    """
    lines = []
    for extra in extras:
        parts = []
        if extra.certain:
            sizes = sorted({run.tokens for run in extra.certain} - {tokens})
            listed = " and ".join(f"{size:,}" for size in sizes)
            own_sizes = f", some of {listed} tokens" if sizes else ""
            parts.append(f"{plural(len(extra.certain), 'run')} of these{own_sizes}")
        if extra.possible:
            parts.append(f"up to {plural(len(extra.possible), 'run')} more {extra.condition}")
        text = "; ".join(parts) or "no runs: every arm costs the same within 1 %"
        lines.append(f"  {extra.name}: {text}")
    return lines


def matching_lines(plan: Plan) -> list[str]:
    """Return what the arms have in common, and a line for every setting that was solved for."""
    match = plan.match
    if match is None or match.on == "none":
        return []
    lines = ["", f"matched on {UNITS[match.on]}, within {percent(match.tolerance)}"]
    for name, arm in plan.arms.items():
        if solved := arm.solved:
            change = f"{solved.setting} {solved.was} → {solved.became}"
            before, after = solved.before[match.on], arm.deviation[match.on]
            lines.append(f"  {arm.label or name}: {change}, {relative(before)} → {relative(after)}")
    return lines


def center_lines(plan: Plan) -> list[str]:
    """Return where the grids of learning rates stand, if an arm has a center of its own."""
    if not plan.centers or plan.protocol is None:
        return []
    own = ", ".join(
        f"{plan.arms[arm].label or arm} {rate(center)}" for arm, center in plan.centers.items()
    )
    return ["", f"grids of learning rates round {rate(plan.protocol.center)}; {own}"]


def rule_lines(plan: Plan) -> list[str]:
    """Return what decides: the rates that are tried first, the smallest effect of interest, the
    pairs, the tests.
    """
    if not isinstance(plan.spec, Ablation):
        return []
    protocol, levels = plan.spec.protocol, plan.spec.levels
    rates = ", ".join(map(rate, rate_grid(protocol.trials, protocol.center)))
    if plan.centers:
        rates += ", or as many round the arm's own center"
    if protocol.trials >= FULL_TRIALS:
        rates += ", then two midpoints"
    tests = f"alpha {protocol.alpha:g} over {plural(len(plan.arms) - 1, 'arm')}"
    pairs = plural(protocol.seeds, "pair")
    lines = [
        "",
        f"rates of every arm: {rates}",
        f"smallest effect of interest m = {protocol.m:g} nats, {pairs}, {tests}",
    ]
    if levels:
        kinds = [effect.kind for effect in factorial_contrasts(levels, str(plan.baseline))]
        counts = [f"{kinds.count(kind)} {kind}" for kind in KINDS if kind in kinds]
        lines.append(f"effects: {', '.join(counts)}")
    return lines


def plan_as_json(plan: Plan, slots: int) -> dict[str, object]:
    """Return the plan for programs."""
    return {
        "study": plan.name,
        "digest": plan.digest,
        "question": plan.question,
        "match": plan.match.model_dump() if plan.match else None,
        "protocol": plan.protocol.model_dump(mode="json") if plan.protocol else None,
        "arms": {name: arm_as_json(arm, plan.centers.get(name)) for name, arm in plan.arms.items()},
        "runs": plan.run_count,
        "tokens_per_run": plan.tokens,
        "tokens": plan.total_tokens,
        "beside": [extra.to_json() for extra in plan.extra_forecasts],
        "slots": slots,
        "estimate_s": plan.estimate_s(slots),
    }


def arm_as_json(arm: ArmPlan, center: float | None) -> dict[str, object]:
    """Return one arm of the plan; `center` is the middle of its own grid of learning rates."""
    return {
        "label": arm.label,
        "parameters": arm.parameters,
        "flops_per_token": arm.flops_per_token,
        "deviation": arm.deviation,
        "solved": arm.solved.to_json() if arm.solved else None,
        "center": center,
        "config": arm.config.model_dump(mode="json"),
    }
