"""The rules of the house, read from the sources: imports point down, light modules stay light, files stay small.

Rules, not history: nothing here names a file that exists only for a while.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "alula"

RUN_TOWER = {"kernels", "comm", "layers", "models", "spec"}
# folder -> what it may import of ours (besides itself). `cli` is apart: anything, but only inside functions.
MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "kernels": {"core"},
    "comm": {"core", "kernels"},
    "layers": {"core", "kernels", "comm"},
    "models": {"core", "layers", "comm"},
    "spec": {"core", "kernels", "comm", "layers", "models"},
    "engine": {"core", *RUN_TOWER},
    "train": {"core", "comm", "layers", "models", "spec", "engine"},
    "plan": {"core"},
    "profile": {"core", "plan"},
    "explain": {"core", "plan", "profile"},
    "lab": {"core", "comm", "spec", "engine", "plan", "profile", "explain"},
    "bench": {"core", "comm", "engine", "plan", "profile"},
    "server": {"core", "engine", "plan", "profile", "explain"},
}
CLI_AT_TOP = {"core"}
# `torch.cuda` is spoken here only; in `engine`, only in the files about the device and its graphs.
CUDA_FOLDERS = {"comm", "lab", "bench", "train"}
CUDA_PREFIXES = ("kernels/gpu/", "engine/device", "engine/graph")
ENVIRONMENT_READER = "core/environment.py"
LIGHT_FOLDERS = {"core", "plan", "profile", "explain"}
HEAVY = ("torch", "numpy", "transformers", "tokenizers", "safetensors", "gguf", "huggingface_hub")
MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_KERNEL_LINES = 400, 40, 60

SOURCES = sorted(PACKAGE.rglob("*.py"))
NAMES = [path.relative_to(PACKAGE).as_posix() for path in SOURCES]
ANY_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


def _tree(name: str) -> ast.Module:
    return ast.parse((PACKAGE / name).read_text(encoding="utf-8"), name)


def _folder(name: str) -> str:
    return name.split("/")[0] if "/" in name else ""


def _imported(node: ast.AST) -> list[str]:
    """Dotted names that an import statement may load; `from a import b` counts as `a` and `a.b`."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.level == 0:
        module = node.module or ""
        return [module, *(f"{module}.{alias.name}" for alias in node.names)]
    return []


def _own_folders(nodes: list[ast.AST]) -> set[str]:
    names = [name.split(".") for node in nodes for name in _imported(node)]
    return {parts[1] for parts in names if parts[0] == "alula" and len(parts) > 1 and (PACKAGE / parts[1]).is_dir()}


def _statements_at_top(tree: ast.Module) -> list[ast.AST]:
    """Every node that runs when the module is imported: everything outside functions."""
    found: list[ast.AST] = []
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        found.append(node)
        waiting += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ANY_FUNCTION)]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_imports_point_down(name: str) -> None:
    folder, tree = _folder(name), _tree(name)
    if folder in ("", "cli"):  # the package's own __init__ resolves its two names inside a function
        at_top = _own_folders([node for node in _statements_at_top(tree) if not _type_checking_only(tree, node)])
        assert at_top <= {folder, *CLI_AT_TOP}, f"{name} imports {at_top} when it loads; move it into the function"
        return
    assert folder in MAY_IMPORT, f"{folder}/ is not in the table of DESIGN section 3"
    wrong = _own_folders(list(ast.walk(tree))) - MAY_IMPORT[folder] - {folder}
    assert not wrong, f"{name} imports {sorted(wrong)}; {folder} may import {sorted(MAY_IMPORT[folder])}"


def _type_checking_only(tree: ast.Module, node: ast.AST) -> bool:
    guards = [n for n in ast.walk(tree) if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    return any(node in list(ast.walk(guard)) for guard in guards)


@pytest.mark.parametrize("name", NAMES)
def test_no_relative_imports(name: str) -> None:
    relative = [n.lineno for n in ast.walk(_tree(name)) if isinstance(n, ast.ImportFrom) and n.level]
    assert not relative, f"{name}: relative imports at lines {relative}; write alula.FOLDER.FILE"


@pytest.mark.parametrize("name", NAMES)
def test_cuda_is_spoken_in_few_places(name: str) -> None:
    if _folder(name) in CUDA_FOLDERS or name.startswith(CUDA_PREFIXES):
        return
    lines = [n.lineno for n in ast.walk(_tree(name)) if _is_attribute(n, "torch", "cuda")]
    lines += [n.lineno for n in ast.walk(_tree(name)) if any(i.startswith("torch.cuda") for i in _imported(n))]
    assert not lines, f"{name} uses torch.cuda at lines {lines}"


@pytest.mark.parametrize("name", NAMES)
def test_one_reader_of_the_environment(name: str) -> None:
    if name == ENVIRONMENT_READER:
        return
    nodes = list(ast.walk(_tree(name)))
    lines = [n.lineno for n in nodes if _is_attribute(n, "os", "environ") or _is_attribute(n, "os", "getenv")]
    lines += [n.lineno for n in nodes if {"os.environ", "os.getenv"} & set(_imported(n))]
    assert not lines, f"{name} reads the environment at lines {lines}; ask {ENVIRONMENT_READER}"


def _is_attribute(node: ast.AST, owner: str, attribute: str) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr == attribute
        and isinstance(node.value, ast.Name)
        and node.value.id == owner
    )


@pytest.mark.parametrize("name", NAMES)
def test_files_and_functions_are_small_and_described(name: str) -> None:
    source = (PACKAGE / name).read_text(encoding="utf-8")
    tree = ast.parse(source)
    assert ast.get_docstring(tree), f"{name} has no docstring that says what it does and does not know"
    assert len(source.splitlines()) <= MAX_FILE_LINES, f"{name} is longer than {MAX_FILE_LINES} lines"
    limit = MAX_KERNEL_LINES if _folder(name) == "kernels" else MAX_FUNCTION_LINES
    long = {n.name: n.end_lineno - n.lineno + 1 for n in ast.walk(tree) if isinstance(n, ANY_FUNCTION)}
    long = {function: lines for function, lines in long.items() if lines > limit}
    assert not long, f"{name}: functions longer than {limit} lines: {long}"


def _light_modules() -> list[str]:
    light = [name for name in NAMES if _folder(name) in LIGHT_FOLDERS or _folder(name) == "cli" or "/" not in name]
    return [f"alula.{name[:-3]}".replace("/", ".").removesuffix(".__init__") for name in light]


def test_light_modules_load_without_torch() -> None:
    program = f"""
import importlib, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {HEAVY!r}:
            raise ModuleNotFoundError(f"{{name}} is heavy", name=name)
sys.meta_path.insert(0, Refuse())
for module in {_light_modules()!r}:
    importlib.import_module(module)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
