"""The whole number of one setting that brings a model's size or cost nearest to a target. Nothing
is built: torch-free.

    fit(ModelConfig(activation="swiglu", vocab_size=256), total(baseline), "params", "mlp_width")

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
from andrea.model import accounting
from andrea.model.config import ModelConfig
from andrea.model.settings import LARGEST

Quantity = Literal["params", "flops"]
"""All parameters, or FLOPs per token forward and backward."""
Setting = Literal["mlp_width", "d_model", "n_layer"]
SAYS: Mapping[str, tuple[str, ...]] = {
    "mlp_width": ("mlp_width", "mlp_ratio"),
    "d_model": ("d_model",),
    "n_layer": ("n_layer",),
}
"""Settings that say what the solved one is: whoever gives one of them has chosen."""
UNITS: Mapping[Quantity, str] = {"params": "parameters", "flops": "training FLOPs per token"}
NEIGHBOURS = 256
"""Values on either side of the best one that are tried before none is taken to make a model."""


class Fitted(NamedTuple):
    """A model brought nearest to a target."""

    config: ModelConfig
    setting: Setting
    was: int
    became: int


def quantity(cfg: ModelConfig, on: Quantity) -> float:
    """What is matched: parameters, or FLOPs per token forward and backward.

    Raises:
        UserError: vocab_size is empty.
    """
    return accounting.total(cfg) if on == "params" else accounting.flops_per_token(cfg).total


def deviation(cfg: ModelConfig, base: ModelConfig) -> dict[Quantity, float]:
    """By how much a model exceeds another, as a share of the other, in parameters and in FLOPs per
    token.
    """
    return {on: quantity(cfg, on) / quantity(base, on) - 1 for on in UNITS}


def value(cfg: ModelConfig, by: Setting) -> int:
    """The setting as it is, resolved."""
    return cfg.mlp_dim if by == "mlp_width" else int(getattr(cfg, by))


def fit(cfg: ModelConfig, target: float, on: Quantity, by: Setting) -> Fitted | None:
    """The value of `by` that brings the quantity nearest to the target; of two equally near, the
    smaller.

    Args:
        target: parameters or FLOPs per token.

    Returns:
        None if no value changes the quantity, or none makes a valid model.

    Raises:
        UserError: vocab_size is empty, or a user's own variant cannot be counted with some value.
    """
    step = _step(cfg, by)

    def at(k: int) -> float:
        try:
            return quantity(_with(cfg, by, k * step), on)
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"cannot be counted with model.{by} {k * step}: {reason(error)}"
            ) from error

    high = 1
    while at(high) < target and high < LARGEST // step:
        high = min(2 * high, LARGEST // step)
        if high * step > 2 * value(cfg, by) and at(high) == at(1):
            return None
    reached = bisect_left(range(1, high + 1), target, key=at) + 1
    below = _valid(cfg, by, step, range(reached - 1, max(0, reached - 1 - NEIGHBOURS), -1))
    above = _valid(cfg, by, step, range(reached, min(reached + NEIGHBOURS, LARGEST // step + 1)))
    found = [changed for candidates in (below, above) if (changed := next(candidates, None))]
    if not found:
        return None
    best = min(found, key=lambda changed: (abs(quantity(changed, on) - target), value(changed, by)))
    return Fitted(best, by, value(cfg, by), value(best, by))


def _step(cfg: ModelConfig, by: Setting) -> int:
    """Values lie this far apart."""
    if by == "mlp_width":
        return cfg.mlp_multiple
    return cfg.n_head if by == "d_model" and cfg.head_dim is None else 1


def change(by: Setting, value: int) -> dict[str, Any]:
    """The settings that make `by` this value; a width takes the place of what it would follow from."""
    fields = ModelConfig.model_fields
    follows = {
        "mlp_ratio": fields["mlp_ratio"].default,
        "mlp_multiple": fields["mlp_multiple"].default,
    }
    return {by: value} | (follows if by == "mlp_width" else {})


def _with(cfg: ModelConfig, by: Setting, value: int) -> ModelConfig:
    """Unchecked: the search may pass values that make no model."""
    return cfg.model_copy(update=change(by, value))


def _valid(cfg: ModelConfig, by: Setting, step: int, multiples: range) -> Iterator[ModelConfig]:
    """Those of the models that make sense."""
    for k in multiples:
        try:
            yield ModelConfig.model_validate(cfg.model_dump() | change(by, k * step))
        except ValidationError:
            continue
