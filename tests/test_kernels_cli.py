"""`andrea kernels`, the choice of `auto`, and what the two need that a machine without a GPU can
show.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from kernels_kit import HOST
from shim_backend import needs_shim
from typer.testing import CliRunner

from andrea.cli.app import app
from andrea.errors import UserError
from andrea.kernels import backend, bench, check, choose, nvrtc, source
from andrea.kernels import cuda as gpu
from andrea.model.config import ModelConfig

TRAIN = choose.TrainRoute("cpu", "float32", "off", 2)
ON_GPU = TRAIN._replace(device="cuda")
SMALL = ModelConfig(vocab_size=13, context=8, d_model=12, n_layer=3, n_head=3)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANDREA_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def on_cpu() -> Any:
    before = backend.install_backend("cpu", HOST)
    yield HOST
    backend.install_backend("cpu", before)


def andrea(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["kernels", *arguments])


@pytest.mark.parametrize("command", ["check", "bench"])
def test_without_a_device_one_line_says_so_and_nothing_is_passed_over_in_silence(
    command: str,
) -> None:
    answer = andrea(command)
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert answer.stderr == (
        "andrea: --device cuda: the CUDA kernels need a CUDA device, and this torch sees none\n"
    )
    answer = andrea(command, "--device", "cpu")
    assert (answer.exit_code, answer.stdout) == (
        2,
        "",
    ) and "do not run on device cpu" in answer.stderr
    answer = andrea(command, "--device", "graphics")
    assert answer.exit_code == 2 and "write cuda or cuda:1" in answer.stderr


@pytest.mark.slow
@needs_shim
def test_check_compares_every_op_and_fails_when_one_is_wrong(
    on_cpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "QUICK", ((3, 31),))
    answer = andrea("check", "--device", "cpu", "--quick", "--json")
    rows = json.loads(answer.stdout)
    assert answer.exit_code == 0 and not any(row["failed"] for row in rows)
    assert {row["op"] for row in rows} == {*(case.op for case in check.op_cases()), "adamw"}
    assert {row["dtype"] for row in rows} == {"float32", "bfloat16", "float16"}
    monkeypatch.setattr(check, "ACTIVATIONS", check.ACTIVATIONS | {"silu": torch.tanh})
    answer = andrea("check", "--device", "cpu", "--quick")
    wrong = [line for line in answer.stdout.splitlines() if line.startswith("WRONG")]
    assert answer.exit_code == 1 and len(wrong) == 6 and all(" silu " in line for line in wrong)


@needs_shim
def test_what_bench_times_is_the_same_by_every_way(
    on_cpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda f: f)
    seen = []
    for task in bench.benchmark_tasks(torch.device("cpu"), 6, 16, 33, parameters=0):
        results = [step() for step in task.ways.values()]
        assert {"eager", "cuda"} <= set(task.ways) and task.bytes > 0 and len(results) >= 2
        seen.append(task.op)
    assert len(seen) == 11 and seen[0] == "cross_entropy forward"


def test_a_result_of_bench_is_bytes_over_time_against_a_copy() -> None:
    result = bench.BenchmarkRow(
        "norm", "bfloat16", (2, 3), 8 * 10**9, {"eager": 4.0, "cuda": 2.0}, copy_gbps=5000.0
    )
    assert result.to_json()["ways"]["cuda"] == {"ms": 2.0, "gbps": 4000.0, "share": 0.8}


def test_show_without_the_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        nvrtc,
        "missing_requirement",
        lambda: "the CUDA kernels need cuda-core: pip install 'andrea[gpu]'",
    )
    answer = andrea("show")
    assert answer.exit_code == 2
    assert answer.stderr == "andrea: the CUDA kernels need cuda-core: pip install 'andrea[gpu]'\n"


@pytest.mark.skipif(
    nvrtc.missing_requirement() is not None, reason=str(nvrtc.missing_requirement())
)
def test_show_lists_every_kernel_within_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "module_names", lambda real="f32": ("reduce_f32", "adamw_f32"))
    rows = json.loads(andrea("show", "--arch", "sm_90", "--arch", "sm_80", "--json").stdout)
    assert [row["name"] for row in rows[:4]] == [
        *source.kernel_names("reduce_f32"),
        *source.kernel_names("adamw_f32"),
    ]
    assert {row["arch"] for row in rows} == {"sm_90", "sm_80"}
    assert all(row["within_budget"] and row["sass"] > 0 and row["registers"] > 8 for row in rows)
    assert rows[0]["name"] in andrea("show").stdout


def refuse() -> choose.StepTimes:
    raise AssertionError("measured")


def test_on_a_cpu_auto_is_torch_without_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "measure_steps", lambda *_: refuse())
    assert choose.choose_kernels("auto", SMALL, TRAIN) == "torch"
    assert choose.choose_kernels("torch", SMALL, TRAIN) == "torch"


def test_cuda_where_kernels_do_not_run_is_the_users_to_mend() -> None:
    with pytest.raises(
        UserError, match=r"cuda: .* do not run on device cpu; or set train\.kernels=torch"
    ):
        choose.choose_kernels("cuda", SMALL, TRAIN)
    with pytest.raises(UserError, match="this torch sees none"):
        choose.choose_kernels("cuda", SMALL, ON_GPU)


def test_auto_without_nvrtc_is_torch_and_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert choose.choose_kernels("auto", SMALL, ON_GPU) == "torch"
    lacking = "the CUDA kernels need a CUDA device, and this torch sees none"
    assert (
        capsys.readouterr().err == f"warning: {lacking}; without them plain torch does the work\n"
    )


@pytest.fixture
def with_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "missing_requirement", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")


@pytest.mark.parametrize(("ours", "chosen"), [(5.0, "cuda"), (9.9, "torch"), (20.0, "torch")])
def test_auto_is_measured_once_for_each_device_and_class_of_shapes(
    ours: float, chosen: str, with_kernels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[ModelConfig] = []

    def measured(cfg: ModelConfig, train: choose.TrainRoute) -> choose.StepTimes:
        asked.append(cfg)
        return choose.StepTimes(10.0, ours)

    monkeypatch.setattr(choose, "measure_steps", measured)
    assert [choose.choose_kernels("auto", SMALL, ON_GPU) for _ in range(3)] == [chosen] * 3
    deeper = SMALL.model_copy(update={"n_layer": 9})  # the same shapes
    assert choose.choose_kernels("auto", deeper, ON_GPU) == chosen and len(asked) == 1
    choose.choose_kernels("auto", SMALL.model_copy(update={"d_model": 48}), ON_GPU)
    choose.choose_kernels("auto", SMALL, ON_GPU._replace(compile="on"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100")
    choose.choose_kernels("auto", SMALL, ON_GPU)
    assert len(asked) == 4


def test_auto_where_measuring_fails_is_torch_and_one_line(
    with_kernels: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(cfg: ModelConfig, train: choose.TrainRoute) -> choose.StepTimes:
        raise RuntimeError("CUDA_ERROR_INVALID_IMAGE\nat length")

    monkeypatch.setattr(choose, "measure_steps", broken)
    assert choose.choose_kernels("auto", SMALL, ON_GPU) == "torch"
    assert capsys.readouterr().err.count("\n") == 1


def test_a_damaged_record_is_measured_again(
    with_kernels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "measure_steps", lambda *_: choose.StepTimes(10.0, 1.0))
    choose.choose_kernels("auto", SMALL, ON_GPU)
    (record,) = (nvrtc.cache_folder() / "choices").iterdir()
    record.write_text('{"class": ')
    assert choose.choose_kernels("auto", SMALL, ON_GPU) == "cuda"
    assert json.loads(record.read_text())["milliseconds"] == {"torch": 10.0, "cuda": 1.0}


@needs_shim
def test_what_is_measured_is_a_step_of_a_shallow_model_by_both(
    on_cpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "MEASURED_STEPS", 1)
    times = choose.measure_steps(SMALL, TRAIN)
    assert min(times) > 0
