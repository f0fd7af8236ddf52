"""`andrea export hf` and `andrea import hf`: from a run to transformers and back; what is wrong is
one line.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_models import built, configured, transformers
from test_cli_train import RUNNER, SMALL
from typer.testing import Result

from andrea.cli.app import app
from andrea.data.prepared import load_tokenizer, open_prepared
from andrea.model.folder import load_model
from andrea.store.runs import RunStore
from andrea.training.load import load_run_model

TEXT = "".join(f"Chapter {i}: it was a dark and stormy night, «naïve» 世.\n" for i in range(400))


def andrea(*arguments: Any) -> Result:
    return RUNNER.invoke(app, [str(argument) for argument in arguments], prog_name="andrea")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A runs folder with one run per tokenizer, their ids in `ids.json`."""
    folder = tmp_path_factory.mktemp("exchange")
    (folder / "book.txt").write_text(TEXT)
    ids = {}
    for tokenizer in ("byte", "char", "bpe-300"):
        source = [
            "--set",
            f"data.source=text:{folder / 'book.txt'}",
            "--set",
            f"data.tokenizer={tokenizer}",
        ]
        done = andrea(
            "train",
            *SMALL,
            *source,
            "--tokens",
            160,
            "--runs",
            folder / "runs",
            "--json",
            "--wandb",
            "off",
        )
        assert done.exit_code == 0, done.stderr
        ids[tokenizer] = json.loads(done.stdout)["run_id"]
    (folder / "ids.json").write_text(json.dumps(ids))
    return folder


def run_of(place: Path, tokenizer: str) -> str:
    return str(json.loads((place / "ids.json").read_text())[tokenizer])


@pytest.mark.parametrize("tokenizer", ["byte", "char", "bpe-300"])
def test_a_run_becomes_a_model_and_a_tokenizer_of_transformers(
    place: Path, tokenizer: str, tmp_path: Path
) -> None:
    run, runs = run_of(place, tokenizer), place / "runs"
    done = andrea("export", "hf", run[:10], "--out", tmp_path / "theirs", "--runs", runs, "--json")
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["architecture"], told["notes"]) == ("gpt2", [])
    assert told["files"] == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    ours, cfg, data = load_run_model(RunStore(runs), run)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "theirs")
    mine, its = (
        load_tokenizer(open_prepared(data)),
        transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs"),
    )
    text = TEXT[1000:1100]
    ids = its(text)["input_ids"]
    assert ids == mine.encode(text).tolist()
    assert its.decode(ids) == text
    assert (its.eos_token_id, theirs.config.eos_token_id) == (mine.end, mine.end)
    tokens = torch.tensor([ids[: cfg.model.context]])
    torch.testing.assert_close(theirs(tokens).logits, ours(tokens), atol=1e-5, rtol=1e-5)


def test_a_folder_of_transformers_comes_in_and_goes_out_with_its_tokenizer(
    place: Path, tmp_path: Path
) -> None:
    run = run_of(place, "byte")
    assert (
        andrea("export", "hf", run, "--out", tmp_path / "a", "--runs", place / "runs").exit_code
        == 0
    )
    done = andrea("import", "hf", tmp_path / "a", "--out", tmp_path / "b")
    assert done.exit_code == 0 and "gpt2" in done.stdout, done.stderr
    assert andrea("export", "hf", tmp_path / "b", "--out", tmp_path / "c").exit_code == 0
    for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "c" / name).read_bytes()
    model, _, _ = load_run_model(RunStore(place / "runs"), run)
    tokens = torch.arange(8)[None]
    assert torch.equal(load_model(tmp_path / "b")(tokens), model(tokens))


def test_a_run_whose_data_are_gone_is_exported_without_its_tokenizer(
    place: Path, tmp_path: Path
) -> None:
    shutil.copytree(place / "runs", tmp_path / "runs", ignore=shutil.ignore_patterns("data"))
    done = andrea(
        "export", "hf", run_of(place, "byte"), "--out", tmp_path / "a", "--runs", tmp_path / "runs"
    )
    assert done.exit_code == 0, done.stderr
    assert "no tokenizer: the run's data in" in done.stdout
    assert not (tmp_path / "a" / "tokenizer.json").exists()


def refused(*arguments: Any) -> str:
    """The line of a command that is refused; nothing is left behind."""
    done = andrea(*arguments)
    assert done.exit_code == 2, done.output
    lines = [line for line in done.stderr.splitlines() if not line.startswith("warning")]
    assert len(lines) == 1 and lines[0].startswith("andrea: ")
    assert done.stdout == ""
    return lines[0]


