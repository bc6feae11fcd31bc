"""docs/conformance.md says the truth, and the checker that watches over it sees what it should."""

from __future__ import annotations

import pytest

from tests.support import conformance
from tests.support.conformance import problems, read_test_file

pytestmark = pytest.mark.req("ARCH")

PAGE = """\
| ID | On | What | Tests | Status |
|---|---|---|---|---|
| CX-1 | B | One thing | `unit/test_a.py` | done |
| CX-2 | B | Another | – | later: reason |
"""

MARKED = 'import pytest\n@pytest.mark.req("CX-1")\ndef test_one() -> None: ...\n'


def test_every_done_row_has_a_test_and_every_test_a_row() -> None:
    found = problems(conformance.PAGE.read_text(encoding="utf-8"), conformance.read_tests())
    assert not found, "\n".join(found)


def test_a_page_that_agrees_has_no_problems() -> None:
    assert problems(PAGE, [read_test_file(MARKED, "unit/test_a.py")]) == []


def test_a_done_row_without_a_test_is_found() -> None:
    assert any("no test names it" in problem for problem in problems(PAGE, []))


def test_a_row_without_a_status_is_found() -> None:
    page = PAGE.replace("later: reason", "later")
    assert any("has the status" in problem for problem in problems(page, [read_test_file(MARKED, "unit/test_a.py")]))


def test_an_unknown_row_is_found() -> None:
    file = read_test_file(MARKED.replace("CX-1", "CX-99"), "unit/test_a.py")
    assert any("CX-99, which is not a row" in problem for problem in problems(PAGE, [file]))


def test_a_page_that_is_out_of_date_is_found_and_written_anew() -> None:
    file = read_test_file(MARKED, "unit/test_b.py")
    assert any("differ" in problem for problem in problems(PAGE, [file]))
    assert problems(conformance.rewrite(PAGE, [file]), [file]) == []


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
def test_where_a_mark_counts(source: str, unmarked: tuple[str, ...]) -> None:
    assert read_test_file(source, "unit/test_a.py").unmarked == unmarked


def test_a_mark_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(ValueError, match="string literals"):
        read_test_file("pytestmark = pytest.mark.req(ROW)", "unit/test_a.py")
