"""Compares the rows of docs/conformance.md with the `req` marks of the tests.

Each row names its decisive tests, one to three of all that have its mark: those to read first. They are chosen by hand;
`--write` removes what no longer exists, and fills a row that is left without one with the tests whose names are nearest
to its text. `python -m tests.support.conformance` prints the differences. The tests are parsed, not imported: nothing
has to be installed or running.
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
# More are not decisive.
MOST = 3
# Words that say nothing about a row.
_COMMON = frozenset(
    ("the", "and", "for", "with", "from", "its", "are", "that", "this", "not", "one", "each", "every", "all", "any")
)
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
    tests: tuple[tuple[str, frozenset[str]], ...] = ()
    """Each test by its name, and the rows that it proves."""


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
    """The page with tests in every row that has some."""
    lines = []
    for line in page.splitlines():
        row = parse_row(line)
        lines.append(line if row is None else str(replace(row, tests=tests_column(row, files))))
    return "\n".join(lines) + "\n"


def tests_column(row: Row, files: list[TestFile]) -> str:
    """The tests that the row names and that have its mark; without one, the nearest by name."""
    marked = marked_tests(row.id, files)
    named = [name for name in re.findall(r"`([^`]+)`", row.tests) if name in marked]
    return ", ".join(f"`{name}`" for name in named[:MOST] or nearest(row, marked))


def marked_tests(row_id: str, files: list[TestFile]) -> dict[str, int]:
    """The tests with the mark of this row, and how many rows each of them names."""
    return {f"{file.path}::{name}": len(rows) for file in files for name, rows in file.tests if row_id in rows}


def nearest(row: Row, marked: dict[str, int]) -> list[str]:
    """Up to three tests of different files: those that share most words with the row and name fewest rows."""
    wanted = _words(row.what)

    def score(name: str) -> tuple[float, str]:
        folder = name.partition("/")[0]
        return (-len(wanted & _words(name)) + 0.3 * marked[name] + 0.2 * (folder not in ("contract", "faults")), name)

    best: dict[str, str] = {}
    for name in sorted(marked, key=score):
        best.setdefault(name.partition("::")[0], name)
    return list(best.values())[:MOST]


def _words(text: str) -> set[str]:
    words = re.findall(r"[a-z]{3,}", text.lower())
    return {word[:5] for word in words if word not in _COMMON}


# -- the marks -----------------------------------------------------------------------------------------------


def read_tests(folder: Path = TESTS) -> list[TestFile]:
    paths = sorted({*folder.rglob("test_*.py"), *folder.rglob("*_test.py")})
    return [read_test_file(path.read_text(encoding="utf-8"), path.relative_to(folder).as_posix()) for path in paths]


def read_test_file(source: str, path: str) -> TestFile:
    tree = ast.parse(source, filename=path)
    rows = frozenset(row for node in _outside_functions(tree) for row in _rows_named(node, path))
    marked = any(_is_pytestmark(node) and _has_mark(node) for node in tree.body)
    tests = tuple(_tests(tree, path, frozenset()))
    return TestFile(path, rows, () if marked else tuple(_unmarked(tree)), tests)


def _tests(
    scope: ast.Module | ast.ClassDef, path: str, rows: frozenset[str], prefix: str = ""
) -> Iterator[tuple[str, frozenset[str]]]:
    """Every test of a module or class, with the rows of its own mark and of those around it."""
    around = {
        row
        for node in scope.body
        if _is_pytestmark(node)
        for inner in ast.walk(node)
        for row in _rows_named(inner, path)
    }
    for node in scope.body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                own = {
                    row
                    for decorator in node.decorator_list
                    for inner in ast.walk(decorator)
                    for row in _rows_named(inner, path)
                }
                if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
                    yield from _tests(node, path, rows | around | own, f"{prefix}{node.name}::")
                elif node.name.startswith("test"):
                    yield prefix + node.name, rows | around | own
            case ast.Assign(targets=[ast.Name(id=name)]) if name.startswith("Test"):
                yield prefix + name, rows | around


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
        marked = marked_tests(row.id, files)
        named = re.findall(r"`([^`]+)`", row.tests)
        if row.status == "done" and not marked:
            differences.append(f"{row.id} is done, but no test names it ({row.what})")
        elif row.status == "done" and not 1 <= len(named) <= MOST:
            differences.append(f"{row.id} names {len(named)} tests; one to {MOST} are decisive")
        differences += [f"{row.id} names {name}, which does not have its mark" for name in named if name not in marked]
    for file in files:
        differences += [f"tests/{file.path} names {name}, which is not a row" for name in sorted(file.rows - known)]
        differences += [f"tests/{file.path}: {name} has no req mark" for name in file.unmarked]
    if page != rewrite(page, files):
        differences.append(
            "docs/conformance.md names tests that do not exist: run python -m tests.support.conformance --write"
        )
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
