"""What a careless or hostile hand gives to `model`, `trace`, `export`, `import`: one line, exit 2,
nothing written.
"""

import json
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner, Result

from andrea.cli.app import app
from andrea.data import tokenizers
from andrea.errors import StudyError
from andrea.model.config import ModelConfig
from andrea.model.folder import save_model
from andrea.model.gpt import build_model
from andrea.model.hf.convert import export_hf
from andrea.model.registry import VARIANTS
from andrea.model.size_matching import fit_setting

SMALL = ModelConfig(vocab_size=256, context=8, d_model=16, n_layer=1, n_head=2)
TURNED = ModelConfig(
    vocab_size=256, context=8, d_model=16, n_layer=1, n_head=2, norm="rmsnorm", activation="swiglu",
    positions="rope", bias=False, tied=False,
)  # fmt: skip
HUGE = 10**12


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a model of ours, one of GPT-2 and one of Llama."""
    monkeypatch.chdir(tmp_path)
    save_model(build_model(SMALL, 1), tmp_path / "ours")
    export_hf(build_model(SMALL, 1), tmp_path / "theirs")
    export_hf(build_model(TURNED, 1), tmp_path / "llama")
    return tmp_path


def andrea(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), prog_name="andrea")


def refused(*arguments: str) -> str:
    """The line of a command that must fail as a user's mistake and write nothing beside what was
    there.
    """
    before = sorted(str(path) for path in Path().rglob("*"))
    result = andrea(*arguments)
    assert result.exit_code == 2, (result.stdout, result.stderr, result.exception)
    assert result.stderr.startswith("andrea: ") and result.stderr.count("\n") == 1, result.stderr
    assert sorted(str(path) for path in Path().rglob("*")) == before
    return result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", ""], "no preset ''"),
        (["compare", "tiny", ":n_layer=3"], "no preset ''"),
        (["compare", "tiny", "tiny"], "tiny: named twice"),
        (["compare", "tiny", "gpt2", "gpt2", "--match", "params"], "gpt2: named twice"),
        (["show", "tiny", "--set", "train.lr=1"], "only settings of model are read"),
        (
            ["compare", "tiny", "gpt2", "--set", "data.tokenizer=bpe-999"],
            "only settings of model are read",
        ),
        (["show", "tiny", "--set", "seed=3"], "only settings of model are read"),
        (["show", "tiny", "--set", "lr=3"], "only settings of model are read"),
        (["show", "tiny", "--set", "activation=relu"], "did you mean 'model.activation'?"),
        (["show", "tiny", "--batch", "9" * 400], "less than or equal to 1000000000000"),
    ],
)
def test_a_model_that_nobody_named_and_a_setting_that_nothing_reads_are_refused(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refused("model", *arguments)


@pytest.mark.parametrize("value", ["1e308", "5e-324"])
@pytest.mark.parametrize(
    "setting",
    ["norm_eps", "init_std", "attn_scale", "attn_softcap", "logit_softcap", "embedding_scale"],
)
def test_a_number_that_float32_cannot_compute_with_is_refused(
    setting: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = refused("model", "show", "tiny", "--set", f"model.{setting}={value}")
    assert f"model: {setting}" in said and "beyond what float32 computes with" in said


def test_a_size_is_matched_up_to_the_largest_that_there_is() -> None:
    fitted = fit_setting(SMALL, 1e30, "params", "n_layer")
    assert fitted is not None and fitted.became == HUGE


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--preset", ""], "no preset ''"),
        (["--run", ""], "no run ''"),
        (["--run", "ab", "--preset", ""], "leave out --preset"),
        (["--seed", str(2**64)], "less than or equal to"),
        (["--top", "5"], "give that too"),
        (["--html", "none/page.html"], "there is no folder none"),
        (["--html", "ours/config.json/page.html"], "there is no folder ours/config.json"),
        (["--html", "n" * 300], "name another file"),
        (["--html", "pipe"], "a device or pipe"),
        (["--set", "model.n_layer=1000000000"], "make it smaller"),
        (["--set", f"model.d_model={HUGE}"], "make it smaller"),
        (["--set", f"model.context={HUGE}", "--set", "model.positions=rope"], "make it smaller"),
        (
            ["--set", "model.residual=layerscale", "--set", "model.layerscale_init=1e300"],
            "beyond what float32",
        ),
    ],
)
def test_what_cannot_be_traced_or_drawn_is_refused_before_it_is_built(
    here: Path, options: list[str], said: str
) -> None:
    os.mkfifo("pipe")
    assert said in refused("trace", "hello", *options)


def described(**settings: Any) -> Any:
    """A damage: other settings in config.json."""

    def damage(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | settings))

    return damage


def weighing(tensor: torch.Tensor) -> Any:
    """A damage: another token table."""

    def damage(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        save_file(tensors | {"transformer.wte.weight": tensor}, folder / "model.safetensors")

    return damage


def replaced(name: str, make: Any) -> Any:
    """A damage: something else in the place of a file."""

    def damage(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return damage


DAMAGES: dict[str, tuple[str, Any, str]] = {
    "a pipe": ("theirs", replaced("config.json", os.mkfifo), "config.json: not a file"),
    "a folder": ("theirs", replaced("config.json", Path.mkdir), "config.json: not a file"),
    "a loop": (
        "theirs",
        replaced("config.json", lambda path: path.symlink_to(path.name)),
        "config.json: not a file",
    ),
    "width": ("theirs", described(n_embd=HUGE), "make it smaller"),
    "context": ("llama", described(max_position_embeddings=HUGE), "make it smaller"),
    "epsilon": ("theirs", described(layer_norm_epsilon=1e308), "beyond what float32"),
    "NaN": ("theirs", weighing(torch.full((256, 16), torch.nan)), "not finite"),
    "large": (
        "theirs",
        weighing(torch.full((256, 16), 1e300, dtype=torch.float64)),
        "not finite in float32",
    ),
    "8 bits": ("theirs", weighing(torch.zeros(256, 16, dtype=torch.float8_e4m3fn)), "quantized"),
    "pickle": (
        "theirs",
        replaced("model.safetensors", lambda path: path.write_bytes(pickle.dumps([1]))),
        "no safetensors file",
    ),
    "header": (
        "theirs",
        replaced("model.safetensors", lambda path: path.write_bytes(struct.pack("<Q", 2**63))),
        "no safetensors file",
    ),
    "tokenizer": (
        "theirs",
        replaced("tokenizer.json", lambda path: path.write_text("{")),
        "tokenizer.json: damaged",
    ),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_a_hostile_folder_is_not_imported(here: Path, case: str) -> None:
    folder, damage, said = DAMAGES[case]
    damage(here / folder)
    assert said in refused("import", "hf", folder, "--out", "out")


def test_our_own_folder_may_lie_about_its_sizes_too(here: Path) -> None:
    described(model=SMALL.model_dump(mode="json") | {"d_model": HUGE})(here / "ours")
    assert "make it smaller" in refused("export", "hf", "ours", "--out", "out")
    assert "make it smaller" in refused("trace", "hello", "--run", "ours")


@pytest.mark.parametrize("out", ["/proc/out", "n" * 300])
def test_a_target_that_cannot_be_made_is_refused(here: Path, out: str) -> None:
    assert "cannot be made" in refused("export", "hf", "ours", "--out", out)


@pytest.mark.parametrize(
    "description",
    [{}, {"kind": "char"}, {"kind": "bpe"}, {"kind": "bpe", "tokenizer": {}}, {"kind": "other"}],
)
def test_a_damaged_description_of_a_tokenizer_is_said(description: dict[str, Any]) -> None:
    with pytest.raises(StudyError, match="the description of the tokenizer is damaged"):
        tokenizers.make_tokenizer(description)


MINE = """
from andrea.model.registry import register
from andrea.model.mlps import Mlp


