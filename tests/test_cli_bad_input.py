"""What bad input gets: exit 2, one line on stderr that says how to mend it, and nothing written."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from andrea.cli.app import app

RUNNER = CliRunner()

QUESTION = """
question: Does it matter?
claim: Somebody says so.
hypothesis: It does.
why: To see it.
factor: model.activation
baseline: gelu
arms:
  gelu: {set: {model.activation: gelu}}
  relu: {set: {model.activation: relu}}
"""


def andrea(*arguments):
    return RUNNER.invoke(app, [str(a) for a in arguments], prog_name="andrea")


def contents(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working folder with texts beside it."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "latin.txt").write_bytes("naïve ".encode("latin-1") * 1000)
    (tmp_path / "short.txt").write_text("a few words, less than one batch of them " * 8)
    return tmp_path


STARTERS = {"ablate": ["ablate", "norm-placement"], "sweep": ["sweep", "lr"], "train": ["train"]}

BAD_SETTINGS = {
    "unknown section": (["--set", "modle.d_model=4"], ["modle", "did you mean 'model'"]),
    "unknown field": (["--set", "model.d_modle=4"], ["model.d_modle", "did you mean 'd_model'?"]),
    "unknown variant": (
        ["--set", "model.activation=rellu"],
        ["model.activation", "did you mean 'relu'?"],
    ),
    "unknown preset": (["--preset", "andrea-12"], ["'andrea-12'", "did you mean 'andrea-12m'?"]),
    "not an override": (["--set", "tokens"], ["'tokens'", "section.field=value"]),
    "every fault at once": (
        ["--set", "model.d_modle=4", "--set", "train.lr=-1", "--set", "train.tokens=many"],
        ["model.d_modle", "train.lr", "train.tokens"],
    ),
    "heads that do not divide": (
        ["--set", "model.n_head=7"],
        ["n_head 7", "does not divide", "d_model 48"],
    ),
    "a budget below one batch": (["--tokens", "100"], ["100", "batch"]),
    "unknown source": (["--set", "data.source=wiki"], ["data.source", "text:PATH"]),
}

BAD_TEXTS = {
    "missing": ("missing.txt", ["no file or folder"]),
    "empty": ("empty.txt", ["empty"]),
    "not UTF-8": ("latin.txt", ["not UTF-8", "byte 2"]),
    "shorter than one batch": ("short.txt", ["the train part has", "one batch", "longer text"]),
}


def assert_refused(result, here, *parts):
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("andrea: ") and result.stderr.count("\n") == 1
    # Whether a text is long enough is known when it is tokenized, which is said; so is how much of
    # it can be judged.
    assert all(
        line.startswith(("preparing ", "data.eval_tokens ")) for line in result.stdout.splitlines()
    )
    for part in parts:
        assert part in result.stderr
    assert contents(here / "work") == []


@pytest.mark.parametrize("command", STARTERS)
@pytest.mark.parametrize("case", BAD_SETTINGS)
def test_a_bad_setting_is_refused_before_anything_is_written(here, command, case):
    options, parts = BAD_SETTINGS[case]
    assert_refused(andrea(*STARTERS[command], *options), here, *parts)


@pytest.mark.parametrize("command", STARTERS)
@pytest.mark.parametrize("case", BAD_TEXTS)
def test_a_bad_text_is_refused_and_the_runs_folder_is_not_made(here, command, case):
    name, parts = BAD_TEXTS[case]
    result = andrea(*STARTERS[command], "--set", f"data.source=text:{here / name}")
    assert_refused(result, here, *parts)


@pytest.mark.parametrize("command", STARTERS)
@pytest.mark.parametrize("runs", ["a file", "below a file", "/proc/andrea-runs"])
def test_a_runs_folder_that_cannot_be_written_is_refused(here, command, runs):
    """As root too, whom no mode bit refuses."""
    blocker = here / "blocker"
    blocker.write_text("mine")
    place = {"a file": blocker, "below a file": blocker / "runs"}.get(runs, runs)
    assert_refused(andrea(*STARTERS[command], "--runs", place), here, "--runs", "can be written")
    assert blocker.read_text() == "mine"


@pytest.mark.parametrize(
    "command", ["ablate norm-placement", "sweep lr", "train", "status", "report x", "list studies"]
)
def test_a_store_of_a_newer_andrea_is_left_alone(here, command):
    newer = here / "newer"
    newer.mkdir()
    (newer / "store.json").write_text(json.dumps({"format": 99}))
    assert_refused(andrea(*command.split(), "--runs", newer), here, "newer andrea", "99")
    assert contents(newer) == ["store.json"]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["ablate", "norm-placment"], ["'norm-placment'", "did you mean", "norm-placement"]),
        (["ablate", "nowhere/mine.yaml"], ["nowhere/mine.yaml"]),
        (["sweep", "lrr"], ["'lrr'", "did you mean", "lr"]),
        (["status", "nothing"], ["'nothing'"]),
        (["dashboard", "nothing"], ["'nothing'"]),
        (["sync", "nothing"], ["'nothing'"]),
        (["model", "show", "gpt3"], ["andrea: no preset 'gpt3'; did you mean 'gpt2'?"]),
        (
            ["model", "show", "tiny", "--variants", "none.py"],
            ["--variants none.py", "no such Python file"],
        ),
        (["train", "--variants", "none.py"], ["--variants none.py", "no such Python file"]),
        (["list", "foo"], ["'KIND': 'foo' is not one of 'ablations'"]),
        (["schema", "foo"], ["'what': 'foo' is not one of 'ablation'"]),
        (["data", "prepare", "text:nowhere.txt"], ["nowhere.txt"]),
        (["data", "prepare", "sotu", "--tokenizer", "bpe-12"], ["data.tokenizer", "257"]),
        (["data", "info", "sotu"], ["not prepared", "andrea data prepare sotu"]),
    ],
)
def test_an_unknown_name_is_refused(here, arguments, parts):
    assert_refused(andrea(*arguments), here, *parts)


def test_a_wandb_mode_that_nobody_knows_is_refused(here, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "ofline")
    assert_refused(
        andrea("ablate", "norm-placement"), here, "WANDB_MODE", "did you mean 'offline'?"
    )


def test_one_seed_is_no_ablation(here):
    assert_refused(
        andrea("ablate", "norm-placement", "--seeds", "1"), here, "andrea: --seeds: ", "2"
    )


def test_inline_runs_one_at_a_time(here):
    result = andrea(
        "ablate", "norm-placement", "--executor", "inline", "--slots", "2", "--runs", here / "runs"
    )
    assert result.exit_code == 2
    assert "--slots 2" in result.stderr


def test_each_fault_of_a_question_is_named_with_its_line(here):
    mine = here / "mine.yaml"
    mine.write_text(QUESTION + "protocol: {m: 0.05, seeds: none}\nmatch: {on: parms}\n")
    result = andrea("ablate", mine)
    assert_refused(result, here, "mine.yaml: line 11: protocol.seeds", "; line 12: match.on")
    assert result.stderr.count("mine.yaml") == 1


def test_a_refused_command_leaves_an_existing_runs_folder_as_it_was(here):
    runs = here / "runs"
    (runs / "studies").mkdir(parents=True)
    (runs / "store.json").write_text(json.dumps({"format": 1}))
    before = contents(runs)
    result = andrea(
        "ablate",
        "norm-placement",
        "--runs",
        runs,
        "--set",
        f"data.source=text:{here / 'empty.txt'}",
    )
    assert result.exit_code == 2
    assert contents(runs) == before


def test_a_refused_command_takes_away_only_what_it_made(here):
    """Two commands in one new runs folder: the refused one must not delete what the other is
    preparing.
    """
    from andrea.cli.stores import starting_store
    from andrea.errors import UserError

    runs = here / "new" / "runs"
    theirs = runs / "data" / ".ab.new" / "train.bin"
    with pytest.raises(UserError), starting_store(runs):
        with starting_store(runs):
            theirs.parent.mkdir(parents=True)
            theirs.write_bytes(b"tokens")
        raise UserError("a bad text")
    assert theirs.read_bytes() == b"tokens" and (runs / "store.json").exists()


@pytest.mark.parametrize("made_before", [False, True])
def test_a_refused_command_leaves_no_store_where_there_was_none(here, made_before):
    runs = here / "new" / "runs"
    if made_before:
        runs.mkdir(parents=True)
    result = andrea(
        "ablate",
        "norm-placement",
        "--runs",
        runs,
        "--set",
        f"data.source=text:{here / 'short.txt'}",
    )
    assert result.exit_code == 2
    assert list(runs.iterdir()) == [] if made_before else not runs.parent.exists()


@pytest.mark.parametrize("content", ["{}", "[]", '"x"', "not JSON"])
@pytest.mark.parametrize("command", ["ablate norm-placement", "status", "train"])
def test_a_damaged_store_is_one_line_and_left_alone(here, command, content):
    damaged = here / "damaged"
    damaged.mkdir()
    (damaged / "store.json").write_text(content)
    assert_refused(andrea(*command.split(), "--runs", damaged), here, "store.json is damaged")
    assert contents(damaged) == ["store.json"] and (damaged / "store.json").read_text() == content


def test_a_second_command_on_a_live_study_is_refused(here):
    """The lock is held by another process here, as a controller would."""
    from andrea.config import parse_overrides
    from andrea.store.runs import RunStore
    from andrea.study.plan.freeze import freeze
    from andrea.study.plan.plan import Request
    from andrea.study.plan.resolve import make_plan
    from andrea.study.question.ablation import Ablation

    (here / "book.txt").write_text(
        "".join(f"{i} quick brown foxes jump over the lazy dog. " for i in range(4000))
    )
    question = here / "mine.yaml"
    question.write_text(QUESTION + "protocol: {m: 0.05, seeds: 2, trials: 1}\n")
    settings = [f"data.source=text:{here / 'book.txt'}", "train.tokens=2048"]
    store = RunStore(here / "runs")
    folder = freeze(
        make_plan(Request(Ablation.load(question), overrides=parse_overrides(settings)), store),
        store,
    )
    hold = (
        "import fcntl,sys; f=open(sys.argv[1],'a'); fcntl.flock(f,2); print('held',flush=True); "
        "sys.stdin.read()"
    )
    lock = folder.path / "lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", hold, str(lock)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout.readline() == "held\n"
        options = [option for setting in settings for option in ("--set", setting)]
        assert_refused(
            andrea("ablate", question, *options, "--runs", store.root),
            here,
            f"study {folder.path.name} is being run by another command",
        )
    finally:
        holder.kill()
        holder.communicate()
