"""Text to token ids and back, and which ids end an answer: one class for every kind of source.

Wraps a fast tokenizer of transformers, which is imported only here and only when a tokenizer is loaded. Knows
nothing of requests, streaming or sampling.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alula.core.errors import CheckpointError, MissingExtra, UserError
from alula.models.checkpoint import read_json

if TYPE_CHECKING:
    from alula.models.checkpoint import Checkpoint
    from alula.models.gguf_file import GgufFile
    from alula.models.source import ModelSource

FAST_FILE, SETTINGS_FILE = "tokenizer.json", "tokenizer_config.json"
OTHER_FILES = ("tokenizer.model", "vocab.json", "vocab.txt")


class Tokenizer:
    """A model's tokenizer. Holds no state between calls. has_text: False where tokens have no text at all."""

    has_text = True

    def __init__(self, inner: Any, eos_token_ids: frozenset[int]) -> None:
        self._inner = inner
        self.eos_token_ids = eos_token_ids
        self.vocab_size = len(inner)
        self.bos_token_id: int | None = inner.bos_token_id

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, with the special tokens that the model's tokenizer adds. Raises UserError."""
        return self._ids(text, add_special_tokens=True)

    def encode_chat(self, messages: list[dict[str, Any]], **template_kwargs: Any) -> list[int]:
        """Token ids of a conversation in the model's chat template, up to where the answer begins.

        Raises UserError where the model has no template or the template refuses the messages.
        """
        if not self._inner.chat_template:
            raise UserError(
                "this model has no chat template (it is probably a base model); give a plain prompt instead of messages"
            )
        text = self._apply_template(messages, template_kwargs)
        return self._ids(text, add_special_tokens=False)  # the template writes them itself

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids. Bytes that are not whole UTF-8 characters become U+FFFD."""
        text: str = self._inner.decode(
            list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        return text

    def _ids(self, text: str, add_special_tokens: bool) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UserError(
                f"the text is not valid Unicode (a lone surrogate at character {error.start})"
            ) from error
        ids: list[int] = self._inner.encode(text, add_special_tokens=add_special_tokens)
        return ids

    def _apply_template(self, messages: list[dict[str, Any]], template_kwargs: dict[str, Any]) -> str:
        try:
            from jinja2.exceptions import TemplateError
        except ImportError as error:
            raise MissingExtra("chat templates need jinja2; run `pip install 'alula[run]'`") from error
        try:
            text: str = self._inner.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, **template_kwargs
            )
        # A template is the model's own program: it raises what its author chose to, and trips over odd messages.
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise UserError(
                f"the model's chat template refused these messages: {error}; "
                "expected [{'role': 'user', 'content': '...'}, ...]"
            ) from error
        return text


def load_tokenizer(source: ModelSource, checkpoint: Checkpoint) -> Tokenizer:
    """The tokenizer of a model: from its files, or built from a GGUF file's metadata. A shape has a stand-in.

    Raises CheckpointError (missing or damaged files) or UnsupportedModel (a kind of vocabulary).
    """
    if source.kind == "shape":
        from alula.models.random_checkpoint import NoTokenizer

        return NoTokenizer(checkpoint.config["vocab_size"])
    file: GgufFile | None = getattr(checkpoint, "file", None)
    inner = _from_folder(source.path) if file is None else _from_gguf(file)
    configs = (checkpoint.generation_config, checkpoint.config)
    return Tokenizer(inner, _eos_token_ids(configs, inner.eos_token_id))


def _from_gguf(file: GgufFile) -> Any:
    from transformers import PreTrainedTokenizerFast

    from alula.models.gguf_config import special_id
    from alula.models.tokenizer_gguf import build_tokenizer

    tokens = file.texts("tokenizer.ggml.tokens")
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    found = {name: special_id(file, key) for name, key in names.items()}
    return PreTrainedTokenizerFast(
        tokenizer_object=build_tokenizer(file),
        chat_template=file.text("tokenizer.chat_template", "") or None,
        clean_up_tokenization_spaces=False,
        **{name: tokens[token] for name, token in found.items() if token is not None},
    )


def _from_folder(folder: Path) -> Any:
    """tokenizer.json as it stands; a model with an older kind of file only is left to transformers to convert."""
    if (folder / FAST_FILE).exists():
        for name in (FAST_FILE, SETTINGS_FILE):
            if (folder / name).exists():
                read_json(folder / name)
        from transformers import PreTrainedTokenizerFast as Loader
    elif any((folder / name).exists() for name in OTHER_FILES):
        from transformers import AutoTokenizer as Loader
    else:
        raise CheckpointError(
            f"{folder}: no tokenizer; expected {FAST_FILE} (or {', '.join(OTHER_FILES)}): "
            "copy it from the original model"
        )
    try:
        return Loader.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # tokenizers raises nothing more precise for a file that it cannot read
        raise CheckpointError(
            f"{folder}: its tokenizer cannot be loaded: {error}; fetch {FAST_FILE} again"
        ) from error


def _eos_token_ids(configs: Iterable[Mapping[str, Any]], own: int | None) -> frozenset[int]:
    """Every id that a config (one id or a list) or the tokenizer calls the end of a text."""
    ids: set[int] = set() if own is None else {own}
    for config in configs:
        value = config.get("eos_token_id")
        for token in value if isinstance(value, list) else [value]:
            if isinstance(token, int):
                ids.add(token)
    return frozenset(ids)
