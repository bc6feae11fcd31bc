"""docs/conformance.md agrees with the tests, and its checker finds every difference."""

from __future__ import annotations

import pytest

from tests.support import conformance
from tests.support.conformance import problems, read_test_file

pytestmark = pytest.mark.req("ARCH")

PAGE = """\
| ID | On | What | Tests | Status |
|---|---|---|---|---|
| CX-1 | B | One thing | `unit/test_a.py::test_one` | done |
| CX-2 | B | Another | – | later: reason |
"""

MARKED = 'import pytest\n@pytest.mark.req("CX-1")\ndef test_one() -> None: ...\n'


def test_every_done_row_has_a_test_and_every_test_a_row() -> None:
    differences = problems(conformance.PAGE.read_text(encoding="utf-8"), conformance.read_tests())
    assert not differences, "\n".join(differences)


def test_matching_page_has_no_problems() -> None:
    assert problems(PAGE, [read_test_file(MARKED, "unit/test_a.py")]) == []


def test_done_row_without_a_test_is_reported() -> None:
    assert any("no test names it" in problem for problem in problems(PAGE, []))


def test_row_without_a_status_is_reported() -> None:
    page = PAGE.replace("later: reason", "later")
    assert any("has the status" in problem for problem in problems(page, [read_test_file(MARKED, "unit/test_a.py")]))


def test_unknown_row_is_reported() -> None:
    file = read_test_file(MARKED.replace("CX-1", "CX-99"), "unit/test_a.py")
    assert any("CX-99, which is not a row" in problem for problem in problems(PAGE, [file]))


def test_outdated_page_is_reported_and_rewritten() -> None:
    file = read_test_file(MARKED, "unit/test_b.py")
    assert any("does not have its mark" in problem for problem in problems(PAGE, [file]))
    page = conformance.rewrite(PAGE, [file])
    assert "`unit/test_b.py::test_one`" in page
    assert problems(page, [file]) == []


def test_chosen_tests_are_kept_and_more_than_three_are_reported() -> None:
    names = ["one", "two", "three", "four"]
    source = "".join(MARKED.replace("test_one", f"test_{name}") for name in names)
    file = read_test_file(source, "unit/test_a.py")
    assert conformance.rewrite(PAGE, [file]) == PAGE
    page = PAGE.replace("`unit/test_a.py::test_one`", ", ".join(f"`unit/test_a.py::test_{name}`" for name in names))
    assert any("one to 3 are decisive" in problem for problem in problems(page, [file]))


def test_marks_of_a_module_and_a_class_count_for_each_test() -> None:
    source = "pytestmark = pytest.mark.req('CX-1')\n@pytest.mark.req('CX-2')\nclass TestIt:\n  def test_one(self): ..."
    assert read_test_file(source, "unit/test_a.py").tests == (("TestIt::test_one", frozenset({"CX-1", "CX-2"})),)


@pytest.mark.parametrize(
    ("source", "unmarked"),
    [
        (MARKED, ()),
        ("def test_one(): ...", ("test_one",)),
        ("async def test_one(): ...", ("test_one",)),
        ("def helper(): ...", ()),
        ("class TestIt:\n  def test_one(self): ...", ("TestIt.test_one",)),
        ("@pytest.mark.req('CX-1')\nclass TestIt:\n  def test_one(self): ...", ()),
        ("class TestIt:\n  @pytest.mark.req('CX-1')\n  def test_one(self): ...", ()),
        ("pytestmark = pytest.mark.req('CX-1')\ndef test_one(): ...", ()),
        ("pytestmark = [pytest.mark.slow, pytest.mark.req('CX-1')]\ndef test_one(): ...", ()),
        ("pytestmark = pytest.mark.slow\ndef test_one(): ...", ("test_one",)),
        ("TestMachine = Machine.TestCase", ("TestMachine",)),
    ],
)
def test_mark_counts_on_function_class_and_module(source: str, unmarked: tuple[str, ...]) -> None:
    assert read_test_file(source, "unit/test_a.py").unmarked == unmarked


def test_mark_with_a_variable_is_rejected() -> None:
    with pytest.raises(ValueError, match="string literals"):
        read_test_file("pytestmark = pytest.mark.req(ROW)", "unit/test_a.py")
