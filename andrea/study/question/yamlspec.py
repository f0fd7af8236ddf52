"""YAML in which every value knows its line, so that a fault is named as `file:line: what is
wrong`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from andrea.config import Loader, list_faults
from andrea.errors import UserError

SchemaT = TypeVar("SchemaT", bound=BaseModel)
MAX_BYTES = 1 << 20
"""A larger file is refused."""
MAX_VALUES = 20_000
"""A file with more values is refused; aliases count as often as they are used."""
Where = tuple[str | int, ...]
"""Keys and indices from the root of the file to a value."""


class Source:
    """A YAML file: its content as plain values, the line of each, and the faults so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content: dict[str, Any] = {}
        self._lines: dict[Where, int] = {(): 1}
        self._faults: list[tuple[int, str]] = []
        self._values = 0

    def add_fault(self, where: Where, message: str) -> None:
        """Note a fault of the value at `where`, once."""
        fault = (self._line_of(where), message)
        if fault not in self._faults:
            self._faults.append(fault)

    def _line_of(self, where: Where) -> int:
        """Return the line of the value at `where`, or of the nearest one around it in the file."""
        while where not in self._lines:
            where = where[:-1]
        return self._lines[where]

    def has(self, where: Where) -> bool:
        """Return whether the file has a value at `where`."""
        return where in self._lines

    def validate(self, schema: type[SchemaT], placeholders: Mapping[str, Any]) -> SchemaT | None:
        """Return the content as a schema, and note every fault.

        Parts with a fault are left out, and `placeholders` stand for those that are required, so
        that the rest can be checked too; None where the rest does not fit either.
        """
        try:
            return schema.model_validate(self.content)
        except ValidationError as error:
            for detail, message in zip(error.errors(), list_faults(schema, error), strict=True):
                self.add_fault(detail["loc"], message)
            faulty = {detail["loc"][0] for detail in error.errors() if detail["loc"]}
        sound = {key: value for key, value in self.content.items() if key not in faulty}
        try:
            return schema.model_validate({**placeholders, **sound})
        except ValidationError:
            return None

    def raise_faults(self) -> None:
        """Raise the faults, if there are any.

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
        if self._values > MAX_VALUES:
            raise UserError(
                f"{self.path}:{node.start_mark.line + 1}: too much in it: more than {MAX_VALUES:,} "
                "values"
            )
        if id(node) in above:
            self.add_fault(where, "refers to itself")
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
            self.add_fault(where, f"cannot be read: {getattr(error, 'problem', None) or error}")
            return None

    def _read_mapping(
        self, node: yaml.MappingNode, where: Where, above: frozenset[int], loader: yaml.SafeLoader
    ) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._lines.setdefault((*where, "?"), key_node.start_mark.line + 1)
                self.add_fault((*where, "?"), "a name cannot be a list or a mapping")
                continue
            # Names are text: the arm `no` is not False and the arm `8` not a number.
            key = key_node.value
            line = key_node.start_mark.line + 1
            if key in values:
                first = self._lines[(*where, key)]
                self._faults.append((line, f"{key} is given twice; the first is on line {first}"))
                continue
            self._lines[(*where, key)] = line
            values[key] = self._read(value_node, (*where, key), above, loader)
        return values


def read(path: Path) -> Source:
    """Read a YAML file whose root is a mapping.

    Raises:
        UserError: it cannot be read, is not YAML (with the line), or is not a mapping.
    """
    source = Source(path)
    try:
        if path.stat().st_size > MAX_BYTES:
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