class Mine(Mlp):
    activation = None
    {body}


{after}
register("activation", "mine", f"{{__name__}}:Mine")
"""


@pytest.mark.parametrize(
    ("body", "after", "said"),
    [
        ("refuse = 3", "", "its `refuse` fails (TypeError"),
        (
            "refuse = classmethod(lambda cls, cfg: 1 / 0)",
            "",
            "its `refuse` fails (ZeroDivisionError",
        ),
        (
            "refuse = classmethod(lambda cls, cfg: 7)",
            "",
            "its `refuse` gives 7, neither a reason nor None",
        ),
        ("count = classmethod(lambda cls, cfg: 1 / 0)", "", "mine.py:8): ZeroDivisionError"),
        ("count = classmethod(lambda cls, cfg: None)", "", "model.activation 'mine'"),
        ("pass", "Mine = 3", "no class"),
    ],
)
@pytest.mark.parametrize("command", [["show"], ["compare", "gpt2"]])
def test_a_variant_with_a_fault_is_one_line_of_model_show_and_compare(
    command: list[str],
    body: str,
    after: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE.format(body=body, after=after))
    try:
        assert said in refused(
            "model", *command, "tiny", "--variants", "mine.py", "--set", "model.activation=mine"
        )
    finally:
        VARIANTS["activation"].pop("mine", None)
