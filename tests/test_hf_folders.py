"""Folders: what andrea writes, transformers loads, and the other way round; round trips give every
bit back.
"""

import errno
import json
import math
import resource
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_models import KINDS, built, configured, randomise, tokens_for, transformers
from safetensors.torch import load_file, save_file

from andrea.errors import UserError
from andrea.model.config import ModelConfig
from andrea.model.folder import load_model, new_folder, save_model
from andrea.model.gpt import GPT, build_model
from andrea.model.hf.architecture import misplaced_settings
from andrea.model.hf.convert import export_hf, import_hf
from andrea.model.hf.registry import (
    ARCHITECTURES,
    choose_architecture,
    find_architecture,
    read_config,
    write_config,
)
from andrea.model.presets import PRESETS


def ours(name: str, shape: str = "wide", **changes: Any) -> GPT:
    """Our model of such a kind, every parameter random."""
    model = build_model(ModelConfig(**configured(name, shape).model_dump() | changes)).eval()
    randomise(model, 5)
    return model


def assert_equal(one: Any, other: Any) -> None:
    """The same tensors under the same names, bit for bit."""
    mine, theirs = dict(one.state_dict()), dict(other.state_dict())
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in mine.items())


@pytest.mark.parametrize("name", KINDS)
def test_what_is_exported_transformers_loads_and_importing_it_gives_every_bit_back(
    name: str, tmp_path: Path
) -> None:
    model = ours(name)
    found, notes = export_hf(model, tmp_path / "theirs")
    assert (found, notes) == (name, [])
    loaded, info = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "theirs", output_loading_info=True
    )
    assert type(loaded).__name__ == ARCHITECTURES[name].class_name
    assert not any(info.values()), info
    tokens = tokens_for(model.config, 1)
    torch.testing.assert_close(loaded(tokens).logits, model(tokens), atol=1e-5, rtol=1e-5)
    back = import_hf(tmp_path / "theirs")
    assert_equal(back, model)
    assert choose_architecture(back.config) is choose_architecture(
        model.config
    ) and not misplaced_settings(ARCHITECTURES[name], back.config)
    assert torch.equal(back(tokens), model(tokens))


@pytest.mark.parametrize("name", KINDS)
def test_what_transformers_saves_is_imported_and_exporting_it_gives_every_bit_back(
    name: str, tmp_path: Path
) -> None:
    theirs = built(name, configured(name, "odd"), 4)
    theirs.save_pretrained(tmp_path / "theirs")
    model = import_hf(tmp_path / "theirs")
    tokens = tokens_for(model.config, 2)
    torch.testing.assert_close(model(tokens), theirs(tokens).logits, atol=1e-5, rtol=1e-5)
    export_hf(model, tmp_path / "again", find_architecture(name))
    before, after = (
        load_file(tmp_path / "theirs/model.safetensors"),
        load_file(tmp_path / "again/model.safetensors"),
    )
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, after[tensor_name]) for tensor_name, tensor in before.items())
    save_model(model, tmp_path / "ours")
    assert_equal(load_model(tmp_path / "ours"), model)
    assert load_model(tmp_path / "ours").config == model.config


@pytest.mark.parametrize("name", KINDS)
def test_an_empty_configuration_means_what_it_means_to_transformers(name: str) -> None:
    """Files of the hub leave out what is at its default."""
    architecture = ARCHITECTURES[name]
    said = transformers.AutoConfig.for_model(name).to_dict()
    known_to_them = {key: value for key, value in architecture.defaults.items() if key in said}
    derived = {
        "num_key_value_heads",
        "head_dim",
        "layer_types",
        "sliding_window",
    }  # filled in from others there
    for key, value in known_to_them.items():
        assert said[key] == value or (key in derived and value in (None, 4096)), key
    if name == "gemma3_text":
        for config in ({"model_type": name}, said):
            with pytest.raises(UserError, match=r"two bases \(10000 and 1e\+06\)"):
                read_config(config, "")
    else:
        assert read_config({"model_type": name}, "")[1] == read_config(said, "")[1]


