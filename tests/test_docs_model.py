"""docs/model.md has a row for every variant, every setting and every architecture, and names what
exists.
"""

import re
from pathlib import Path

import pytest

from andrea.model.config import ModelConfig
from andrea.model.hf.registry import ARCHITECTURES
from andrea.model.registry import VARIANTS, variant

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "model.md").read_text(encoding="utf-8")
SECTIONS = {
    found[1]: body
    for head, body in re.findall(r"^## (.*)\n((?:(?!^## ).*\n?)*)", TEXT, re.MULTILINE)
    if (found := re.search(r"`(\w+)`$", head))
}
"""What stands under the heading of each axis."""


def rows(text: str) -> dict[str, list[str]]:
    """Cells of the rows of all tables by the name in the first of them."""
    cells = [
        re.split(r"(?<!\\)\|", line.strip().strip("|"))
        for line in text.splitlines()
        if line.startswith("| `")
    ]
    return {first.strip().strip("`"): [cell.strip() for cell in rest] for first, *rest in cells}


@pytest.mark.parametrize("axis", VARIANTS)
def test_every_variant_has_its_row_with_its_class_and_a_proof(axis: str) -> None:
    found = rows(SECTIONS[axis])
    shipped = [name for name, target in VARIANTS[axis].items() if target.startswith("andrea.")]
    assert set(shipped) == set(found) - set(ModelConfig.model_fields)
    for name in shipped:
        assert f"`{variant(axis, name).__name__}`" in found[name], name
        assert all(found[name]), f"{name}: an empty cell"


def test_every_setting_has_its_row_or_its_section() -> None:
    told = set(SECTIONS) | set(rows(TEXT))
    assert set(ModelConfig.model_fields) - told == set()
    everything = (
        set(ModelConfig.model_fields)
        | set(ARCHITECTURES)
        | {n for names in VARIANTS.values() for n in names}
    )
    assert set(rows(TEXT)) <= everything


def test_every_architecture_has_its_row_with_its_class() -> None:
    found = rows(TEXT)
    for name, architecture in ARCHITECTURES.items():
        assert found[name][-1] == architecture.class_name


def test_what_is_named_as_proof_exists() -> None:
    for path in re.findall(r"`(tests/[\w/]+\.py|andrea/[\w/]+\.py)`", TEXT):
        assert (ROOT / path).is_file(), path
    for name in re.findall(r"`(test_\w+\.py)`", TEXT):
        assert (ROOT / "tests" / name).is_file(), name
    classes = {architecture.class_name for architecture in ARCHITECTURES.values()}
    assert set(re.findall(r"\b\w+(?:ForCausalLM|LMHeadModel)\b", TEXT)) == classes
