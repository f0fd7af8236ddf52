"""`andrea model compare`: models of their own settings side by side, and what would match them."""

import json
import re

import pytest
from typer.testing import CliRunner

from andrea.cli.app import app


def compare(*arguments):
    result = CliRunner().invoke(app, ["model", "compare", *arguments])
    assert result.exit_code == 0, result.stderr
    return result.stdout.replace("\N{NO-BREAK SPACE}", " ")


def rows(*arguments):
    return {row["name"]: row for row in json.loads(compare(*arguments, "--json"))}


def cells(text, start):
    """What stands in the line that starts so."""
    line = next(line for line in text.splitlines() if line.startswith(start))
    return re.split(r"\s{2,}", line.removeprefix(start).strip())


def test_a_model_has_settings_of_its_own_over_those_of_all():
    gated = "tiny:activation=swiglu,mlp_ratio=8/3"
    found = rows(
        "tiny",
        gated,
        "tiny:model.n_layer=2",
        "--set",
        "model.n_layer=3",
        "--set",
        "model.bias=false",
    )
    assert list(found) == ["tiny", gated, "tiny:model.n_layer=2"]
    assert found[gated]["mlp"] == found["tiny"]["mlp"] and found[gated]["difference"] == 0
    assert found["tiny:model.n_layer=2"]["attention"] * 3 == found["tiny"]["attention"] * 2


def test_parameters_and_flops_are_compared_with_the_first():
    text = compare("gpt2", "gpt2:activation=swiglu", "gpt2-xl", "gpt2:window=64")
    assert cells(text, "parameters against the first") == ["+22.78 %", "× 12.52", "equal"]
    gated, _, window = cells(text, "FLOPs against the first")
    assert gated == "+21.29 %" and window.startswith("−")
    found = rows("gpt2", "gpt2:window=64")["gpt2:window=64"]
    assert found["difference"] == 0 and found["flops_difference"] < 0


def test_what_would_match_the_first_is_solved_for_and_shown_with_its_cost():
    text = compare("gpt2", "gpt2:activation=swiglu", "gpt2:bias=true", "--match", "params")
    table = text.partition("nearest to gpt2 in parameters")[2]
    assert "model.mlp_width" in table and "3,072 → 2,048" in table and "+0.01 %" in table
    assert "3,072 as it is" in table
    assert text.splitlines()[-1] == "to copy: gpt2:activation=swiglu,mlp_width=2048"
    assert "training FLOPs per token" in text
    found = rows("gpt2", "gpt2:activation=swiglu", "--match", "params", "--by", "n_layer")
    assert "match" in found["gpt2"] and found["gpt2"]["match"] is None
    solved = found["gpt2:activation=swiglu"]["match"]
    assert (solved["setting"], solved["was"], solved["became"]) == ("model.n_layer", 12, 9)
    assert abs(solved["deviation"]["params"]) < 1e-4 and solved["deviation"]["flops"] < -0.01


@pytest.mark.parametrize(
    "shared", [[], ["--set", "model.mlp_ratio=8/3", "--set", "model.mlp_multiple=8"]]
)
def test_the_entry_to_copy_is_the_model_that_was_solved_for(shared):
    own = "tiny:activation=swiglu,mlp_ratio=3"
    match = rows("tiny", own, *shared, "--match", "params")[own]["match"]
    assert f"mlp_width={match['became']}" in match["entry"] and "mlp_ratio=3" not in match["entry"]
    again = rows("tiny", match["entry"], *shared)[match["entry"]]
    assert again["difference"] == pytest.approx(100 * match["deviation"]["params"])
    assert (
        "entry"
        not in rows("tiny", "tiny:bias=true", "--match", "params")["tiny:bias=true"]["match"]
    )


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["gpt2", "gpt3:bias=true"], "gpt3:bias=true: no preset 'gpt3'; did you mean 'gpt2'?"),
        (["gpt3"], "no preset 'gpt3'; did you mean 'gpt2'?"),
        (["gpt2:activatoin=relu"], "model.activatoin: unknown; did you mean 'activation'?"),
        (["gpt2:activation=relus,n_layer=0"], "did you mean 'relu'?"),
        (
            ["gpt2:activation"],
            "'gpt2:activation' is not PRESET:FIELD=VALUE,FIELD=VALUE with fields of the model, as "
            "in",
        ),
        (["gpt2:train.lr=1"], "'gpt2:train.lr=1' is not PRESET:FIELD=VALUE"),
        (["gpt2:"], "'gpt2:' is not PRESET:FIELD=VALUE"),
        (["gpt2:n_layer=1,n_layer=2"], "n_layer is given twice"),
        (
            ["gpt2", "--match", "params"],
            "--match params: name the model to be matched, then others",
        ),
        (
            ["gpt2", "tiny", "--by", "d_model"],
            "--by d_model says what is solved for: give --match params",
        ),
        (["gpt2", "tiny", "--match", "size"], "'size' is not one of 'params', 'flops'"),
    ],
)
def test_a_wrong_model_is_one_line_that_says_how_to_mend_it(arguments, line, monkeypatch, capsys):
    from andrea.cli.app import main

    monkeypatch.setattr("sys.argv", ["andrea", "model", "compare", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert line in told and told.count("\n") == 1
