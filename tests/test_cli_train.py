"""`andrea train`: one run through the store, never twice, and resumable."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from andrea.cli.app import app
from andrea.verdict.seeds import tuning_seed

RUNNER = CliRunner()
SMALL = [
    "--set",
    "model.n_layer=1",
    "--set",
    "model.d_model=8",
    "--set",
    "model.n_head=1",
    "--set",
    "model.context=8",
]
SMALL += [
    "--set",
    "train.batch_size=2",
    "--set",
    "data.eval_tokens=64",
    "--set",
    "data.curve_tokens=16",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A text, a runs folder, and the first training of a config in it."""
    folder = tmp_path_factory.mktemp("train")
    (folder / "book.txt").write_text(
        "".join(f"Chapter {i}: it was a dark and stormy night. " for i in range(400))
    )
    return folder, train(folder, "--json", "--wandb", "off")


def train(folder, *options):
    source = [
        "--set",
        f"data.source=text:{folder / 'book.txt'}",
        "--tokens",
        "160",
        "--runs",
        str(folder / "runs"),
    ]
    return RUNNER.invoke(app, ["train", *SMALL, *source, *options], prog_name="andrea")


def test_json_is_the_result_and_nothing_else_on_stdout(place):
    folder, first = place
    assert first.exit_code == 0, first.output
    result = json.loads(first.stdout)
    assert result["outcome"] == "completed" and result["tokens"] == 160
    assert result["trained_before"] is False
    assert (
        folder / "runs" / "runs" / result["run_id"][:2] / result["run_id"] / "result.json"
    ).exists()
    assert "100%  160 tokens  loss" in first.stderr


def test_a_config_is_trained_once_and_its_result_shown_the_second_time(place):
    folder, first = place
    again = train(folder, "--json")
    assert again.exit_code == 0
    assert "this config is trained already" in again.stderr
    before, after = json.loads(first.stdout), json.loads(again.stdout)
    assert after.pop("trained_before") is True
    before.pop("trained_before")
    assert after == before


def test_a_run_by_hand_reads_neither_the_verdicts_text_nor_their_seeds(place):
    folder, first = place
    result = json.loads(first.stdout)
    config = json.loads((Path(result["folder"]) / "config.json").read_text())["config"]
    assert result["eval_part"] == config["data"]["eval_part"] == "tune"
    assert config["seed"] == tuning_seed(0)
    assert "loss (tune part)" in train(folder).stdout
    asked = train(folder, "--set", "data.eval_part=verdict", "--set", "seed=3")
    assert "loss (verdict part)" in asked.stdout and asked.exit_code == 0
    assert "tune part" in RUNNER.invoke(app, ["train", "--help"]).stdout


def test_another_seed_is_another_run(place):
    folder, first = place
    other = train(folder, "--seed", "5", "--json")
    assert json.loads(other.stdout)["run_id"] != json.loads(first.stdout)["run_id"]


def test_the_result_reads_as_a_table(place):
    folder, _ = place
    text = train(folder).stdout
    assert "outcome" in text and "completed" in text and "bits per byte" in text


def test_a_failed_run_is_one_line_and_exit_1(place, monkeypatch):
    folder, _ = place

    def broken(*_, **__):
        raise RuntimeError("the loop broke")

    monkeypatch.setattr("andrea.training.job.train", broken)
    result = train(folder, "--seed", "9")
    assert result.exit_code == 1
    said = "the run failed: RuntimeError: the loop broke; the same command given again resumes it"
    assert result.stderr == f"andrea: {said}\n"


def test_a_run_that_another_process_trains_is_left_to_it(place):
    from andrea.store.runs import RunStore

    folder, _ = place
    config = ["--seed", "11"]
    known = json.loads(train(folder, *config, "--json").stdout)["run_id"]
    store = RunStore(folder / "runs")
    store.folder(known).rename(folder / "aside")
    with store.claim(known):
        result = train(folder, *config)
    assert result.exit_code == 1
    assert "is being trained by another process" in result.stderr


def test_a_users_own_variant_is_trained_and_shown_and_its_source_is_part_of_the_run(
    place, tmp_path
):
    from andrea.model.registry import VARIANTS

    folder, _ = place
    script = tmp_path / "own.py"
    text = (
        "from andrea.model.registry import register\n"
        "from andrea.model.mlps import Relu\n"
        "class Mine(Relu): pass\n"
        "register('activation', 'by_hand', f'{__name__}:Mine')\n"
    )
    own = ["--variants", str(script), "--set", "model.activation=by_hand"]

    def trained(source):
        script.write_text(source)
        result = train(folder, *own, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    try:
        first = trained(text)
        identity = json.loads((Path(first["folder"]) / "config.json").read_text())["identity"]
        assert "activation=by_hand source" in identity["numerics"]
        assert trained(text + "# changed\n")["run_id"] != first["run_id"]
        for command in (["show", "tiny"], ["compare", "tiny", "gpt2"]):
            shown = RUNNER.invoke(app, ["model", *command, *own], prog_name="andrea")
            assert shown.exit_code == 0, shown.output
    finally:
        VARIANTS["activation"].pop("by_hand", None)


def test_a_variant_that_cannot_be_built_is_refused(place, tmp_path):
    from andrea.model.registry import VARIANTS

    script = tmp_path / "broken.py"
    script.write_text(
        "from andrea.model.registry import register\n"
        "from andrea.model.mlps import Relu\n"
        "class Mine(Relu):\n"
        "    @classmethod\n"
        "    def build(cls, cfg): raise RuntimeError('not yet')\n"
        "register('activation', 'broken', f'{__name__}:Mine')\n"
    )
    try:
        result = train(place[0], "--variants", str(script), "--set", "model.activation=broken")
    finally:
        VARIANTS["activation"].pop("broken", None)
    assert result.exit_code == 2
    assert result.stderr.startswith(
        "andrea: --variants, model.activation 'broken' (broken.py:5): RuntimeError: not yet"
    )


def test_epochs_have_three_digits(place):
    assert "(0.00 epochs)" not in train(place[0]).stdout
