"""Names to places: folders, files, built-in names and hub ids, and what is said where there is nothing."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from gguf_samples import write_gguf
from huggingface_hub.errors import LocalEntryNotFoundError
from hypothesis import given
from hypothesis import strategies as st

from alula.core.errors import ModelNotFound
from alula.models import builtin
from alula.models.checkpoint import open_checkpoint
from alula.models.source import resolve_source


def test_a_folder_is_a_directory(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    source = resolve_source(str(tmp_path))
    assert (source.kind, source.name, source.path, source.builtin_head) == (
        "directory",
        str(tmp_path),
        tmp_path,
        None,
    )


def test_a_gguf_file_is_found_by_its_magic_or_its_name(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path)
    assert resolve_source(str(path)).kind == "gguf"
    plain = path.rename(tmp_path / "sha256-0123")
    source = resolve_source(str(plain))
    assert (source.kind, source.path) == ("gguf", plain)
    assert "token_embd" not in open_checkpoint(source).names()


def test_a_folder_with_one_gguf_file_is_that_file(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf")
    assert resolve_source(str(tmp_path)).path == tmp_path / "a.gguf"
    write_gguf(tmp_path / "b.gguf")
    with pytest.raises(ModelNotFound, match=r"2 GGUF files \(a.gguf, b.gguf\); give the path of one"):
        resolve_source(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert resolve_source(str(tmp_path)).kind == "directory"


def test_other_files_are_refused_with_a_hint(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"{}")
    with pytest.raises(ModelNotFound, match=f"not a GGUF model.*give its folder, {tmp_path}"):
        resolve_source(str(path))


@pytest.mark.parametrize("name", ["", " ", "a\0b", "x" * 5000])
def test_names_that_cannot_be_paths_are_refused(name: str) -> None:
    with pytest.raises(ModelNotFound):
        resolve_source(name)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda text: "/" not in text))
def test_any_other_name_ends_in_a_message(name: str) -> None:
    if Path(name).expanduser().name in ("", ".", "..") or "\0" in name or Path(name).exists():
        return
    with pytest.raises(ModelNotFound):
        resolve_source(name)


@pytest.mark.parametrize("name", ["/nonexist", "", "a\0b"])
def test_a_head_that_is_not_there_is_called_one(name: str) -> None:
    with pytest.raises(ModelNotFound, match="head"):
        resolve_source(name, what="head")


def test_everything_that_was_tried_is_named() -> None:
    with pytest.raises(ModelNotFound) as caught:
        resolve_source("smollm3")
    assert str(caught.value) == (
        "no model 'smollm3': not a folder; not a file; not a built-in name (smollm2-135m); "
        "not a hub id (organisation/name)"
    )


class _Hub:
    """Stands in for huggingface_hub: `info` and `folder` are what it answers, or the errors that it raises."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, info: object, folder: Path | Exception) -> None:
        self.info, self.folder = info, folder
        self.asked: list[dict[str, Any]] = []
        monkeypatch.setattr(huggingface_hub, "model_info", self._info)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", self._download)

    def _info(self, name: str, timeout: float) -> object:
        assert 0 < timeout < 30
        if isinstance(self.info, Exception):
            raise self.info
        return self.info

    def _download(self, name: str, **options: Any) -> str:
        self.asked.append({"name": name, **options})
        if isinstance(self.folder, Exception):
            raise self.folder
        return str(self.folder)


def test_a_hub_id_becomes_a_local_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    hub = _Hub(monkeypatch, "found", tmp_path)
    lines: list[str] = []
    source = resolve_source("meta-llama/Llama-3.2-1B", lines.append)
    assert (source.kind, source.path) == ("hub", tmp_path)
    assert hub.asked[0]["name"] == "meta-llama/Llama-3.2-1B"
    assert "*.safetensors" in hub.asked[0]["allow_patterns"]
    assert lines == ["looking for meta-llama/Llama-3.2-1B on the Hugging Face hub"]


def test_without_a_network_the_hubs_cache_is_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    hub = _Hub(monkeypatch, ConnectionError("unreachable"), tmp_path)
    assert resolve_source("meta-llama/Llama-3.2-1B").path == tmp_path
    assert hub.asked[0]["local_files_only"] is True


def test_what_the_hub_said_is_passed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _Hub(monkeypatch, RuntimeError("Cannot reach the hub.\nMore."), LocalEntryNotFoundError("not cached"))
    with pytest.raises(ModelNotFound, match=r"not a file; .*; hub said: Cannot reach the hub$"):
        resolve_source("meta-llama/Llama-3.2-1B")
    _Hub(monkeypatch, "found", tmp_path)
    with pytest.raises(ModelNotFound, match="no safetensors files in its top folder"):
        resolve_source("org/only-gguf")


def test_a_hub_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code = (
        "from alula.models import source\n"
        "source.HUB_TIMEOUT_S = 1.0\n"
        "try: source.resolve_source('org/name')\n"
        "except source.ModelNotFound as error: print(error)"
    )
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("HF_HOME", str(tmp_path))
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.delenv(name, raising=False)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "hub said: " in done.stdout


def test_the_builtin_model_brings_weights_and_head(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    weights, heads = tmp_path / "weights.gguf", tmp_path / "heads"
    monkeypatch.setattr(builtin, "find_weights", lambda model, progress: weights)
    monkeypatch.setattr(builtin, "HEADS", heads)
    source = resolve_source("smollm2-135m")
    assert (source.kind, source.path, source.builtin_head) == ("builtin", weights, None)
    (heads / "smollm2-135m-eagle3").mkdir(parents=True)
    assert resolve_source("smollm2-135m").builtin_head == heads / "smollm2-135m-eagle3"


def test_finding_a_model_loads_no_torch() -> None:
    code = (
        "import sys; from alula.models.source import resolve_source\n"
        "from alula.core.errors import ModelNotFound\n"
        "try: resolve_source('no-such-model')\n"
        "except ModelNotFound: pass\n"
        "print([name for name in ('torch', 'transformers', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