OLDER = [
    ("llama", {"rope_theta": 500.0}),
    ("llama", {"rope_theta": 500.0, "rope_scaling": None}),
    ("gpt_neox", {"rotary_pct": 0.5, "rotary_emb_base": 500}),
    ("glm4", {"partial_rotary_factor": 0.25, "rope_theta": 500.0}),
    (
        "gemma3_text",
        {"rope_theta": 500.0, "rope_local_base_freq": 500.0, "sliding_window_pattern": 3},
    ),
    ("gemma2", {"sliding_window": 7, "layer_types": None, "num_hidden_layers": 5}),
]


@pytest.mark.parametrize(("name", "settings"), OLDER, ids=str)
def test_names_of_earlier_years_mean_what_they_mean_to_transformers(
    name: str, settings: dict[str, Any]
) -> None:
    said = transformers.AutoConfig.for_model(name, **settings).to_dict()
    older, now = read_config({"model_type": name, **settings}, ""), read_config(said, "")
    assert older == now
    assert older[1].rope_base == 500 or older[1].window == 7


def test_the_presets_are_gpt2() -> None:
    for preset in PRESETS.values():
        assert choose_architecture(ModelConfig(**{"vocab_size": 64, **preset})).model_type == "gpt2"


def test_a_model_of_a_run_keeps_what_matters_in_training_only_or_says_that_it_does_not(
    tmp_path: Path,
) -> None:
    model = ours("llama", dropout=0.1, init="xavier", z_loss=1e-4)
    _, notes = export_hf(model, tmp_path / "llama")
    assert notes == [
        "dropout_embedding 0.1, dropout_residual 0.1: no place in llama, matters in training only"
    ]
    assert import_hf(tmp_path / "llama").config.dropout_attention == 0.1
    _, notes = export_hf(ours("gpt2", dropout=0.1), tmp_path / "gpt2")
    assert notes == []


REFUSED = [
    ({"residual": "rezero"}, "gpt2 has no place for residual rezero \\(there on\\)"),
    ({"bias": False}, "gpt2 has no place for norm_bias false"),
    ({"norm": "dyt"}, "norm dyt \\(there layernorm\\)"),
    ({"positions": "sinusoidal"}, "gpt2 has no place for positions sinusoidal \\(there learned\\)"),
    ({"init": "mup", "mup_base": 12}, "attn_scale .*, output_scale 0.5 \\(there 1\\)"),
    ({"embedding_scale": 2.0}, "embedding_scale 2 \\(there 1\\)"),
    ({"final_norm": False}, "final_norm false \\(there true\\)"),
    ({"norm_affine": False, "norm": "rmsnorm"}, "norm_affine false"),
    ({"n_head": 8, "head_dim": 4, "d_model": 4}, "head_dim 4"),
]


@pytest.mark.parametrize(("changes", "reason"), REFUSED, ids=lambda value: str(value))
def test_a_model_that_has_no_place_there_is_refused_with_the_settings(
    changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UserError, match=reason):
        choose_architecture(ModelConfig(**{"vocab_size": 9, "d_model": 24, "n_head": 4, **changes}))


def test_an_architecture_that_is_asked_for_and_does_not_fit_names_one_that_does(
    tmp_path: Path,
) -> None:
    with pytest.raises(
        UserError, match=r"llama has no place for .*norm layernorm .*; --arch gpt2 fits"
    ):
        export_hf(ours("gpt2"), tmp_path / "no", find_architecture("llama"))
    assert list(tmp_path.iterdir()) == []
    export_hf(ours("llama"), tmp_path / "mistral", find_architecture("mistral"))
    with pytest.raises(UserError, match="unknown architecture 'bert'; there are gpt2, "):
        find_architecture("bert")
    assert find_architecture("gpt-neox") is ARCHITECTURES["gpt_neox"]


def test_an_ordinary_gain_is_not_gemmas() -> None:
    """1 + (g - 1) is not g in float32 below 1/2, so Gemma's gain is a variant of its own, and no
    bit is ever lost.
    """
    gain = torch.nextafter(torch.tensor(0.3), torch.tensor(1.0))
    assert gain != 1 + (gain - 1)
    cfg = configured("gemma2", "wide")
    with pytest.raises(
        UserError, match=r"gemma2 has no place for norm rmsnorm \(there rmsnorm_1p\)"
    ):
        choose_architecture(cfg.model_copy(update={"norm": "rmsnorm"}))


