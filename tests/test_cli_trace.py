"""`andrea trace`: aligned text, JSON, one line for every mistake, and the page it writes."""

import json
import re

import pytest
import torch
from conftest import generated_text
from report_page import Page
from typer.testing import CliRunner

from andrea.analysis.trace import page as stream
from andrea.analysis.trace import sentences as traces
from andrea.cli.app import app
from andrea.model.config import ModelConfig
from andrea.model.folder import save_model
from andrea.model.gpt import build_model

RUNNER = CliRunner()
SMALL = [
    "--set",
    "model.n_layer=2",
    "--set",
    "model.d_model=16",
    "--set",
    "model.n_head=2",
    "--set",
    "model.context=24",
]
EVIL = "<script>alert(1)</script>"


def trace(text, *options):
    return RUNNER.invoke(app, ["trace", text, *options], prog_name="andrea")


def traced(text, *options):
    result = trace(text, *SMALL, "--json", *options)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def refused(text, *options):
    """The one line on stderr."""
    result = trace(text, *options)
    assert result.exit_code == 2 and result.stdout == "" and result.stderr.count("\n") == 1
    return result.stderr


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A runs folder with one short training over characters, and the run's result."""
    folder = tmp_path_factory.mktemp("trace")
    (folder / "book.txt").write_text(
        "".join(f"Chapter {i}: it was a dark and stormy night. " for i in range(400))
    )
    settings = [
        f"data.source=text:{folder / 'book.txt'}",
        "data.tokenizer=char",
        "train.batch_size=2",
    ]
    settings += ["data.eval_tokens=64", "data.curve_tokens=16", "model.context=8"]
    options = [*SMALL[:-2], *(part for setting in settings for part in ("--set", setting))]
    options += ["--tokens", "160", "--runs", str(folder / "runs"), "--json", "--wandb", "off"]
    result = RUNNER.invoke(app, ["train", *options], prog_name="andrea")
    assert result.exit_code == 0, result.output
    return folder / "runs", json.loads(result.stdout)


def test_every_sublayer_has_a_line_in_aligned_columns_and_a_sentence_ends_it():
    result = trace("The union", *SMALL, "--logit-lens", "--token", "3")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[1] == 'token 3 (0 to 8): " " after "The"'
    assert re.fullmatch(
        r"embedding: token table [\d.]+ \+ position [\d.]+ → stream [\d.]+", lines[2]
    )
    rows = [line for line in lines if re.match(r"block \d (attention|MLP)", line)]
    assert len(rows) == 4 and len({len(row) for row in rows}) == 1
    below = lines.index(rows[-1]) + 1
    assert lines[below].startswith("reads, adds: norms of") and lines[below + 1].endswith(
        "the parts sum to 100\N{NO-BREAK SPACE}%."
    )
    assert lines[below + 2] == "", "the legend has two lines"
    assert any(
        re.match(r'head: stream [\d.]+, normalized [\d.]+ → .* the text goes on with "u", rank', x)
        for x in lines
    )
    lens = lines[lines.index(next(line for line in lines if line.startswith("logit lens"))) :]
    assert [line.split("  ")[0] for line in lens[1:4]] == ["embedding", "block 1", "block 2"]
    assert lines[-2].startswith("The blocks do not start as the identity") and lines[-1].endswith(
        "."
    )
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("placement", ["post", "deepnorm", "parallel", "sandwich"])
def test_every_placement_fits_into_a_hundred_columns_and_is_explained(placement):
    result = trace(
        "Fellow citizens",
        *SMALL,
        "--set",
        f"model.norm_placement={placement}",
        "--set",
        "model.n_layer=10",
    )
    assert result.exit_code == 0, result.stderr
    assert max(map(len, result.stdout.splitlines())) <= 100
    assert ("norm moves" in result.stdout) == (placement in ("post", "deepnorm"))
    assert ("read the same stream" in result.stdout) == (placement == "parallel")


def test_json_holds_what_the_text_says_and_the_tokens_texts():
    found = traced("héllo", "--token", "0")
    assert [one["text"] for one in found["tokens"]] == ["h", None, None, "l", "l", "o"]
    assert found["position"] == 0 and found["target"] == 195 and found["lens"] == []
    assert len(found["steps"]) == 4 and found["model"]["config"]["vocab_size"] == 256
    assert sum(step["share"] for step in found["steps"]) == pytest.approx(1, abs=1e-6)
    assert len(traced("héllo", "--logit-lens", "--top", "5")["lens"][0]["guesses"]) == 5


def test_the_seed_and_the_settings_are_the_models():
    first, again, other = traced("a b"), traced("a b", "--seed", "1"), traced("a b", "--seed", "2")
    assert first["steps"] == again["steps"] != other["steps"]
    still = traced("a b", "--set", "model.init=zero_out")
    assert still["summary"] == "No branch changes the stream: every block is the identity."
    near = traced(
        "a b", "--set", "model.residual=layerscale", "--set", "model.layerscale_init=1e-4"
    )
    assert (
        near["summary"]
        == "Every branch adds less than 1\xa0% of the stream: the blocks start near the identity."
    )
    off = traced("a b", "--set", "model.residual=off")
    assert off["summary"].startswith("There is no residual stream")


