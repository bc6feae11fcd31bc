"""Compares the rows of docs/conformance.md with the `req` marks of the tests.

`python -m tests.support.conformance` prints the differences; `--write` updates the Tests column. The tests are parsed,
not imported: nothing has to be installed or running.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "conformance.md"
TESTS = ROOT / "tests"

# The mark of tests that check the structure of the code and prove no row.
ARCH = "ARCH"

_ROW = re.compile(r"^\| (?P<id>[A-Z]{2}-\d+) \|(?P<cells>.*)\|$")
_STATUS = re.compile(r"done|later: \S.*")


@dataclass(frozen=True)
class Row:
    id: str
    on: str
    what: str
    tests: str
    status: str

    def __str__(self) -> str:
        return f"| {self.id} | {self.on} | {self.what} | {self.tests or '–'} | {self.status} |"


@dataclass(frozen=True)
class TestFile:
    """The marks of one file: the rows it names, and the tests in it that name none."""

    __test__ = False

    path: str
    rows: frozenset[str]
    unmarked: tuple[str, ...]


# -- the page ----------------------------------------------------------------------------------------------


def parse_row(line: str) -> Row | None:
    match = _ROW.match(line)
    if match is None:
        return None
    on, what, tests, status = (cell.strip() for cell in match["cells"].split("|"))
    return Row(match["id"], on, what, "" if tests == "–" else tests, status)


def read_rows(page: str) -> list[Row]:
    return [row for line in page.splitlines() if (row := parse_row(line))]


def rewrite(page: str, files: list[TestFile]) -> str:
    """The page with the Tests column written from the marks."""
    lines = []
    for line in page.splitlines():
        row = parse_row(line)
        lines.append(line if row is None else str(replace(row, tests=tests_column(row.id, files))))
    return "\n".join(lines) + "\n"


def tests_column(row_id: str, files: list[TestFile]) -> str:
    return ", ".join(f"`{file.path}`" for file in files if row_id in file.rows)


# -- the marks -----------------------------------------------------------------------------------------------


def read_tests(folder: Path = TESTS) -> list[TestFile]:
    paths = sorted({*folder.rglob("test_*.py"), *folder.rglob("*_test.py")})
    return [read_test_file(path.read_text(encoding="utf-8"), path.relative_to(folder).as_posix()) for path in paths]


def read_test_file(source: str, path: str) -> TestFile:
    tree = ast.parse(source, filename=path)
    rows = frozenset(row for node in _outside_functions(tree) for row in _rows_named(node, path))
    marked = any(_is_pytestmark(node) and _has_mark(node) for node in tree.body)
    return TestFile(path, rows, () if marked else tuple(_unmarked(tree)))


def _outside_functions(scope: ast.Module | ast.ClassDef) -> Iterator[ast.AST]:
    """Every node that can have a mark. Bodies of functions cannot, and are most of a file."""
    for node in scope.body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                for decorator in node.decorator_list:
                    yield from ast.walk(decorator)
            case ast.ClassDef():
                for decorator in node.decorator_list:
                    yield from ast.walk(decorator)
                yield from _outside_functions(node)
            case _:
                yield from ast.walk(node)


def _unmarked(scope: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[str]:
    for node in scope.body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() if node.name.startswith("test"):
                if not any(map(_has_mark, node.decorator_list)):
                    yield prefix + node.name
            case ast.ClassDef() if node.name.startswith("Test"):
                own_mark = any(_is_pytestmark(inner) and _has_mark(inner) for inner in node.body)
                if not own_mark and not any(map(_has_mark, node.decorator_list)):
                    yield from _unmarked(node, f"{prefix}{node.name}.")
            # `TestQueue = QueueMachine.TestCase`, as in Hypothesis: only the module can mark it
            case ast.Assign(targets=[ast.Name(id=name)]) if name.startswith("Test"):
                yield prefix + name


def _is_pytestmark(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets
    )


def _has_mark(node: ast.AST) -> bool:
    return any(_is_mark(inner) for inner in ast.walk(node))


def _is_mark(node: ast.AST) -> bool:
    """Whether this is a call of `….mark.req`."""
    match node:
        case ast.Call(func=ast.Attribute(attr="req", value=ast.Attribute(attr="mark"))):
            return True
    return False


def _rows_named(node: ast.AST, path: str) -> Iterator[str]:
    if not isinstance(node, ast.Call) or not _is_mark(node):
        return
    if not node.args:
        raise ValueError(f"{path}:{node.lineno}: the req mark names no row")
    for argument in node.args:
        if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
            raise ValueError(f"{path}:{node.lineno}: the req mark takes string literals only")
        yield argument.value


# -- the comparison ------------------------------------------------------------------------------------------


def problems(page: str, files: list[TestFile]) -> list[str]:
    """All differences, one sentence each."""
    rows = read_rows(page)
    known = {row.id for row in rows} | {ARCH}
    differences = [
        f"the row {row.id} appears twice" for n, row in enumerate(rows) if row.id in {r.id for r in rows[:n]}
    ]
    for row in rows:
        if not _STATUS.fullmatch(row.status):
            differences.append(f"{row.id} has the status {row.status!r}; it is `done` or `later: reason`")
        if row.status == "done" and not tests_column(row.id, files):
            differences.append(f"{row.id} is done, but no test names it ({row.what})")
    for file in files:
        differences += [f"tests/{file.path} names {name}, which is not a row" for name in sorted(file.rows - known)]
        differences += [f"tests/{file.path}: {name} has no req mark" for name in file.unmarked]
    if page != rewrite(page, files):
        differences.append("docs/conformance.md and the marks differ: run python -m tests.support.conformance --write")
    return differences


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.conformance", description=__doc__)
    parser.add_argument("--write", action="store_true", help="update the Tests column")
    options = parser.parse_args(arguments)
    page, files = PAGE.read_text(encoding="utf-8"), read_tests()
    if options.write:
        page = rewrite(page, files)
        PAGE.write_text(page, encoding="utf-8")
    differences = problems(page, files)
    for difference in differences:
        print(difference, file=sys.stderr)
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
