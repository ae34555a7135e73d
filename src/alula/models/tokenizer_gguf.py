"""A tokenizer from the metadata of a GGUF file, built with the `tokenizers` library alone.

Knows two kinds of vocabulary: byte-level BPE ("gpt2", with the splitting rules in RULES) and SentencePiece BPE
("llama"). An unknown kind or rule is refused by name: a guess would give slightly wrong token ids without a word.
Knows nothing of chat templates.

Source: llama.cpp's src/llama-vocab.cpp (splitting rules, which vocabularies add bos, the SentencePiece space prefix)
and the tokenizer.json files of GPT-2, SmolLM2, Llama 3, Mistral-Nemo and Qwen2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from alula.core.errors import CheckpointError, UnsupportedModel
from alula.models.gguf_config import special_id

if TYPE_CHECKING:
    import tokenizers

    from alula.models.gguf_file import GgufFile

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # tokenizer.ggml.token_type
SPACE = "\u2581"  # SentencePiece's visible space

# The contractions of English, then letters, digits, other signs and white space; the rules differ in case, in what
# may lead a word, and in how many digits stay together.
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"


class SplittingRule(msgspec.Struct, frozen=True, kw_only=True):
    """How a byte-level vocabulary cuts text before BPE. pattern: None for GPT-2's own rule."""

    pattern: str | None = None
    digits_alone: bool = False
    whole_words_first: bool = False  # a word that is a token stays whole, whatever the merges would make of it
    adds_bos: bool = False  # where the metadata does not say
    composes: bool = False  # Unicode NFC first


_GPT2 = SplittingRule()
_LLAMA3 = SplittingRule(pattern=rf"{_WORDS}|\p{{N}}{{1,3}}|{_SIGNS}", whole_words_first=True, adds_bos=True)
_QWEN2 = SplittingRule(pattern=rf"{_WORDS}|\p{{N}}|{_SIGNS}", composes=True)
_TEKKEN = SplittingRule(
    pattern=rf"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    whole_words_first=True,
    adds_bos=True,
)
RULES = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "smollm": SplittingRule(digits_alone=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "tekken": _TEKKEN,
    "qwen2": _QWEN2,
}


class _Vocabulary(msgspec.Struct, frozen=True):
    tokens: list[str]
    ids: dict[str, int]
    types: list[float]

    def of_type(self, *types: int) -> list[str]:
        return [token for token, kind in zip(self.tokens, self.types, strict=True) if kind in types]


def build_tokenizer(file: GgufFile) -> tokenizers.Tokenizer:
    """The tokenizer that the file describes, special tokens and bos included.

    Raises UnsupportedModel (kind or splitting rule) or CheckpointError (a vocabulary that contradicts itself).
    """
    kind = file.text("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama"):
        raise UnsupportedModel(
            f"{file.path}: tokenizer {kind!r}; alula builds 'gpt2' (byte-level BPE) and 'llama' (SentencePiece) ones"
        )
    vocabulary = _read_vocabulary(file)
    tokenizer = _byte_level(file, vocabulary) if kind == "gpt2" else _sentencepiece(file, vocabulary)
    _add_whole_tokens(tokenizer, vocabulary, kind)
    if tokenizer.get_vocab_size() != len(vocabulary.tokens):
        raise CheckpointError(
            f"{file.path}: the tokenizer came out with {tokenizer.get_vocab_size()} tokens; "
            f"expected {len(vocabulary.tokens)}"
        )
    _add_ends(tokenizer, file, vocabulary, adds_bos=kind == "llama" or _rule(file).adds_bos)
    return tokenizer


