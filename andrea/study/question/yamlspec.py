"""YAML in which every value knows its line, so that a fault is named as `file:line: what is
wrong`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from andrea.config import Loader, list_faults
from andrea.errors import UserError

SchemaT = TypeVar("SchemaT", bound=BaseModel)
LARGEST = 1 << 20
"""Bytes of a file that is read."""
VALUES = 20_000
"""Values of a file that are read; aliases count as often as they are used."""
Where = tuple[str | int, ...]
"""Keys and indices from the root of the file to a value."""


class Source:
    """A YAML file: its content as plain values, where each of them stands, and the faults found so
    far.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content: dict[str, Any] = {}
        self._lines: dict[Where, int] = {(): 1}
        self._faults: list[tuple[int, str]] = []
        self._values = 0

    def fault(self, where: Sequence[str | int], message: str) -> None:
        """Note a fault of the value at `where`; the same one twice is noted once."""
        found = (self.line(where), message)
        if found not in self._faults:
            self._faults.append(found)

    def line(self, where: Sequence[str | int]) -> int:
        """Line of the value at `where`, or of the nearest thing around it that is in the file."""
        at = tuple(where)
        while at not in self._lines:
            at = at[:-1]
        return self._lines[at]

    def has(self, where: Sequence[str | int]) -> bool:
        """Whether the file has something there."""
        return tuple(where) in self._lines

    def validate(self, schema: type[SchemaT], stand_ins: Mapping[str, Any]) -> SchemaT | None:
        """The content as a schema, with every fault noted.

        Where it does not fit, the faulty parts are left out (`stand_ins` for those that are
        required), so that what the rest has to say can be checked too; None where that does not
        help.
        """
        try:
            return schema.model_validate(self.content)
        except ValidationError as error:
            for detail, message in zip(error.errors(), list_faults(schema, error), strict=True):
                self.fault(detail["loc"], message)
            faulty = {detail["loc"][0] for detail in error.errors() if detail["loc"]}
        sound = {key: value for key, value in self.content.items() if key not in faulty}
        try:
            return schema.model_validate({**stand_ins, **sound})
        except ValidationError:
            return None

    def raise_faults(self) -> None:
        """End here if there is any fault.

        Raises:
            UserError: all faults in the order of the file: `file:3: …`, or `file: line 3: …` and a
                line for each other.
        """
        if len(self._faults) == 1:
            raise UserError("{}:{}: {}".format(self.path, *self._faults[0]))
        if self._faults:
            raise UserError(
                f"{self.path}: "
                + "\n".join(f"line {line}: {what}" for line, what in sorted(self._faults))
            )

    def _read(
        self, node: yaml.Node, where: Where, above: frozenset[int], loader: yaml.SafeLoader
    ) -> Any:
        self._values += 1
        if self._values > VALUES:
            raise UserError(
                f"{self.path}:{node.start_mark.line + 1}: too much in it: more than {VALUES:,} "
                "values"
            )
        if id(node) in above:
            self.fault(where, "refers to itself")
            return None
        above |= {id(node)}
        if isinstance(node, yaml.MappingNode):
            return self._read_mapping(node, where, above, loader)
        if isinstance(node, yaml.SequenceNode):
            values = []
            for index, item in enumerate(node.value):
                self._lines[(*where, index)] = item.start_mark.line + 1
                values.append(self._read(item, (*where, index), above, loader))
            return values
        try:
            return loader.construct_object(node, deep=True)
        except (yaml.YAMLError, ValueError) as error:
            self.fault(where, f"cannot be read: {getattr(error, 'problem', None) or error}")
            return None

    def _read_mapping(
        self, node: yaml.MappingNode, where: Where, above: frozenset[int], loader: yaml.SafeLoader
    ) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._lines.setdefault((*where, "?"), key_node.start_mark.line + 1)
                self.fault((*where, "?"), "a name cannot be a list or a mapping")
                continue
            # A name is what is written: the arm `no` is not False and the arm `8` not a number.
            key = key_node.value
            line = key_node.start_mark.line + 1
            if key in found:
                first = self._lines[(*where, key)]
                self._faults.append((line, f"{key} is given twice; the first is on line {first}"))
                continue
            self._lines[(*where, key)] = line
            found[key] = self._read(value_node, (*where, key), above, loader)
        return found


def read(path: Path) -> Source:
    """Read a YAML file whose root is a mapping.

    Raises:
        UserError: it cannot be read, is not YAML (with the line), or is not a mapping.
    """
    source = Source(path)
    try:
        if path.stat().st_size > LARGEST:
            raise UserError(f"{path}: larger than 1 MiB; that is no file of settings")
        loader = Loader(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start}") from error
    except yaml.reader.ReaderError as error:
        raise UserError(f"{path}: not YAML: {error.reason} at position {error.position}") from error
    try:
        root = loader.get_single_node()
        if not isinstance(root, yaml.MappingNode):
            raise UserError(
                f"{path}:1: not a mapping of settings, as in `question: …`; see the shipped ones "
                "for an example"
            )
        source.content = source._read(root, (), frozenset(), loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}" if mark else f"{path}"
        raise UserError(f"{where}: not YAML: {error.problem or error.context}") from error
    except RecursionError as error:
        raise UserError(f"{path}:{loader.line + 1}: nested too deep") from error
    finally:
        loader.dispose()
    return source
