"""The configuration of one run: the rooms' configurations, overrides, error messages."""

import contextlib
import difflib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self, TypeVar

import yaml
from pydantic import BaseModel, Field, ValidationError, model_validator

from andrea.data.config import DataConfig
from andrea.errors import UserError, did_you_mean, nearest
from andrea.model.config import ModelConfig
from andrea.schema import Frozen
from andrea.training.config import TrainConfig

ConfigT = TypeVar("ConfigT", bound=BaseModel)

LARGEST_SEED = 2**63 - 1
"""What torch's generators take."""
MAX_SHOWN = 80
"""Characters of a wrong value that its message repeats."""
PLAIN_SCALARS: Mapping[str, tuple[str, str]] = {
    "null": ("~|null|Null|NULL|", "~nN"),
    "bool": ("true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": ("[-+]?[0-9]+", "-+0123456789"),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
}
"""Types of plain words that are not text in YAML 1.2: pattern, and characters it may start with."""


class Loader(yaml.SafeLoader):
    """Reads plain words as YAML 1.2 does: `on`, `yes` and `no` are text, 1e-3 and 010 numbers."""


Loader.yaml_implicit_resolvers = {}
for _tag, (_pattern, _first) in PLAIN_SCALARS.items():
    _starts = [*_first, ""] if _tag == "null" else [*_first]
    Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})$"), _starts
    )
Loader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(str(node.value)))


class Seeds(NamedTuple):
    """Seeds of initial weights, batches and dropout."""

    init: int
    data: int
    dropout: int


class RunConfig(Frozen):
    """Everything that determines a training, learning rate and seed included."""

    model: ModelConfig = ModelConfig()
    """The architecture."""
    data: DataConfig = DataConfig()
    """The text and the tokens that are judged."""
    train: TrainConfig = TrainConfig()
    """The training."""
    seed: int = Field(default=1, ge=0, le=LARGEST_SEED)
    """Replicate: sets the seeds of initial weights, batches and dropout together."""
    init_seed: int | None = Field(default=None, ge=0, le=LARGEST_SEED)
    """Seed of the initial weights alone; empty means `seed`."""
    data_seed: int | None = Field(default=None, ge=0, le=LARGEST_SEED)
    """Seed of the batches alone; empty means `seed`."""
    dropout_seed: int | None = Field(default=None, ge=0, le=LARGEST_SEED)
    """Seed of dropout alone; empty means `seed`."""

    @model_validator(mode="after")
    def _rates_by_width(self) -> Self:
        if self.model.init == "mup" and self.train.optimizer in ("sgd", "muon"):
            raise ValueError(
                "model.init mup scales the rates of Adam's kind of step with the width, and "
                f"train.optimizer {self.train.optimizer} makes another; use adamw or lion, or "
                "another init"
            )
        return self

    @property
    def seeds(self) -> Seeds:
        """The three seeds; an empty one is `seed`."""
        separate = (self.init_seed, self.data_seed, self.dropout_seed)
        return Seeds(*(self.seed if seed is None else seed for seed in separate))


def parse_value(text: str) -> Any:
    """Return the value of an override: JSON, a YAML number, or a list or map in brackets; else the
    text itself.
    """
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text)
    # An alias (`*`) could name the list that contains it.
    brackets = text.startswith(("[", "{")) and "*" not in text
    if brackets or re.fullmatch(r"([-+]?[\w.~]+[-+]?\w*)?", text):
        with contextlib.suppress(yaml.YAMLError, ValueError, RecursionError):
            return yaml.load(text, Loader)
    return text


def parse_overrides(overrides: Iterable[str]) -> dict[str, Any]:
    """Return `["model.mlp_ratio=4"]` as `{"model.mlp_ratio": 4}`.

    Raises:
        UserError: an override without `=` or without a name; all such faults are listed.
    """
    parsed: dict[str, Any] = {}
    faults = []
    for override in overrides:
        path, equals, value = override.partition("=")
        if not equals or not path.strip():
            faults.append(f"{override!r} is not of the form section.field=value")
            continue
        parsed[path.strip()] = parse_value(value.strip())
    if faults:
        raise UserError("--set: " + "; ".join(faults))
    return parsed


def refuse_twice(option: str, path: str, overrides: Mapping[str, Any]) -> None:
    """Refuse a setting that both an option and `--set` give: the option would hide the other.

    Raises:
        UserError: it is among the overrides.
    """
    if path in dotted(overrides):
        raise UserError(f"{option} and --set {path} say the same thing: give one")


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Lay nested or dotted settings over each other; later layers win, key by key."""
    merged: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            head, dot, rest = key.partition(".")
            if dot:
                value = {rest: value}
            if isinstance(value, Mapping):
                below = merged.get(head)
                merged[head] = merge(below if isinstance(below, Mapping) else {}, value)
            else:
                merged[head] = value
    return merged


def dotted(settings: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return nested or dotted settings as dotted ones: `{"model": {"n_layer": 2}}` becomes
    `{"model.n_layer": 2}`; lists stay.
    """
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= dotted(value, f"{above}{key}.")
        else:
            flat[f"{above}{key}"] = value
    return flat


def build(schema: type[ConfigT], settings: Mapping[str, Any], where: str = "") -> ConfigT:
    """Validate settings and return the configuration.

    Args:
        where: begins the message of an error.

    Raises:
        UserError: one message with every fault, each with its dotted path and, for an unknown key,
            the nearest one.
    """
    try:
        return schema.model_validate(settings)
    except ValidationError as error:
        message = "; ".join(list_faults(schema, error))
        raise UserError(f"{where}: {message}" if where else message) from error


def list_faults(schema: type[BaseModel], error: ValidationError) -> list[str]:
    """Word every fault of a pydantic error for users: `model.d_modle: unknown; did you mean
    d_model?`.
    """
    lines = []
    for fault in error.errors():
        path = ".".join(str(part) for part in fault["loc"] if part != "[key]")
        message = fault["msg"].removeprefix("Value error, ")
        if fault["type"] == "extra_forbidden":
            message = f"unknown; {_hint_for_unknown(schema, fault['loc'])}"
        elif fault["type"] == "missing":
            message = "required and missing"
        elif not fault["type"].startswith("value_error"):
            message = f"{message[0].lower()}{message[1:]}, not {_shorten(fault['input'])}"
        lines.append(f"{path}: {message}" if path else message)
    return lines


def _hint_for_unknown(schema: type[BaseModel], path: tuple[int | str, ...]) -> str:
    name, section = str(path[-1]), path[:-1]
    if schema is RunConfig and not section and (setting := full_name(name)):
        return did_you_mean(setting)
    return nearest(name, _fields_at(schema, section))


def full_name(name: str) -> str | None:
    """Return the dotted setting of a run whose name without the section is nearest to `name`, as
    `model.activation` to `activation`; None where none is near.
    """
    settings = {
        field: f"{section}.{field}"
        for section in RunConfig.model_fields
        for field in _fields_at(RunConfig, (section,))
    }
    close = difflib.get_close_matches(name, [*settings, *RunConfig.model_fields], n=1, cutoff=0.75)
    return settings.get(close[0]) if close and "." not in name else None


def _shorten(value: Any) -> str:
    try:
        text = json.dumps(value) if value is None or isinstance(value, bool) else repr(value)
    except (RecursionError, ValueError):  # too deep, or a number too long to write
        return "this"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def _fields_at(schema: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    """Names of the fields of the section at a path; none where no section is there."""
    for part in path:
        field = schema.model_fields.get(str(part))
        if field is None or not (
            isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        ):
            return []
        schema = field.annotation
    return list(schema.model_fields)