def test_a_run_that_is_not_there_or_not_one_is_refused(place: Path, tmp_path: Path) -> None:
    export = ("export", "hf")
    out = ("--out", tmp_path / "a", "--runs", place / "runs")
    assert "no run 'zz' in" in refused(*export, "zz", *out)
    assert "no run ''" in refused(*export, "", *out)
    assert "no such folder" in refused(*export, "nowhere/model", *out)
    assert "it has no config.json" in refused(*export, place, *out)
    unfinished = place / "runs" / "runs" / "zy" / "zyx.1"
    unfinished.mkdir(parents=True)
    assert "has not finished" in refused(*export, "zyx", *out)
    shutil.rmtree(unfinished.parent)
    run = run_of(place, "byte")
    assert "unknown architecture 'bert'" in refused(*export, run, *out, "--arch", "bert")
    assert "; --arch gpt2 fits" in refused(*export, run, *out, "--arch", "llama")
    assert "is there already" in refused(*export, run, "--out", tmp_path, "--runs", place / "runs")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A folder that transformers saved."""
    folder = tmp_path / "theirs"
    built("llama", configured("llama", "odd"), 1).save_pretrained(folder)
    return folder


def change(folder: Path, **settings: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


DAMAGES = [
    (lambda folder: (folder / "config.json").unlink(), "no model folder: it has no config.json"),
    (lambda folder: (folder / "config.json").write_text("{"), "damaged, not JSON"),
    (lambda folder: (folder / "config.json").write_text("[]"), "damaged, not a JSON object"),
    (
        lambda folder: change(folder, model_type="lama"),
        "did you mean 'llama'? (known: gpt2, openai-gpt, gpt_neox",
    ),
    (lambda folder: change(folder, model_type=None), "there are gpt2, openai-gpt"),
    (
        lambda folder: change(folder, hidden_act="gelu_10"),
        "hidden_act 'gelu_10': andrea has no such MLP",
    ),
    (lambda folder: change(folder, quantization_config={"bits": 4}), "the weights are quantized"),
    (lambda folder: change(folder, rope_parameters={"rope_type": "yarn"}), "rope_type 'yarn'"),
    (lambda folder: change(folder, hidden_size="wide"), "d_model: input should be a valid integer"),
    (
        lambda folder: change(folder, num_attention_heads="x", head_dim=None),
        "settings that make no sense (TypeError",
    ),
    (lambda folder: change(folder, rms_norm_eps=-1), "norm_eps: input should be greater than 0"),
    (
        lambda folder: change(folder, num_hidden_layers=3),
        "missing tensors: model.layers.2.input_layernorm.weight, ",
    ),
    (
        lambda folder: change(folder, num_hidden_layers=10**9),
        "cannot be the weights of 1,000,000,000 blocks",
    ),
    (
        lambda folder: change(folder, num_hidden_layers=1),
        "tensors that llama does not have: model.layers.1.",
    ),
    (
        lambda folder: change(folder, vocab_size=8),
        "weight is 7 × 18, the configuration makes it 8 × 18",
    ),
    (lambda folder: (folder / "model.safetensors").unlink(), "it has no model.safetensors"),
    (lambda folder: (folder / "model.safetensors").write_bytes(b""), "torn or no safetensors file"),
    (
        lambda folder: (folder / "model.safetensors").write_bytes(
            (folder / "model.safetensors").read_bytes()[:-9]
        ),
        "torn or no safetensors file",
    ),
    (
        lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
        "a pickle (pytorch_model.bin), which could run foreign code and is not opened",
    ),
]


@pytest.mark.parametrize(("damage", "said"), DAMAGES, ids=[said for _, said in DAMAGES])
def test_a_folder_that_is_damaged_or_unfamiliar_is_refused(
    theirs: Path, damage: Any, said: str
) -> None:
    damage(theirs)
    line = refused("import", "hf", theirs, "--out", theirs.parent / "a")
    assert said in line and str(theirs) in line
    assert [path.name for path in theirs.parent.iterdir()] == ["theirs"]


def test_the_wrong_kind_of_folder_is_told_from_the_right_one(theirs: Path, tmp_path: Path) -> None:
    assert "`andrea import hf` reads it" in refused("export", "hf", theirs, "--out", tmp_path / "a")
    assert andrea("import", "hf", theirs, "--out", tmp_path / "ours").exit_code == 0
    line = refused("import", "hf", tmp_path / "ours", "--out", tmp_path / "a")
    assert "is andrea's own already" in line
    change(tmp_path / "ours", format=2)
    assert "of format 2, this andrea reads 1" in refused(
        "export", "hf", tmp_path / "ours", "--out", tmp_path / "a"
    )


def test_none_of_it_needs_transformers(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    for name in [name for name in sys.modules if name.split(".")[0] == "transformers"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "transformers", None)
    run = run_of(place, "bpe-300")
    assert (
        andrea("export", "hf", run, "--out", tmp_path / "a", "--runs", place / "runs").exit_code
        == 0
    )
    assert andrea("import", "hf", tmp_path / "a", "--out", tmp_path / "b").exit_code == 0
