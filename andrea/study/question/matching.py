"""What arms have in common in size and cost, and the setting that is solved for so that they have
it.

An arm that lies within the tolerance is left as it is. Another is solved: the one setting
`match.by` becomes the whole number that brings it nearest to the baseline. The baseline never
changes.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ConfigDict, Field, model_validator

from andrea.errors import UserError
from andrea.model.accounting import count_parameters
from andrea.model.config import ModelConfig
from andrea.model.size_matching import (
    DETERMINING,
    UNITS,
    Quantity,
    fit_setting,
    relative_excess,
    size_of,
)
from andrea.schema import Frozen

Counts = Mapping[str, int]
"""Parameters by group."""
LET_BE = "or set match.on=none where size is the question"


def _or_a_word(schema: dict[str, Any]) -> None:
    """In a JSON schema: `match: params` means `match: {on: params}`."""
    whole = dict(schema)
    schema.clear()
    schema["anyOf"] = [{"type": "string", "enum": whole["properties"]["on"]["enum"]}, whole]


class Match(Frozen):
    """What arms must have in common for the comparison to be fair. `match: params` is short for
    `{on: params}`.
    """

    model_config = ConfigDict(json_schema_extra=_or_a_word)

    on: Literal["params", "flops", "none"] = "params"
    """`params`: the number of parameters; `flops`: FLOPs per token; `none`: the cost is part of the
    question.
    """
    tolerance: float = Field(default=0.01, ge=0, lt=1)
    """Largest deviation from the baseline, as a share of it."""
    by: Literal["mlp_width", "d_model", "n_layer", "nothing"] = "mlp_width"
    """The setting that is solved for in an arm outside the tolerance; `nothing`: such an arm is
    refused.
    """

    @model_validator(mode="before")
    @classmethod
    def _word(cls, value: Any) -> Any:
        return {"on": value} if isinstance(value, str) else value


@dataclass(frozen=True)
class Solved:
    """The setting of an arm that was solved for."""

    setting: str
    """Dotted."""
    was: int
    became: int
    before: dict[Quantity, float]
    """Deviation from the baseline, as a share of it, had it stayed as it was."""


@dataclass(frozen=True)
class Sized:
    """An arm's model as it is compared."""

    model: ModelConfig
    deviation: dict[Quantity, float]
    """From the baseline, as a share of it, in parameters and in FLOPs per token, whatever is
    matched.
    """
    solved: Solved | None = None


def differences(arms: Mapping[str, Counts], baseline: str) -> dict[str, dict[str, int]]:
    """Parameters by which every arm differs from the baseline, by group; groups that agree are left
    out.
    """
    base = arms[baseline]
    return {
        arm: {
            group: n - base.get(group, 0) for group, n in counts.items() if n != base.get(group, 0)
        }
        for arm, counts in arms.items()
        if arm != baseline
    }


def matched(
    models: Mapping[str, ModelConfig],
    baseline: str,
    match: Match,
    chosen: Mapping[str, Collection[str]],
) -> dict[str, Sized]:
    """The arms' models, those outside the tolerance solved for.

    Args:
        models: by arm, with their vocabulary.
        chosen: dotted settings that each arm gives itself; what it has chosen is checked, not
            changed.

    Raises:
        UserError: all arms that are outside the tolerance and cannot, or must not, be brought
            inside.
    """
    base = models[baseline]
    found, faults = {}, []
    for arm, model in models.items():
        told = _sized(arm, model, base, match, chosen.get(arm, ()))
        if isinstance(told, str):
            faults.append(told)
        else:
            found[arm] = told
    if faults and match.on != "none":
        raise UserError(
            f"match.on {match.on}, tolerance {match.tolerance:.2%}: baseline {baseline} has "
            f"{size_of(base, match.on):,.0f} {UNITS[match.on]}, {'; '.join(faults)}; "
            f"{_mend(match)}"
        )
    return found


def _sized(
    arm: str, model: ModelConfig, base: ModelConfig, match: Match, chosen: Collection[str]
) -> Sized | str:
    """An arm as it is compared, or what stands against it."""
    asked = Sized(model, relative_excess(model, base))
    if match.on == "none" or _within(asked, match):
        return asked
    said = _said(arm, model, base, match.on)
    if match.by == "nothing":
        return said
    try:
        solution = fit_setting(model, size_of(base, match.on), match.on, match.by)
    except UserError as error:
        raise UserError(f"arm {arm}: {error}") from error
    if solution is None:
        return f"{said}, and no model.{match.by} changes that"
    solved = Solved(f"model.{match.by}", solution.was, solution.became, asked.deviation)
    sized = Sized(solution.config, relative_excess(solution.config, base), solved)
    would = f"{solved.setting} {solved.became:,} ({sized.deviation[match.on]:+.2%})"
    if own := [f"model.{key}" for key in DETERMINING[match.by] if f"model.{key}" in chosen]:
        better = (
            f"leave it out for {would}"
            if _within(sized, match)
            else f"without it the nearest were {would}"
        )
        return f"{said} and sets {' and '.join(own)} itself, which is kept: {better}"
    return sized if _within(sized, match) else f"{said}, and the nearest that it gets is {would}"


def _within(sized: Sized, match: Match) -> bool:
    # What is 1 % more may be a last bit above 0.01.
    return match.on != "none" and abs(sized.deviation[match.on]) <= match.tolerance + 1e-12


def _said(arm: str, model: ModelConfig, base: ModelConfig, on: Quantity) -> str:
    """How much an arm has, by how much that is off, and in parameters where."""
    share = f"{relative_excess(model, base)[on]:+.1%}"
    if on == "params":
        groups = differences(
            {
                "base": count_parameters(base)._asdict(),
                arm: count_parameters(model)._asdict(),
            },
            "base",
        )[arm]
        share += ": " + ", ".join(f"{group} {n:+,}" for group, n in groups.items())
    return f"{arm} has {size_of(model, on):,.0f} ({share})"


def _mend(match: Match) -> str:
    if match.by == "nothing":
        return (
            "change the arms (model.mlp_ratio, say), let match.by solve for a setting (mlp_width, "
            f"say), {LET_BE}"
        )
    return f"change the arms, choose another match.by, raise match.tolerance, {LET_BE}"
