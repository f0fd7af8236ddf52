"""A tokenizer as the files that Hugging Face transformers reads; the tokens are the same there."""

import json
from typing import Any, TypeAlias

from andrea.data.tokenizers import END, Description

Content: TypeAlias = dict[str, Any]
"""The JSON of one file."""
TOKENIZER, SETTINGS = "tokenizer.json", "tokenizer_config.json"


def tokenizer_files(description: Description, context: int) -> dict[str, Content]:
    """Return the content of tokenizer.json and tokenizer_config.json by name.

    One difference: a text that contains the literal `<|endoftext|>` gets that token there.

    Args:
        description: as `Tokenizer.to_dict` returns it.
        context: positions of the model.
    """
    settings: Content = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
    }
    if description["kind"] == "byte":
        return {TOKENIZER: _byte_level_table(), SETTINGS: settings}
    if description["kind"] == "char":
        return {TOKENIZER: _character_table(description["characters"]), SETTINGS: settings}
    return {TOKENIZER: description["tokenizer"], SETTINGS: settings | {"eos_token": END}}


def _byte_level_table() -> Content:
    """BPE without merges: every byte is the token of its value."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {symbol: byte for byte, symbol in enumerate(_byte_symbols())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _to_json(tokenizer)


def _byte_symbols() -> list[str]:
    """The character by which the byte-level alphabet writes each byte: itself where it is visible,
    else one of those from U+0100 on, in order (GPT-2).
    """
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return [chr(byte if byte in visible else 0x100 + hidden.index(byte)) for byte in range(256)]


def _character_table(characters: str) -> Content:
    """A table of single characters; one that is not in it is refused."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {character: i for i, character in enumerate(characters)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return _to_json(tokenizer)


def _to_json(tokenizer: Any) -> Content:
    content: Content = json.loads(tokenizer.to_str())
    return content