def test_a_post_norm_is_not_called_the_identity_however_small_its_branches():
    found = traced("a b", "--set", "model.norm_placement=post", "--set", "model.init_std=0.002")
    assert re.match(
        r"Every branch adds less than \d+\xa0% of the stream; the norms on the stream make",
        found["summary"],
    )


def test_tokens_count_from_the_end_and_one_that_is_not_there_lists_those_that_are():
    assert traced("abc", "--token", "-3")["position"] == 0
    line = refused("a\nb", *SMALL, "--token", "3")
    assert line == 'andrea: --token 3: the text has 3 tokens: 0 "a", 1 "\\n", 2 "b"\n'
    assert "the text has 3 tokens" in refused("abc", *SMALL, "--token", "-4")


def test_a_text_longer_than_the_context_is_cut_and_says_so():
    result = trace("x" * 100, *SMALL)
    assert "Of the text's 100 tokens the first 24 fit into the context." in result.stdout
    assert "token 23 (0 to 23)" in result.stdout


@pytest.mark.parametrize(
    ("text", "options", "reason"),
    [
        ("", [], "the text is empty"),
        ("\udcff", [], "not valid UTF-8"),
        ("a", ["--set", "train.lr=1"], "only settings of model are read"),
        ("a", ["--set", "model.vocab_size=100"], "read as bytes"),
        ("a", ["--run", "ab", "--seed", "1"], "leave out --preset, --set and --seed"),
        ("a", ["--run", "ab", "--runs", "nowhere"], "no run 'ab'"),
        ("a", ["--preset", "gpt3"], "did you mean 'gpt2'"),
        ("a", ["--html", "."], "is a folder"),
        ("a", ["--variants", "none.py"], "no such Python file"),
    ],
)
def test_a_mistake_is_one_line_that_says_how_to_mend_it(
    text, options, reason, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert reason in refused(text, *options)


def test_a_run_is_traced_with_its_own_tokenizer_by_a_beginning_of_its_id_or_by_its_folder(run):
    runs, result = run
    by_id = trace("stormy", "--run", result["run_id"][:6], "--runs", str(runs), "--json")
    assert by_id.exit_code == 0, by_id.stderr
    found = json.loads(by_id.stdout)
    assert [one["text"] for one in found["tokens"]] == [*"stormy"]
    assert found["model"]["loss"] == result["loss"] and found["summary"].startswith(
        "Of the way from the embedding"
    )
    by_folder = trace("stormy", "--run", result["folder"], "--json")
    assert json.loads(by_folder.stdout) == found
    told = trace("stormy", "--run", result["folder"]).stdout
    assert told.startswith(f"run {result['run_id'][:12]}, loss {result['loss']:.4f}: ")


def test_a_character_that_the_run_has_never_seen_is_one_line(run):
    line = refused("stormy €", "--run", run[1]["folder"])
    assert "'€' does not occur" in line


def test_a_run_whose_tokenizer_is_gone_says_how_to_make_it_again(run, tmp_path):
    import shutil

    shutil.copytree(run[0], tmp_path / "runs")
    shutil.rmtree(tmp_path / "runs" / "data")
    assert "andrea data prepare text:" in refused(
        "a", "--run", run[1]["run_id"], "--runs", str(tmp_path / "runs")
    )


def test_a_model_folder_is_traced_with_the_tokenizer_in_it_or_over_bytes(tmp_path):
    small = {"d_model": 8, "n_layer": 1, "n_head": 1, "context": 8}
    save_model(build_model(ModelConfig(vocab_size=256, **small)), tmp_path / "bytes")
    assert trace("abc", "--run", str(tmp_path / "bytes")).exit_code == 0
    save_model(build_model(ModelConfig(vocab_size=300, **small)), tmp_path / "words")
    assert "it has no tokenizer.json" in refused("abc", "--run", str(tmp_path / "words"))
    from andrea.data.tokenizers import train_bpe

    tokenizer = train_bpe([generated_text(500)], 290).to_dict()["tokenizer"]
    (tmp_path / "words" / "tokenizer.json").write_text(json.dumps(tokenizer))
    found = json.loads(trace("the people", "--run", str(tmp_path / "words"), "--json").stdout)
    assert [one["text"] for one in found["tokens"]][-1].endswith("people")


def test_numbers_that_are_not_finite_are_refused(tmp_path):
    model = build_model(ModelConfig(vocab_size=256, d_model=8, n_layer=1, n_head=1, context=8))
    with torch.no_grad():
        model.blocks[0].mlp.down.bias.fill_(float("nan"))
    save_model(model, tmp_path / "broken")
    assert "not finite" in refused("abc", "--run", str(tmp_path / "broken"))


def test_the_page_says_what_the_text_says_without_a_script_or_an_address(tmp_path):
    found = traced(
        f"{EVIL}\n&",
        "--token",
        "3",
        "--logit-lens",
        "--html",
        str(tmp_path / "trace.html"),
        *CONTEXT,
    )
    assert found["html"] == str(tmp_path / "trace.html")
    page = (tmp_path / "trace.html").read_text(encoding="utf-8")
    read = Page(page)
    assert not [tag for tag, _ in read.elements if tag in ("script", "img", "a", "iframe")]
    assert EVIL not in page and "<script>alert(1)</script>" in read.text.replace("\n", "")
    assert found["summary"] in read.text and "\\n" in read.text
    assert (
        f"3 (0 to {len(found['tokens']) - 1})" in read.text and "Reads, adds: norms of" in read.text
    )
    assert not re.search(r"(?:https?:)?//", page)
    assert (
        sum(tag == "svg" and "aria-hidden" in attributes for tag, attributes in read.elements) >= 6
    )


CONTEXT = ["--set", "model.context=40"]


@pytest.mark.parametrize(
    "placement", ["pre", "post", "deepnorm", "parallel", "parallel_two", "none"]
)
@pytest.mark.parametrize("residual", ["on", "off", "rezero"])
def test_every_model_can_be_drawn(placement, residual):
    if placement == "deepnorm" and residual != "on":
        return
    found = traced(
        "ab", "--set", f"model.norm_placement={placement}", "--set", f"model.residual={residual}"
    )
    page = stream.render_page(found)
    assert page.startswith("<!DOCTYPE html>") and page.count('<text class="letter') == 4
    on_the_stream = placement in ("post", "deepnorm") and residual != "off"
    assert page.count('class="bar" x=') == 4 * on_the_stream + (found["normed"] is not None)
    replaced = (2 if placement.startswith("parallel") else 4) if residual == "off" else 0
    assert page.count('class="trunk gone"') == replaced
    assert not [path for path in re.findall(r' d="([^"]*)"', page) if "n" in path.lower()]


def test_a_branch_is_as_wide_as_its_norm_and_coloured_by_its_cosine():
    step = {
        "sublayer": "mlp",
        "before": 4.0,
        "source": 4.0,
        "read": 1.0,
        "added": 2.0,
        "moved": 0.0,
        "after": 5.0,
    }
    drawn = stream.draw_sublayer({**step, "cosine": 0.25}, 8.0)
    numbers = [float(number) for number in re.findall(r"[\d.]+", drawn["branch"])]
    entry = re.search(r"V([\d.]+)C", drawn["branch"])
    assert float(entry[1]) - (41 - 8) == pytest.approx(16) and max(numbers) < 116
    assert "arm-1) 50%" in drawn["color"] and "arm-2) 100%" in stream.cosine_color(-0.7)
    assert stream.cosine_color(None) == "var(--band)"


def test_tokens_and_shares_are_written_so_that_they_can_be_read():
    assert traces.quote_token({"id": 1, "text": " a\t\\\u202e"}) == '" a\\t\\\\\\u202e"'
    assert traces.quote_token({"id": 195, "text": None}) == "#195"
    written = [traces.format_share(share) for share in (0.1234, 0.0001, 0, -0.034, 2.354, None)]
    assert written == ["12.3\xa0%", "<\xa00.1\xa0%", "0.0\xa0%", "−3.4\xa0%", "235\xa0%", "–"]


@pytest.mark.slow
def test_on_a_trained_run_the_lens_is_surer_of_the_truth_the_deeper_it_looks(tmp_path):
    from andrea.cli.commands.trace import load_subject
    from andrea.model.trace import trace as follow

    (tmp_path / "text.txt").write_text(generated_text(20_000))
    settings = [
        f"data.source=text:{tmp_path / 'text.txt'}",
        "train.lr=3e-3",
        "data.eval_tokens=2048",
    ]
    settings += ["model.n_layer=4", "model.d_model=32", "model.n_head=2", "model.context=32"]
    options = [part for setting in settings for part in ("--set", setting)]
    options += ["--tokens", "400000", "--runs", str(tmp_path / "runs"), "--json"]
    result = json.loads(RUNNER.invoke(app, ["train", *options], prog_name="andrea").stdout)
    subject = load_subject(result["run_id"], tmp_path / "runs")
    held_out = generated_text(200, seed=1).encode()
    losses = torch.zeros(5, dtype=torch.float64)
    windows = [torch.tensor(list(held_out[start : start + 32])) for start in range(0, 320, 32)]
    places = range(8, 31, 2)
    for window in windows:
        for place in places:
            lens = follow(subject.model, window, place).lens
            losses -= (
                torch.tensor([depth.probability for depth in lens]).log()
                / len(windows)
                / len(places)
            )
    assert losses[0] > losses[1] > losses[2] > losses[4] and losses[3] > losses[4]
    assert float(losses[4]) < result["loss"] + 0.3
