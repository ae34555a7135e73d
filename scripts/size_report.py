"""Counts lines of code by folder, shows what each changed file gained or lost, and holds the total to a budget.

A line of code is a line with a token of code on it: blank lines, comments and docstrings do not count, so the budget
gives no reason to leave a comment out. Knows git only as `git show BASE:FILE`; without git it prints no differences.
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "alula"
# Raising this number is a decision of its own, made in the commit that needs it.
BUDGET = 30000
_SKIPPED = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.ENCODING,
}


def code_lines(source: str) -> int:
    """Lines of `source` that carry code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _SKIPPED:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - _docstring_lines(source))


def _docstring_lines(source: str) -> set[int]:
    found: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if (
            not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            or not node.body
        ):
            continue
        first = node.body[0]
        if (
            isinstance(first, ast.Expr)
            and isinstance(first.value, ast.Constant)
            and isinstance(first.value.value, str)
        ):
            found.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return found


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout


def _before(base: str, path: Path) -> int:
    source = _git("show", f"{base}:{path.relative_to(ROOT).as_posix()}")
    return code_lines(source) if source else 0


def _print_changes(base: str) -> None:
    names = _git("diff", "--name-only", base, "--", "src/alula")
    new = _git("ls-files", "--others", "--exclude-standard", "--", "src/alula")
    if names is None or new is None:
        print(f"(no differences: git knows no {base} here)")
        return
    for name in sorted(name for name in {*names.split(), *new.split()} if name.endswith(".py")):
        path = ROOT / name
        now = code_lines(path.read_text(encoding="utf-8")) if path.exists() else 0
        before = _before(base, path)
        if now != before:
            print(f"{now:6d}  {now - before:+5d}  {name}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Lines of code by folder, held to a budget.")
    parser.add_argument("--base", default="HEAD", help="commit to compare with (default: HEAD)")
    base = parser.parse_args().base
    counts: Counter[str] = Counter()
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).parts
        counts[parts[0] if len(parts) > 1 else "(top)"] += code_lines(path.read_text(encoding="utf-8"))
    for folder, lines in counts.most_common():
        print(f"{lines:6d}  {folder}")
    total = counts.total()
    print(f"{total:6d}  of {BUDGET} lines of code")
    _print_changes(base)
    if total > BUDGET:
        print(f"error: {total} lines of code, budget {BUDGET}; make it smaller, or raise BUDGET in {__file__}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