def _read_vocabulary(file: GgufFile) -> _Vocabulary:
    tokens = file.texts("tokenizer.ggml.tokens")
    ids = {token: number for number, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        twice = next(token for number, token in enumerate(tokens) if ids[token] != number)
        raise CheckpointError(
            f"{file.path}: the vocabulary holds {twice!r} more than once: convert the model again"
        )
    has_types = "tokenizer.ggml.token_type" in file.metadata
    types = file.numbers("tokenizer.ggml.token_type", len(tokens)) if has_types else [float(NORMAL)] * len(tokens)
    return _Vocabulary(tokens, ids, types)


def _rule(file: GgufFile) -> SplittingRule:
    name = file.text("tokenizer.ggml.pre", "default")
    rule = RULES.get(name)
    if rule is None:
        raise UnsupportedModel(f"{file.path}: pre-tokenizer {name!r}; alula knows {', '.join(map(repr, RULES))}")
    return rule


def _byte_level(file: GgufFile, vocabulary: _Vocabulary) -> tokenizers.Tokenizer:
    from tokenizers import Regex, decoders, normalizers, pre_tokenizers

    rule = _rule(file)
    merges = [_merge(file, merge) for merge in file.texts("tokenizer.ggml.merges")]
    tokenizer = _bpe(file, vocabulary, merges, ignore_merges=rule.whole_words_first)
    steps: list[pre_tokenizers.PreTokenizer] = []
    if rule.digits_alone:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if rule.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(rule.pattern), "isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=rule.pattern is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    if rule.composes:
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _merge(file: GgufFile, merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if not left or not right or " " in right:
        raise CheckpointError(f"{file.path}: the merge {merge!r}; expected two tokens and a space between them")
    return left, right


def _sentencepiece(file: GgufFile, vocabulary: _Vocabulary) -> tokenizers.Tokenizer:
    from tokenizers import decoders, normalizers

    unknown = special_id(file, "unknown")
    options: dict[str, object] = {"byte_fallback": True, "fuse_unk": True}
    unknown = vocabulary.ids.get("<unk>") if unknown is None else unknown
    if unknown is not None:
        options["unk_token"] = vocabulary.tokens[unknown]
    tokenizer = _bpe(file, vocabulary, _implied_merges(file, vocabulary), **options)
    visible_spaces: normalizers.Normalizer = normalizers.Replace(" ", SPACE)
    restore: list[decoders.Decoder] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if file.flag("tokenizer.ggml.add_space_prefix", True):
        visible_spaces = normalizers.Sequence([normalizers.Prepend(SPACE), visible_spaces])
        restore.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = visible_spaces
    tokenizer.decoder = decoders.Sequence(restore)
    return tokenizer


def _implied_merges(file: GgufFile, vocabulary: _Vocabulary) -> list[tuple[str, str]]:
    """SentencePiece joins the two neighbours that make the best-scored token, so its merges follow from the scores.

    Every way to cut a token into two tokens is a merge; better scores come first, equal ones in vocabulary order.
    """
    ids = vocabulary.ids
    scores = file.numbers("tokenizer.ggml.scores", len(vocabulary.tokens))
    ranked: list[tuple[float, int, int, tuple[str, str]]] = []
    for token in vocabulary.of_type(NORMAL, USER_DEFINED):
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                ranked.append((-scores[ids[token]], ids[left], ids[right], (left, right)))
    return [merge for *_, merge in sorted(ranked)]


def _bpe(
    file: GgufFile, vocabulary: _Vocabulary, merges: list[tuple[str, str]], **options: object
) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer, models

    try:
        return Tokenizer(models.BPE(vocab=vocabulary.ids, merges=merges, **options))
    except Exception as error:  # tokenizers raises nothing more precise for a merge of unknown tokens
        raise CheckpointError(
            f"{file.path}: merges and vocabulary disagree ({error}): convert the model again"
        ) from error


def _add_whole_tokens(tokenizer: tokenizers.Tokenizer, vocabulary: _Vocabulary, kind: str) -> None:
    """Tokens that are matched in the text before BPE: the control tokens (left out of answers) and the user's own."""
    from tokenizers import AddedToken

    special = (CONTROL, UNKNOWN) if kind == "llama" else (CONTROL,)
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in vocabulary.of_type(*special) if token]
    )
    tokenizer.add_tokens(
        [AddedToken(token, special=False, normalized=False) for token in vocabulary.of_type(USER_DEFINED) if token]
    )


def _add_ends(tokenizer: tokenizers.Tokenizer, file: GgufFile, vocabulary: _Vocabulary, adds_bos: bool) -> None:
    from tokenizers.processors import TemplateProcessing

    bos = special_id(file, "bos") if file.flag("tokenizer.ggml.add_bos_token", adds_bos) else None
    eos = special_id(file, "eos") if file.flag("tokenizer.ggml.add_eos_token", False) else None
    if bos is None and eos is None:
        return
    single, specials = ["$A"], []
    if bos is not None:
        single.insert(0, "BOS")
        specials.append({"id": "BOS", "ids": [bos], "tokens": [vocabulary.tokens[bos]]})
    if eos is not None:
        single.append("EOS")
        specials.append({"id": "EOS", "ids": [eos], "tokens": [vocabulary.tokens[eos]]})
    tokenizer.post_processor = TemplateProcessing(single=single, special_tokens=specials)
