"""What ablations and sweeps have in common: a question, a preset, and sections of settings for
their runs.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, NoReturn, Self

from pydantic import Field, PrivateAttr, ValidationError, WithJsonSchema, field_validator

from andrea.config import RunConfig, build, dotted, full_name, list_faults, merge
from andrea.data.config import DataConfig
from andrea.errors import UserError, did_you_mean, nearest
from andrea.model.config import ModelConfig
from andrea.model.presets import PRESETS
from andrea.schema import Frozen
from andrea.study.question import yamlspec
from andrea.study.question.yamlspec import Where
from andrea.training.config import TrainConfig

Model = Annotated[dict[str, Any], WithJsonSchema(ModelConfig.model_json_schema())]
Data = Annotated[dict[str, Any], WithJsonSchema(DataConfig.model_json_schema())]
Train = Annotated[dict[str, Any], WithJsonSchema(TrainConfig.model_json_schema())]

SEED = "the protocol chooses the seeds, the same for all"
PART = (
    "tuning is judged on the tune part and verdicts on the verdict part; that is not for a study "
    "to choose"
)


class Sections(Frozen):
    """Settings of runs in layers: a preset, the sections of the file, what the command line lays
    over them.
    """

    REFUSED: ClassVar[Mapping[str, str]] = {"seed": SEED, "data.eval_part": PART}
    """Dotted settings that neither sections nor the command line may set, and why."""

    NAMED: ClassVar[Mapping[str | int, int]] = {}
    """How many parts of a place in the file name it in a message, by the first of them; 2 where
    nothing is said.
    """

    WORDS: ClassVar[frozenset[str]] = frozenset({"match"})
    """Sections that one word may stand for (`match: params`)."""

    question: str = Field(min_length=1)
    """What is asked, in a sentence."""
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

    def at(self, path: Path) -> Self:
        """This, as read from `path`."""
        copy = self.model_copy()
        copy._path = path.absolute()
        return copy

    def settings(self) -> dict[str, Any]:
        """The sections over the preset, nested."""
        return merge(
            {"model": PRESETS[self.preset] if self.preset else {}},
            {"model": self.model, "data": self.data, "train": self.train},
        )

    def override(self, overrides: Mapping[str, Any], preset: str | None = None) -> Self:
        """This with settings of the command line laid over it; a preset from there goes over the
        `model` section.

        Args:
            overrides: dotted (or nested) settings of the sections of the file, as in
                `{"model.n_layer": 2}`.

        Raises:
            UserError: all faults of the overrides together.
        """
        asked = dotted(overrides)
        refused = {key: why for key in asked if (why := self._why_not(key))}
        wrong = [f"{key}: {why}" for key, why in refused.items()]
        own = self.model_dump()
        if preset is not None:
            own["preset"] = preset
            own["model"] = {
                key: value
                for key, value in own["model"].items()
                if key not in PRESETS.get(preset, {})
            }
        allowed = {key: value for key, value in asked.items() if key not in refused}
        sections = merge({name: own[name] for name in self._sections()}, allowed)
        changed: Self | None = None
        try:
            changed = build(type(self), own | sections)
            wrong += dict.fromkeys(message for *_, message in changed.config_faults())
        except UserError as error:
            wrong.append(str(error))
            # The runs' own settings are looked at all the same: their faults belong in the same
            # message.
            base = {"model": PRESETS.get(own["preset"] or "", {})}
            runs = merge(base, {name: sections[name] for name in ("model", "data", "train")})
            wrong += [message for _, message in run_faults(runs)]
        if wrong or changed is None:
            raise UserError(("--set " if asked else "--preset ") + "; ".join(wrong))
        changed._path = self._path
        return changed

    def refused(self) -> Iterator[tuple[Where, str]]:
        """What the file sets that is not its to set, or that does not go together: where in the
        file, and why.
        """
        raise NotImplementedError

    def config_faults(self) -> Iterator[tuple[Where, Where, str]]:
        """Faults of the runs' configurations: the arm or value in the file, the setting, what about
        it.
        """
        raise NotImplementedError

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file; the user's own variants beside it (`mine.py` for `mine.yaml`) are known from
        then on.

        Raises:
            UserError: the file cannot be read, or all its faults, each as `file:line: what`.
        """
        from andrea.catalogue import load_user_variants

        source = yamlspec.read(path)
        load_user_variants(path)
        spec = source.validate(cls, cls._stand_ins(source.content))
        if spec is not None:
            for where, message in spec.refused():
                source.fault(where, message)
            for blamed, loc, message in spec.config_faults():
                here = loc if source.has(loc[:1]) else ("preset",)
                named = ".".join(map(str, blamed[: cls.NAMED.get(blamed[0], 2)])) if blamed else ""
                source.fault(blamed or here, f"{named}: {message}" if named else message)
        source.raise_faults()
        assert spec is not None, "what does not fit has noted a fault"
        return spec.at(path)

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """JSON schema of the file, for editors."""
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            **cls.model_json_schema(),
        }

    @classmethod
    def _stand_ins(cls, content: Mapping[str, Any]) -> dict[str, Any]:
        """What takes the place of required parts with a fault, so that the rest can be
        checked too.
        """
        return {"question": "?"}

    def section_faults(self) -> Iterator[tuple[str, str]]:
        """Settings of the sections that are refused, dotted, and why."""
        for key in dotted({"model": self.model, "data": self.data, "train": self.train}):
            if key in self.REFUSED:
                yield key, f"{key}: {self.REFUSED[key]}"

    def _why_not(self, key: str) -> str | None:
        """Why the command line may not set this."""
        head = key.partition(".")[0]
        sections = [
            name for name, field in type(self).model_fields.items() if name in self._sections()
        ]
        if key in self.REFUSED:
            return self.REFUSED[key]
        if head not in sections:
            meant = full_name(key)
            return f"unknown; {did_you_mean(meant) if meant else nearest(head, sections)}"
        if "." not in key and key not in self.WORDS:
            return f"a section; set one of its settings, {key}.NAME"
        return None

    def _sections(self) -> tuple[str, ...]:
        return ("model", "data", "train")


def run_faults(settings: Mapping[str, Any]) -> Iterator[tuple[Where, str]]:
    """Faults of a run's settings: where (in RunConfig) and what."""
    try:
        RunConfig.model_validate(settings)
    except ValidationError as error:
        for detail, message in zip(error.errors(), list_faults(RunConfig, error), strict=True):
            yield detail["loc"], message


def unknown(kind: str, name: str, known: Mapping[str, Any]) -> NoReturn:
    """Say that there is no such thing, and what comes close."""
    raise UserError(f"no {kind} {name!r}; {nearest(name, known)}")
