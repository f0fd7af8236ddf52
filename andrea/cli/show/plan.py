"""A plan in words and as JSON."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from andrea.cli.settings import cores
from andrea.cli.show.output import table
from andrea.text.numbers import big, percent, plural, rate, relative, seconds

if TYPE_CHECKING:
    from andrea.cli.commands.start import How
    from andrea.model.size_matching import Quantity
    from andrea.study.plan.plan import ArmPlan, Plan


def slots_for(planned: "Plan", how: "How") -> int:
    """Runs at once: as asked, else what the cores or the GPUs carry."""
    from andrea.cli.settings import default_slots

    if how.slots is not None:
        return how.slots
    if how.executor == "inline":
        return 1
    train = next(iter(planned.arms.values())).config.train
    return default_slots(train.device, train.threads)


def device_of(planned: "Plan") -> str:
    """The kind of device that the runs were resolved to."""
    return next(iter(planned.arms.values())).config.train.device


def as_text(planned: "Plan", slots: int) -> str:
    """What will run: question, arms with parameters and FLOPs, runs, tokens, time."""
    arms = planned.arms
    first = next(iter(arms.values()))
    rows = [
        [
            arm.label or name,
            f"{sum(arm.parameters.values()):,}",
            _share(arm, "params") if arm is not first else "",
            big(arm.flops_per_token),
            _share(arm, "flops") if arm is not first else "",
            big(arm.flops_per_token * planned.tokens),
        ]
        for name, arm in arms.items()
    ]
    header = ("arm", "parameters", "", "training FLOPs/token", "", "FLOPs/run")
    budget = f"{plural(planned.run_count, 'run')} of {planned.tokens:,} tokens, {slots} at once"
    took = planned.estimate_s(slots)
    train = first.config.train
    crowded = train.device == "cpu" and slots * train.threads > max(cores(), train.threads)
    note = f"{slots} slots are more than the {plural(cores(), 'core')} carry: slower, same numbers"
    return "\n".join(
        [
            f"{planned.name}: {planned.question}",
            "",
            table(rows, header, right=(1, 2, 3, 4, 5)),
            *matching(planned),
            *centers(planned),
            *rules(planned),
            "",
            f"{budget}: about {seconds(took)} on {device_of(planned)}"
            if took
            else f"{budget}: all of them are done",
            *beside(planned),
            *([note] if crowded else []),
        ]
    )


def beside(planned: "Plan") -> list[str]:
    """Which of the runs controls, equal budgets and a confirmation are, and what they may add."""
    lines = []
    for extra in planned.extras:
        sizes = {run.tokens for run in extra.sure} - {planned.tokens}
        of = (
            f", some of {' and '.join(f'{size:,}' for size in sorted(sizes))} tokens"
            if sizes
            else ""
        )
        told = [f"{plural(extra.runs, 'run')} of these{of}"] if extra.sure else []
        told += (
            [f"up to {plural(len(extra.perhaps), 'run')} more {extra.when}"]
            if extra.perhaps
            else []
        )
        lines.append(
            f"  {extra.what}: {'; '.join(told) or 'no runs: every arm costs the same within 1 %'}"
        )
    return lines


def matching(planned: "Plan") -> list[str]:
    """What the arms have in common, and a line for every setting that was solved for."""
    from andrea.model.size_matching import UNITS

    match = planned.match
    if match is None or match.on == "none":
        return []
    lines = ["", f"matched on {UNITS[match.on]}, within {percent(match.tolerance)}"]
    for name, arm in planned.arms.items():
        if solved := arm.solved:
            lines.append(
                f"  {arm.label or name}: {solved.setting} {solved.was} → {solved.became}, "
                f"{relative(solved.before[match.on])} → {relative(arm.deviation[match.on])}"
            )
    return lines


def centers(planned: "Plan") -> list[str]:
    """Where the grids of learning rates stand, if an arm has a center of its own."""
    if not planned.centers:
        return []
    own = [
        f"{planned.arms[arm].label or arm} {rate(center)}"
        for arm, center in planned.centers.items()
    ]
    return ["", f"grids of learning rates round {rate(planned.protocol.center)}; {', '.join(own)}"]


def rules(planned: "Plan") -> list[str]:
    """What decides: the rates that are tried first, the smallest effect of interest, the pairs, the
    tests.
    """
    from andrea.study.question.ablation import Ablation
    from andrea.verdict.design import KINDS, factorial_contrasts
    from andrea.verdict.rates import FULL_TRIALS, rate_grid

    if not isinstance(planned.spec, Ablation):
        return []
    asked, levels = planned.spec.protocol, planned.spec.levels
    where = ", or as many round the arm's own center" if planned.centers else ""
    then = ", then two midpoints" if asked.trials >= FULL_TRIALS else ""
    lines = [
        "",
        "rates of every arm: "
        f"{', '.join(map(rate, rate_grid(asked.trials, asked.center)))}{where}{then}",
    ]
    tests = f"alpha {asked.alpha:g} over {plural(len(planned.arms) - 1, 'arm')}"
    lines.append(
        f"smallest effect of interest m = {asked.m:g} nats, {plural(asked.seeds, 'pair')}, {tests}"
    )
    if levels:
        kinds = [effect.kind for effect in factorial_contrasts(levels, str(planned.baseline))]
        lines.append(
            f"effects: {', '.join(f'{kinds.count(kind)} {kind}' for kind in KINDS if kind in kinds)}"
        )
    return lines


def _share(arm: "ArmPlan", on: "Quantity") -> str:
    return relative(arm.deviation[on]) if on in arm.deviation else ""


def as_json(planned: "Plan", slots: int) -> dict[str, Any]:
    """The plan for programs."""
    return {
        "study": planned.name,
        "digest": planned.digest,
        "question": planned.question,
        "match": planned.match.model_dump() if planned.match else None,
        "protocol": planned.protocol.model_dump(mode="json")
        if planned.kind == "ablation"
        else None,
        "arms": {
            name: {
                "label": arm.label,
                "parameters": arm.parameters,
                "flops_per_token": arm.flops_per_token,
                "deviation": arm.deviation,
                "solved": asdict(arm.solved) if arm.solved else None,
                "center": planned.centers.get(name),
                "config": arm.config.model_dump(mode="json"),
            }
            for name, arm in planned.arms.items()
        },
        "runs": planned.run_count,
        "tokens_per_run": planned.tokens,
        "tokens": planned.total_tokens,
        "beside": [extra.to_dict() for extra in planned.extras],
        "slots": slots,
        "estimate_s": planned.estimate_s(slots),
    }
