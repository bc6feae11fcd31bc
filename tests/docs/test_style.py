"""The style of help texts, errors, fixes and log lines: imperative, complete, and in standard words."""

from __future__ import annotations

import functools
import re

import pytest

from tests.docs.private_words import PENDING, private_words
from tests.docs.source_texts import Text, coined_names, help_texts, make_texts, script_texts, source_texts, sql_texts
from tests.docs.test_links import PAGES, ROOT

pytestmark = pytest.mark.req("DP-22")

# A fix may end with a command, a call or an address to copy instead of a period.
COPIED = re.compile(r"(?:: |^)(?:holdfast|pip|python|await|select|def|app\.|@app|https?://|--|[A-Z][\w-]+: )[^.]*\S?$")
FENCE = re.compile(r"^(```|~~~).*?^\1[ \t]*$", re.DOTALL | re.MULTILINE)
# Words that do not start an imperative sentence.
NO_COMMAND = re.compile(r"^(?:What|Who|Where|When|How|Whether|It|The|A|An|Its|This|That|There|These|\w+s' )\b")


@functools.cache
def all_texts() -> tuple[Text, ...]:
    return (*help_texts(), *source_texts(), *make_texts(), *sql_texts(), *script_texts())


def of(*kinds: str) -> list[Text]:
    return [text for text in all_texts() if text.kind in kinds and text.text.strip(" {}%s.:")]


def test_help_is_complete_and_imperative() -> None:
    wrong = [f"{text}: has no help" for text in all_texts() if text.kind in ("command", "option") and not text.text]
    wrong += [f"{text}: ends without a period" for text in of("command", "option") if not text.text.endswith(".")]
    wrong += [f"{text}: begin with a verb" for text in of("command", "target") if NO_COMMAND.match(text.text)]
    wrong += [
        f"{text}: begin with a capital letter"
        for text in of("command", "option", "target")
        if re.match(r"[a-z]+ ", text.text)
    ]
    assert wrong == []


def test_fixes_and_log_lines_are_sentences() -> None:
    fixes = [f"{text}: ends without a period" for text in of("fix") if not complete(text.text)]
    logs = [f"{text}: begin with a capital letter" for text in of("log") if text.text[0].islower()]
    assert fixes + logs == []


def complete(fix: str) -> bool:
    return fix.endswith((".", "{}")) or COPIED.search(fix) is not None


def test_source_texts_contain_no_private_words() -> None:
    words = [
        f"{text}: {word}"
        for text in of("command", "option", "error", "fix", "log", "target", "sql", "script")
        for word in private_words(text.text)
    ]
    assert words == []


def test_names_have_no_coined_words() -> None:
    assert [str(text) for text in coined_names()] == []


def test_pages_contain_no_private_words() -> None:
    words = []
    for page in PAGES:
        name = page.relative_to(ROOT).as_posix()
        if name in PENDING:
            continue
        prose = FENCE.sub("", page.read_text(encoding="utf-8"))
        words += [f"{name}: {word}: {line}" for line in prose.splitlines() for word in private_words(line)]
    assert words == []


def test_checks_find_violations() -> None:
    assert private_words("the store is away: duties wait") == [
        "'duties' (write: maintenance task)",
        "'is away' (write: is unreachable)",
    ]
    assert NO_COMMAND.match("What waits for people.")
    assert not complete("Give it a name")
    assert complete("Create it: holdfast migrate")
