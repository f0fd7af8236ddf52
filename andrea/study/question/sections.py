"""The common part of ablations and sweeps: a question, a preset, and sections of settings for
their runs.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, Self

from pydantic import Field, PrivateAttr, ValidationError, WithJsonSchema, field_validator

from andrea.config import RunConfig, build, dotted, full_name, list_faults, merge
from andrea.data.config import DataConfig
from andrea.errors import UserError, did_you_mean, nearest
from andrea.model.config import ModelConfig
from andrea.model.presets import PRESETS
from andrea.records.base import Settings
from andrea.schema import Frozen
from andrea.study.question import yamlspec
from andrea.study.question.yamlspec import Where
from andrea.training.config import TrainConfig

Model = Annotated[Settings, WithJsonSchema(ModelConfig.model_json_schema())]
Data = Annotated[Settings, WithJsonSchema(DataConfig.model_json_schema())]
Train = Annotated[Settings, WithJsonSchema(TrainConfig.model_json_schema())]

SEED = "the protocol chooses the seeds, the same for all"
PART = (
    "tuning is judged on the tune part and verdicts on the verdict part; that is not for a study "
    "to choose"
)


class Fault(NamedTuple):
    """A fault of a file."""

    where: Where
    message: str


class ConfigFault(NamedTuple):
    """A fault of a configuration that the file leads to."""

    cause: Where
    """The arm or value of the file that causes it; empty where none does."""
    setting: Where
    """In `RunConfig`."""
    message: str


class Sections(Frozen):
    """Settings of runs in layers: a preset, the sections of the file, what the command line lays
    over them.
    """

    REFUSED: ClassVar[Mapping[str, str]] = {"seed": SEED, "data.eval_part": PART}
    """Dotted settings that neither sections nor the command line may set, and why."""

    NAME_PARTS: ClassVar[Mapping[str | int, int]] = {}
    """Number of keys that name a place of the file in a message, by the first key; usually 2."""

    SECTIONS: ClassVar[tuple[str, ...]] = ("model", "data", "train")
    """Sections whose settings the command line may set."""

    WORDS: ClassVar[frozenset[str]] = frozenset({"match"})
    """Sections that one word may stand for (`match: params`)."""

    question: str = Field(min_length=1)
    """The question in a sentence."""
    preset: str | None = None
    """Named model that the `model` section starts from; `andrea list presets`. Empty means the
    fields' defaults.
    """
    model: Model = Field(default_factory=dict)
    """Settings of the model in all runs."""
    data: Data = Field(default_factory=dict)
    """The text, its tokenizer, and the tokens that are judged."""
    train: Train = Field(default_factory=dict)
    """Settings of the training in all runs."""

    _path: Path | None = PrivateAttr(default=None)

    @field_validator("preset")
    @classmethod
    def _known_preset(cls, value: str | None) -> str | None:
        if value is not None and value not in PRESETS:
            raise ValueError(f"unknown preset {value!r}; {nearest(value, PRESETS)}")
        return value

    @property
    def path(self) -> Path | None:
        """The file this was read from, if it was."""
        return self._path

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return self._path.stem if self._path else ""

    def with_path(self, path: Path | None) -> Self:
        """Return a copy, as read from `path`."""
        copy = self.model_copy()
        copy._path = path.absolute() if path else None
        return copy

    def settings(self) -> Settings:
        """Return the sections over the preset, nested."""
        return merge(
            {"model": PRESETS[self.preset] if self.preset else {}},
            {"model": self.model, "data": self.data, "train": self.train},
        )

    def override(self, overrides: Mapping[str, Any], preset: str | None = None) -> Self:
        """Return a copy in which settings of the command line override those of the file; a
        preset from there overrides the `model` section.

        Args:
            overrides: dotted (or nested) settings of the sections of the file, as in
                `{"model.n_layer": 2}`.

        Raises:
            UserError: all faults of the overrides together.
        """
        settings = dotted(overrides)
        faults, allowed = [], {}
        for key, value in settings.items():
            reason = self.refusal(key)
            if reason:
                faults.append(f"{key}: {reason}")
            else:
                allowed[key] = value
        values = self.model_dump()
        if preset is not None:
            values["preset"] = preset
            for key in values["model"].keys() & PRESETS.get(preset, {}).keys():
                del values["model"][key]
        sections = merge({name: values[name] for name in self.SECTIONS}, allowed)
        changed: Self | None = None
        try:
            changed = build(type(self), values | sections)
            faults += dict.fromkeys(fault.message for fault in changed.config_faults())
        except UserError as error:
            faults.append(str(error))
            # Faults of the runs' own settings belong in the same message.
            base = {"model": PRESETS.get(values["preset"] or "", {})}
            runs = merge(base, {name: sections[name] for name in Sections.SECTIONS})
            faults += [fault.message for fault in find_run_faults(runs)]
        if faults or changed is None:
            raise UserError(("--set " if settings else "--preset ") + "; ".join(faults))
        return changed.with_path(self._path)

    def find_conflicts(self) -> Iterator[Fault]:
        """Yield settings that the file may not set, or that do not go together."""
        raise NotImplementedError

    def config_faults(self) -> Iterator[ConfigFault]:
        """Yield faults of the runs' configurations."""
        raise NotImplementedError

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file, and register the user's own variants beside it (`mine.py` for `mine.yaml`).

        Raises:
            UserError: the file cannot be read, or all its faults, each as `file:line: what`.
        """
        from andrea.catalogue import load_user_variants

        source = yamlspec.read(path)
        load_user_variants(path)
        spec = source.validate(cls, cls._placeholders(source.content))
        if spec is not None:
            for conflict in spec.find_conflicts():
                source.add_fault(conflict.where, conflict.message)
            for fault in spec.config_faults():
                source.add_fault(*cls._locate(fault, source))
        source.raise_faults()
        assert spec is not None, "a file that does not fit the schema has faults"
        return spec.with_path(path)

    @classmethod
    def _locate(cls, fault: ConfigFault, source: yamlspec.Source) -> Fault:
        """Return the fault of a configuration as a fault of the file."""
        if fault.cause:
            length = cls.NAME_PARTS.get(fault.cause[0], 2)
            name = ".".join(map(str, fault.cause[:length]))
            return Fault(fault.cause, f"{name}: {fault.message}")
        place = fault.setting if source.has(fault.setting[:1]) else ("preset",)
        return Fault(place, fault.message)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """Return the JSON schema of the file, for editors."""
        draft = "https://json-schema.org/draft/2020-12/schema"
        return {"$schema": draft, **cls.model_json_schema()}

    @classmethod
    def _placeholders(cls, content: Mapping[str, Any]) -> Settings:
        """Return values in place of required parts with a fault, so that the rest can be checked
        too.
        """
        return {"question": "?"}

    def refused_settings(self) -> Iterator[Fault]:
        """Yield settings of the sections that the file may not set."""
        for key in dotted({"model": self.model, "data": self.data, "train": self.train}):
            if key in self.REFUSED:
                yield Fault(tuple(key.split(".", 1)), f"{key}: {self.REFUSED[key]}")

    def refusal(self, key: str) -> str | None:
        """Return why the command line may not set `key`; None where it may."""
        if key in self.REFUSED:
            return self.REFUSED[key]
        section = key.partition(".")[0]
        if section not in self.SECTIONS:
            full = full_name(key)
            return f"unknown; {did_you_mean(full) if full else nearest(section, self.SECTIONS)}"
        if "." not in key and key not in self.WORDS:
            return f"a section; set one of its settings, {key}.NAME"
        return None


def find_run_faults(settings: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield faults of a run's settings, each with its place in `RunConfig`."""
    try:
        RunConfig.model_validate(settings)
    except ValidationError as error:
        for detail, message in zip(error.errors(), list_faults(RunConfig, error), strict=True):
            yield Fault(detail["loc"], message)


def is_related(key: str, setting: Where) -> bool:
    """Return whether the dotted `key` is `setting`, lies in it, or holds it."""
    path = ".".join(map(str, setting))
    return key == path or key.startswith(f"{path}.") or path.startswith(f"{key}.")
