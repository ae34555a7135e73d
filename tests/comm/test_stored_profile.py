"""Profiles of collectives: what was written is read again, and another machine's is refused with its differences."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from alula.comm.stored_profile import ProfileKey, load_profile, save_profile
from alula.comm.table import MeasuredTable, Timing
from alula.core.errors import InvalidOption, RecordWriteError
from alula.core.records import Refusal

KEY = ProfileKey(
    processor="H200",
    driver="580.1",
    nccl="2.28.9",
    torch="2.11",
    num_ranks=2,
    dtype="bfloat16",
    variables={"A": "1"},
)
TABLE = MeasuredTable(
    timings=(Timing(op="all_reduce", num_bytes=14336, backend="nccl", us=18.9),),
    captured=True,
    refused=(Refusal(backend="symmetric_one_shot", reason="no peer access"),),
)


def test_a_profile_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    assert load_profile(path, KEY) is None
    save_profile(path, KEY, TABLE)
    assert load_profile(path, KEY) == TABLE
    assert [file.name for file in tmp_path.iterdir()] == ["profile.json"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("processor", "A100"),
        ("driver", "1"),
        ("nccl", "2.30.3"),
        ("torch", "2.13"),
        ("num_ranks", 4),
        ("dtype", "float16"),
        ("variables", {}),
    ],
)
def test_another_key_names_the_field_and_both_values(tmp_path: Path, field: str, value: object) -> None:
    path = tmp_path / "profile.json"
    save_profile(path, KEY, TABLE)
    here = msgspec.structs.replace(KEY, **{field: value})
    with pytest.raises(InvalidOption) as raised:
        load_profile(path, here)
    assert f"{field} was {getattr(KEY, field)!r} and is {value!r}" in str(raised.value)


@pytest.mark.parametrize("text", ["", "{}", "[1, 2", '{"schema": 1, "key": 3, "table": {}}'])
def test_what_is_no_profile_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(InvalidOption, match="is no profile of collectives"):
        load_profile(path, KEY)


def test_a_later_schema_and_an_unwritable_place(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    save_profile(path, KEY, TABLE)
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 9'))
    with pytest.raises(InvalidOption, match="has schema 9; this alula reads 1"):
        load_profile(path, KEY)
    with pytest.raises(InvalidOption, match="cannot be read"):
        load_profile(tmp_path, KEY)
    with pytest.raises(RecordWriteError, match="cannot write the profile"):
        save_profile(tmp_path / "missing" / "profile.json", KEY, TABLE)
    with pytest.raises(InvalidOption, match="is not there and cannot be written"):
        load_profile(tmp_path / "missing" / "profile.json", KEY)


@pytest.mark.parametrize("us", [-5.0, 0.0])
def test_times_that_cannot_be_are_refused(tmp_path: Path, us: float) -> None:
    path = tmp_path / "profile.json"
    (timing,) = TABLE.timings
    save_profile(path, KEY, msgspec.structs.replace(TABLE, timings=(msgspec.structs.replace(timing, us=us),)))
    with pytest.raises(InvalidOption, match=f"all_reduce of 14336 bytes takes {us} us through nccl"):
        load_profile(path, KEY)
