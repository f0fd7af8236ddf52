"""A user's own variant: from the guide's example to a verdict, and every fault of it in one line
before any run.
"""

import re
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import stored
from conftest import generated_text
from typer.testing import CliRunner

from andrea.cli.app import app
from andrea.errors import UserError
from andrea.execution.make import make_executor
from andrea.model import registry, variants
from andrea.store.runs import RunStore
from andrea.store.studies import list_studies
from andrea.study.controller import run_study
from andrea.study.plan.freeze import freeze
from andrea.study.plan.frozen import FrozenStudy
from andrea.study.plan.plan import Request
from andrea.study.plan.resolve import make_plan
from andrea.study.question.ablation import Ablation

GUIDE = (Path(__file__).parents[1] / "docs" / "your-own-variant.md").read_text()
SMALL = {"model.d_model": 16, "model.n_layer": 1, "model.n_head": 2, "model.context": 16}
SMALL |= {"train.tokens": 8 * 16 * 40, "data.eval_tokens": 512, "data.curve_tokens": 64}
SMALL |= {"protocol.trials": 3, "protocol.seeds": 2}


def run_id(study):
    """The id of a tuning run of the arm."""
    return study.plan("squared", "tune", "grid", lr=0.001, seed=1).run_id


@pytest.fixture(autouse=True)
def _own_axes(monkeypatch):
    monkeypatch.delitem(sys.modules, "andrea_user_squared_relu", raising=False)
    monkeypatch.setattr(
        registry,
        "VARIANTS",
        {axis: dict(known) for axis, known in registry.VARIANTS.items()},
    )


def block(language):
    return re.search(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL).group(1)


@pytest.fixture
def project(tmp_path):
    """The guide's two files in a project of somebody's own, and a text."""
    (tmp_path / "ablations").mkdir()
    (tmp_path / "ablations" / "squared-relu.yaml").write_text(block("yaml"))
    (tmp_path / "ablations" / "squared-relu.py").write_text(block("python"))
    (tmp_path / "text.txt").write_text(generated_text(20_000))
    return tmp_path


def planned(project, **more):
    store = RunStore(project / "runs")
    spec = Ablation.load(project / "ablations" / "squared-relu.yaml")
    settings = SMALL | {"data.source": f"text:{project / 'text.txt'}", **more}
    return make_plan(Request(spec, overrides=settings, device="cpu"), store), store


def change(project, old, new):
    script = project / "ablations" / "squared-relu.py"
    assert old in script.read_text()
    script.write_text(script.read_text().replace(old, new))


@pytest.mark.slow
def test_the_guides_example_runs_from_the_idea_to_the_verdict(project):
    asked, store = planned(project)
    folder = freeze(asked, store)
    assert run_study(folder, store, make_executor("local", 2, "cpu")).complete
    verdicts = stored.study_json(folder, "verdict.json")["verdicts"]
    assert [verdict["arm"] for verdict in verdicts] == ["squared"]
    assert {run["arm"] for run in stored.planned(folder)} == {"gelu", "squared"}


def test_the_example_in_the_source_is_the_guides():
    assert (
        dedent(
            re.search(r"at its top:\n\n(.*?)\n\nIt is one file", variants.__doc__, re.DOTALL).group(
                1
            )
        )
        in GUIDE
    )
    assert GUIDE.split("What to know")[0].count("\n") < 45


def test_a_changed_variant_is_another_run_and_a_study_keeps_the_one_it_began_with(project):
    asked, store = planned(project)
    study = FrozenStudy(freeze(asked, store), store)
    first = run_id(study)
    change(project, "x.relu().square()", "x.relu().pow(3)")
    assert run_id(study) == first  # the controller is still at it
    again, _ = planned(project)
    assert again.digest != asked.digest
    other = FrozenStudy(freeze(again, store), store)
    assert run_id(other) != first
    assert run_id(FrozenStudy(study.folder, store)) == first


