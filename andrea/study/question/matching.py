"""Matches the arms in size or cost: one setting is solved for where they differ too much.

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
from andrea.records.study import SolvedSetting
from andrea.schema import Frozen

REMEDY = (
    "change the arms, choose another match.by, raise match.tolerance, or set match.on=none where "
    "size is the question"
)
REMEDY_WITHOUT_SOLVING = (
    "change the arms (model.mlp_ratio, say), let match.by solve for a setting (mlp_width, say), "
    "or set match.on=none where size is the question"
)


def _allow_word(schema: dict[str, Any]) -> None:
    """In a JSON schema: `match: params` means `match: {on: params}`."""
    whole = dict(schema)
    schema.clear()
    schema["anyOf"] = [{"type": "string", "enum": whole["properties"]["on"]["enum"]}, whole]


class Match(Frozen):
    """The common size or cost of all arms, so that the comparison is fair. `match: params` is short
    for `{on: params}`.
    """

    model_config = ConfigDict(json_schema_extra=_allow_word)

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
    def _expand_word(cls, value: Any) -> Any:
        return {"on": value} if isinstance(value, str) else value


@dataclass(frozen=True)
class SizedModel:
    """An arm's model as it is compared."""

    model: ModelConfig
    deviation: dict[Quantity, float]
    """From the baseline, as a share of it, in parameters and in FLOPs per token, whatever is
    matched.
    """
    solved: SolvedSetting | None = None


class _Mismatch(Exception):
    """An arm outside the tolerance, and why it cannot, or must not, be brought inside."""


def parameter_differences(
    counts: Mapping[str, int], baseline_counts: Mapping[str, int]
) -> dict[str, int]:
    """Return the parameters by which an arm differs from the baseline, by group that differs."""
    differences = {group: n - baseline_counts.get(group, 0) for group, n in counts.items()}
    return {group: n for group, n in differences.items() if n}


def match_arms(
    models: Mapping[str, ModelConfig],
    baseline: str,
    match: Match,
    chosen: Mapping[str, Collection[str]],
) -> dict[str, SizedModel]:
    """Return the arms' models, with one setting solved for where they lie outside the tolerance.

    Args:
        models: by arm, with their vocabulary.
        chosen: dotted settings that each arm gives itself; what it has chosen is checked, not
            changed.

    Raises:
        UserError: all arms that are outside the tolerance and cannot, or must not, be brought
            inside.
    """
    base = models[baseline]
    sized: dict[str, SizedModel] = {}
    mismatches: list[str] = []
    for arm, model in models.items():
        try:
            sized[arm] = _match_arm(arm, model, base, match, chosen.get(arm, ()))
        except _Mismatch as mismatch:
            mismatches.append(str(mismatch))
    if mismatches and match.on != "none":
        raise UserError(
            f"match.on {match.on}, tolerance {match.tolerance:.2%}: baseline {baseline} has "
            f"{size_of(base, match.on):,.0f} {UNITS[match.on]}, {'; '.join(mismatches)}; "
            f"{REMEDY_WITHOUT_SOLVING if match.by == 'nothing' else REMEDY}"
        )
    return sized


def _match_arm(
    arm: str, model: ModelConfig, base: ModelConfig, match: Match, chosen: Collection[str]
) -> SizedModel:
    unchanged = SizedModel(model, relative_excess(model, base))
    if match.on == "none" or _is_within(unchanged, match):
        return unchanged
    size = _describe_size(arm, model, base, match.on)
    if match.by == "nothing":
        raise _Mismatch(size)
    try:
        solution = fit_setting(model, size_of(base, match.on), match.on, match.by)
    except UserError as error:
        raise UserError(f"arm {arm}: {error}") from error
    if solution is None:
        raise _Mismatch(f"{size}, and no model.{match.by} changes that")
    solved = SolvedSetting(
        setting=f"model.{match.by}",
        was=solution.was,
        became=solution.became,
        before={**unchanged.deviation},
    )
    sized = SizedModel(solution.config, relative_excess(solution.config, base), solved)
    nearest = f"{solved.setting} {solved.became:,} ({sized.deviation[match.on]:+.2%})"
    own = [f"model.{key}" for key in DETERMINING[match.by] if f"model.{key}" in chosen]
    if own:
        advice = f"without it the nearest were {nearest}"
        if _is_within(sized, match):
            advice = f"leave it out for {nearest}"
        raise _Mismatch(f"{size} and sets {' and '.join(own)} itself, which is kept: {advice}")
    if not _is_within(sized, match):
        raise _Mismatch(f"{size}, and the nearest that it gets is {nearest}")
    return sized


def _is_within(sized: SizedModel, match: Match) -> bool:
    # A deviation of 1 % may be a last bit above 0.01.
    return match.on != "none" and abs(sized.deviation[match.on]) <= match.tolerance + 1e-12


def _describe_size(arm: str, model: ModelConfig, base: ModelConfig, on: Quantity) -> str:
    """Word the size of an arm with its deviation, of parameters also by group."""
    deviation = f"{relative_excess(model, base)[on]:+.1%}"
    if on == "params":
        counts, baseline_counts = (count_parameters(one)._asdict() for one in (model, base))
        differences = parameter_differences(counts, baseline_counts)
        deviation += ": " + ", ".join(f"{group} {n:+,}" for group, n in differences.items())
    return f"{arm} has {size_of(model, on):,.0f} ({deviation})"
