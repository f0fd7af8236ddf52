"""The whole number of one setting that brings a model's size or cost nearest to a target. Nothing
is built: torch-free.

    target = size_of(baseline, "params")
    fit_setting(ModelConfig(activation="swiglu", vocab_size=256), target, "params", "mlp_width")

One setting is changed and every other stays as it is. With `d_model` the number of heads stays too,
so that widths are multiples of it (and of what RoPE asks of a head); with `head_dim` set, any width
goes. What the count does with the setting is asked, never assumed, but for one thing: a larger
value never costs less.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError

from andrea.errors import UserError, reason
from andrea.model.accounting import count_parameters, flops_per_token
from andrea.model.config import ModelConfig
from andrea.model.settings import LARGEST

Quantity = Literal["params", "flops"]
"""All parameters, or FLOPs per token forward and backward."""
Setting = Literal["mlp_width", "d_model", "n_layer"]
DETERMINING: Mapping[Setting, tuple[str, ...]] = {
    "mlp_width": ("mlp_width", "mlp_ratio"),
    "d_model": ("d_model",),
    "n_layer": ("n_layer",),
}
"""Settings that determine the solved one: whoever gives one of them has chosen."""
UNITS: Mapping[Quantity, str] = {"params": "parameters", "flops": "training FLOPs per token"}
NEIGHBOURS = 256
"""Values on either side of the best one that are tried before none is taken to make a model."""


class Fitted(NamedTuple):
    """A model brought nearest to a target."""

    config: ModelConfig
    setting: Setting
    was: int
    became: int


def size_of(cfg: ModelConfig, on: Quantity) -> float:
    """Return the quantity that is matched: parameters, or FLOPs per token forward and backward.

    Raises:
        UserError: vocab_size is empty.
    """
    return count_parameters(cfg).total if on == "params" else flops_per_token(cfg).total


def relative_excess(cfg: ModelConfig, base: ModelConfig) -> dict[Quantity, float]:
    """Return by how much a model exceeds another, as a share of the other, in parameters and in
    FLOPs per token.
    """
    return {on: size_of(cfg, on) / size_of(base, on) - 1 for on in UNITS}


def current_value(cfg: ModelConfig, by: Setting) -> int:
    """Return the setting as it is, resolved."""
    return cfg.mlp_dim if by == "mlp_width" else int(getattr(cfg, by))


def fit_setting(cfg: ModelConfig, target: float, on: Quantity, by: Setting) -> Fitted | None:
    """Return the value of `by` that brings the quantity nearest to the target; of two equally near,
    the smaller.

    Args:
        target: parameters or FLOPs per token.

    Returns:
        None if no value changes the quantity, or none makes a valid model.

    Raises:
        UserError: vocab_size is empty, or a user's own variant cannot be counted with some value.
    """
    step = _step_between_values(cfg, by)
    reached = _first_to_reach(cfg, target, on, by, step)
    if reached is None:
        return None
    # The nearest value may make no model (a width that RoPE cannot halve): the next one may.
    below = range(reached - 1, max(0, reached - 1 - NEIGHBOURS), -1)
    above = range(reached, min(reached + NEIGHBOURS, LARGEST // step + 1))
    candidates: list[ModelConfig] = []
    for multiples in (below, above):
        nearest = next(_valid_models(cfg, by, step, multiples), None)
        if nearest is not None:
            candidates.append(nearest)
    if not candidates:
        return None

    def distance(changed: ModelConfig) -> tuple[float, int]:
        return abs(size_of(changed, on) - target), current_value(changed, by)

    best = min(candidates, key=distance)
    return Fitted(best, by, current_value(cfg, by), current_value(best, by))


def _first_to_reach(
    cfg: ModelConfig, target: float, on: Quantity, by: Setting, step: int
) -> int | None:
    """The smallest multiple of `step` whose quantity reaches the target; None if no value changes
    the quantity.
    """

    def size_at(k: int) -> float:
        # Unchecked: the search may pass values that make no model.
        changed = cfg.model_copy(update=changed_settings(by, k * step))
        try:
            return size_of(changed, on)
        except UserError:
            raise
        except Exception as error:
            message = f"cannot be counted with model.{by} {k * step}: {reason(error)}"
            raise UserError(message) from error

    # Double until the target is reached, then bisect: sizes never fall as the setting grows.
    high = 1
    while size_at(high) < target and high < LARGEST // step:
        high = min(2 * high, LARGEST // step)
        # Sizes grow with the setting: one that has not moved at twice the value never will.
        if high * step > 2 * current_value(cfg, by) and size_at(high) == size_at(1):
            return None
    return bisect_left(range(1, high + 1), target, key=size_at) + 1


def _step_between_values(cfg: ModelConfig, by: Setting) -> int:
    if by == "mlp_width":
        return cfg.mlp_multiple
    return cfg.n_head if by == "d_model" and cfg.head_dim is None else 1


def changed_settings(by: Setting, value: int) -> dict[str, Any]:
    """Return the settings that make `by` this value; a width takes the place of what it would
    follow from.
    """
    settings: dict[str, Any] = {by: value}
    if by == "mlp_width":
        for name in ("mlp_ratio", "mlp_multiple"):
            settings[name] = ModelConfig.model_fields[name].default
    return settings


def _valid_models(
    cfg: ModelConfig, by: Setting, step: int, multiples: range
) -> Iterator[ModelConfig]:
    """The models that make sense, in the order of the multiples."""
    for k in multiples:
        try:
            yield ModelConfig.model_validate(cfg.model_dump() | changed_settings(by, k * step))
        except ValidationError:
            continue