@pytest.mark.parametrize(
    "line",
    [
        "import mine_layers",
        "from mine_layers import f",
        "from . import mine_layers",
        "from ablations import mine_layers",
        "import ablations.mine_layers",
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_a_module_beside_the_variants_is_refused_wherever_it_is_imported(project, line, inside):
    (project / "ablations" / "mine_layers.py").write_text("f = 1\n")
    if inside:
        change(project, "        return Square()", f"        {line}\n        return Square()")
    else:
        change(project, "from torch import Tensor, nn\n", f"from torch import Tensor, nn\n{line}\n")
    with pytest.raises(
        UserError, match=r"squared-relu\.py:\d+: imports .*put everything into squared-relu\.py"
    ):
        Ablation.load(project / "ablations" / "squared-relu.yaml")


def test_what_is_installed_may_be_imported_even_if_a_file_beside_has_its_name(project):
    (project / "ablations" / "yaml.py").write_text("raise RuntimeError\n")
    (project / "ablations" / "math.yaml").write_text("")
    (project / "ablations" / "math.py").write_text("raise RuntimeError\n")
    change(
        project, "from torch import", "import math\nimport torch\nimport yaml\nfrom torch import"
    )
    (project / "ablations").rename(project / "torch")
    assert Ablation.load(project / "torch" / "squared-relu.yaml").arm_config("squared")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("x.relu().square()", "x.rellu()", r"squared-relu\.py:9\): AttributeError: .*rellu"),
        ("x.relu().square()", "x.relu()[..., :3]", r"RuntimeError: .*dim"),
        ("return Square()", "return Square(3)", r"squared-relu\.py:15\): TypeError"),
        ("return Square()", "return nn.PReLU(5)", "PReLU|RuntimeError|weight"),
        (
            "return Square()",
            "return nn.Sequential(Square(), nn.Linear(64, 64))",
            r"mlp: it says 2,128, .* has 6,288",
        ),
        ("x.relu().square()", "x.relu_().mul_(x)", "RuntimeError: .*inplace"),
    ],
)
def test_a_variant_that_cannot_run_is_one_line_and_nothing_is_written(project, old, new, message):
    change(project, old, new)
    with pytest.raises(
        UserError, match=rf"^arm squared, model\.activation 'squared_relu'.*({message})"
    ) as refused:
        planned(project)
    assert "\n" not in str(refused.value)
    store = RunStore(project / "runs")
    assert list_studies(store) == [] and not (store.root / "data").exists()


def test_a_variant_that_reads_a_number_is_run_on_the_cpu_instead(project):
    change(project, "x.relu().square()", "x.relu().square() * (1 if x.sum().item() > 0 else 2)")
    planned(project)


def test_a_broken_variant_ends_the_command_with_2_and_one_line(project, monkeypatch):
    monkeypatch.chdir(project)
    change(project, "x.relu().square()", "x.rellu()")
    settings = [f"--set={key}={value}" for key, value in SMALL.items()] + [
        f"--set=data.source=text:{project}/text.txt"
    ]
    result = CliRunner().invoke(app, ["ablate", "squared-relu", *settings], prog_name="andrea")
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1 and "arm squared" in result.stderr
    assert not (project / "andrea-runs").exists()


def test_two_arms_that_train_the_same_are_refused(tiny_text, store):
    spec = Ablation.model_validate(
        {
            "question": "?",
            "hypothesis": "?",
            "factor": "mlp_ratio",
            "baseline": "exact",
            "arms": {"exact": {"model.mlp_ratio": "8/3"}, "rounded": {"model.mlp_ratio": 2.67}},
            "model": {"d_model": 48, "n_layer": 1, "n_head": 2, "context": 16},
            "data": {"source": f"text:{tiny_text}"},
            "train": {"tokens": 1024},
            "protocol": {"m": 0.05},
        }
    )
    with pytest.raises(UserError, match="arms exact and rounded train the same model"):
        make_plan(Request(spec, name="same", device="cpu"), store)
    assert list_studies(store) == []