def test_scores_may_be_scaled_by_the_root_of_a_whole_number_alone() -> None:
    cfg = configured("gemma2", "wide")
    assert (
        choose_architecture(cfg.model_copy(update={"attn_scale": 1 / math.sqrt(12)})).model_type
        == "gemma2"
    )
    with pytest.raises(UserError, match=r"attn_scale 0.07 \(there 0.07001"):
        choose_architecture(cfg.model_copy(update={"attn_scale": 0.07}))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_written_when_asked_for_and_read_as_float32(
    dtype: Any, tmp_path: Path
) -> None:
    model = ours("llama")
    _, notes = export_hf(model, tmp_path / "half", dtype=dtype)
    assert f"rounded to {dtype}" in notes[0]
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "half")
    assert loaded.dtype == getattr(torch, dtype)
    back = import_hf(tmp_path / "half")
    for name, parameter in back.named_parameters():
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter, model.get_parameter(name).to(getattr(torch, dtype)).float())


def test_weights_in_several_files_are_read(tmp_path: Path) -> None:
    theirs = built("gpt2", configured("gpt2", "wide"), 1)
    theirs.save_pretrained(tmp_path / "whole")
    theirs.save_pretrained(tmp_path / "parts", max_shard_size="10KB")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 2
    assert_equal(import_hf(tmp_path / "parts"), import_hf(tmp_path / "whole"))
    next((tmp_path / "parts").glob("*-00002-of-*")).unlink()
    with pytest.raises(UserError, match="the index names files that are missing: model-00002"):
        import_hf(tmp_path / "parts")


def test_the_hubs_older_files_of_the_bare_model_with_masks_are_read(tmp_path: Path) -> None:
    theirs = built("gpt2", configured("gpt2", "wide"), 1)
    theirs.save_pretrained(tmp_path)
    tensors = {
        name.removeprefix("transformer."): t
        for name, t in load_file(tmp_path / "model.safetensors").items()
    }
    masks = {f"h.{i}.attn.bias": torch.ones(1, 1, 13, 13, dtype=torch.bool) for i in range(3)}
    save_file(
        tensors | masks | {"lm_head.weight": tensors["wte.weight"].clone()},
        tmp_path / "model.safetensors",
    )
    config = json.loads((tmp_path / "config.json").read_text())
    config.pop("tie_word_embeddings", None)
    (tmp_path / "config.json").write_text(
        json.dumps(config | {"n_ctx": 13, "torch_dtype": "float32"})
    )
    assert torch.equal(import_hf(tmp_path).token_embedding.weight, theirs.transformer.wte.weight)
    save_file(
        tensors | {"lm_head.weight": tensors["wte.weight"] + 1}, tmp_path / "model.safetensors"
    )
    with pytest.raises(
        UserError, match="ties the head to the token embedding, but the file has another head"
    ):
        import_hf(tmp_path)


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), new_folder(tmp_path / "a") as folder:
        (folder / "half").touch()
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with new_folder(tmp_path / "a") as folder:
        (folder / "whole").touch()
        assert not (tmp_path / "a").exists()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["whole"]
    for taken in (tmp_path / "a", tmp_path / "a" / "whole"):
        with pytest.raises(UserError, match="is there already"), new_folder(taken):
            pass
    with pytest.raises(UserError, match="does not exist"), new_folder(tmp_path / "b" / "c"):
        pass


def test_importing_disturbs_no_generator(tmp_path: Path) -> None:
    save_model(ours("gpt2"), tmp_path / "m")
    before = torch.get_rng_state()
    load_model(tmp_path / "m")
    assert torch.equal(before, torch.get_rng_state())


def test_a_description_is_plain_json() -> None:
    for name, architecture in ARCHITECTURES.items():
        said = write_config(architecture, configured(name, "wide"), "float32", 0)
        assert json.loads(json.dumps(said)) == said
        assert said["eos_token_id"] == 0


def test_a_full_disk_is_told_as_one_and_leaves_nothing(tmp_path: Path) -> None:
    before, handler = (
        resource.getrlimit(resource.RLIMIT_FSIZE),
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
    )
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
        with pytest.raises(OSError) as caught:
            save_model(ours("gpt2"), tmp_path / "m")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert caught.value.errno == errno.EFBIG and str(caught.value.filename).endswith(
        "model.safetensors"
    )
    assert list(tmp_path.iterdir()) == []
