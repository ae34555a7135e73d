"""Prompts: what ships, every accepted format, and errors that name file and line."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from alula.bench.prompts import load_all, load_prompts, random_prompts
from alula.core.errors import InvalidOption


def _file(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_built_in_prompts() -> None:
    prompts = load_prompts()
    assert len(prompts) == 24 and len({prompt.id for prompt in prompts}) == 24
    assert set(Counter(prompt.category for prompt in prompts).values()) == {3}
    assert all(prompt.raw_text() for prompt in prompts)
    assert load_all([]) == prompts


def test_every_json_form(tmp_path: Path) -> None:
    path = _file(
        tmp_path,
        "p.jsonl",
        '{"prompt": "one"}\n\n{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "two"}]}\n'
        '{"question_id": 81, "category": "writing", "turns": ["three", "left out"]}\n{"id": "x", "prompt": "é 🙂"}',
    )
    one, two, three, four = load_prompts(path)
    assert (one.id, one.raw_text()) == ("p.jsonl:1", "one")
    assert [message["role"] for message in two.messages] == ["system", "user"]
    assert (three.id, three.category, three.raw_text()) == ("81", "writing", "three")
    assert (four.id, four.raw_text()) == ("x", "é 🙂")
    with pytest.raises(InvalidOption, match="several messages"):
        two.raw_text()


def test_text_is_a_prompt_a_line(tmp_path: Path) -> None:
    prompts = load_prompts(_file(tmp_path, "p.txt", "\ufeff{not json}\r\n\r\n  second \u2028 same line\n"))
    assert [prompt.raw_text() for prompt in prompts] == ["{not json}", "second \u2028 same line"]
    assert [prompt.id for prompt in prompts] == ["p.txt:1", "p.txt:3"]


def test_the_first_line_decides_where_the_name_does_not(tmp_path: Path) -> None:
    assert load_prompts(_file(tmp_path, "a", '\n {"prompt": "x"}\n'))[0].raw_text() == "x"
    assert load_prompts(_file(tmp_path, "b", 'say {"prompt"}\n'))[0].raw_text() == 'say {"prompt"}'


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "not JSON"),
        ("[1]", "a JSON list"),
        ("{}", "none of these keys"),
        ('{"prompt": "a", "turns": ["b"]}', "prompt and turns"),
        ('{"prompt": 3}', "prompt holds no text"),
        ('{"prompt": "  "}', "prompt holds no text"),
        ('{"turns": []}', "turns holds no text"),
        ('{"messages": []}', "not a list of messages"),
        ('{"messages": [{"role": "user"}]}', "without a content"),
        ('{"messages": [{"role": "robot", "content": "x"}]}', "role is 'robot'"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, complaint: str) -> None:
    path = _file(tmp_path, "p.jsonl", f'{{"prompt": "fine"}}\n\n{line}\n')
    with pytest.raises(InvalidOption) as caught:
        load_prompts(path)
    assert f"{path}:3" in str(caught.value) and complaint in str(caught.value)


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="No such file"):
        load_prompts(tmp_path / "absent")
    with pytest.raises(InvalidOption, match="directory"):
        load_prompts(tmp_path)
    with pytest.raises(InvalidOption, match="no prompts in it"):
        load_prompts(_file(tmp_path, "empty.txt", " \n\n"))
    with pytest.raises(InvalidOption, match="two prompts with the id 'a'"):
        load_prompts(_file(tmp_path, "p.jsonl", '{"id": "a", "prompt": "x"}\n{"id": "a", "prompt": "y"}'))
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(InvalidOption, match="not UTF-8 text \\(byte 3\\)"):
        load_prompts(tmp_path / "latin.txt")


def test_files_follow_each_other(tmp_path: Path) -> None:
    paths = [_file(tmp_path, f"{name}.txt", name) for name in ("b", "a")]
    assert [prompt.raw_text() for prompt in load_all(paths)] == ["b", "a"]


def test_random_prompts() -> None:
    prompts = random_prompts(3, 40, vocab_size=11, seed=5)
    assert prompts == random_prompts(3, 40, 11, 5) != random_prompts(3, 40, 11, 6)
    assert [prompt.id for prompt in prompts] == ["random-40-1", "random-40-2", "random-40-3"]
    assert {len(prompt.token_ids) for prompt in prompts} == {40}
    assert {token for prompt in prompts for token in prompt.token_ids} == set(range(11))
