"""Presets: named settings of `model`. Torch-free."""

from collections.abc import Mapping
from typing import Any


def _with_long_context(**settings: int) -> dict[str, int]:
    return {"context": 1024, **settings}


PRESETS: Mapping[str, Mapping[str, Any]] = {
    # GPT-2's 0.02 is 0.55/√d at d 768; the same share at d 48. With 0.02 there post-norm learns
    # nothing (docs/log.md).
    "tiny": {"context": 64, "d_model": 48, "n_layer": 6, "n_head": 4, "init_std": 0.08},
    "andrea-12m": _with_long_context(d_model=384, n_layer=6, n_head=12, vocab_size=4353),
    "andrea-120m": _with_long_context(d_model=768, n_layer=12, n_head=12, vocab_size=8449),
    "andrea-480m": _with_long_context(d_model=1536, n_layer=16, n_head=24, vocab_size=8449),
    "gpt2": _with_long_context(d_model=768, n_layer=12, n_head=12, vocab_size=50257),
    "gpt2-medium": _with_long_context(d_model=1024, n_layer=24, n_head=16, vocab_size=50257),
    "gpt2-large": _with_long_context(d_model=1280, n_layer=36, n_head=20, vocab_size=50257),
    "gpt2-xl": _with_long_context(d_model=1600, n_layer=48, n_head=25, vocab_size=50257),
}
"""Everything not named is the field's default."""
