"""The models of spec/ hold, and their broken variants are refuted."""

from __future__ import annotations

import shutil

import pytest

from tools.models import EXPECTED, MODELS, holds

pytestmark = pytest.mark.req("CX-11", "JF-7")

RULES = [(module, rule, expected) for module, rules in EXPECTED.items() for rule, expected in rules.items()]


def test_every_model_is_checked() -> None:
    assert {path.stem for path in MODELS.glob("*.tla")} == set(EXPECTED)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("java") is None, reason="TLC needs Java")
@pytest.mark.parametrize(("module", "rule", "expected"), RULES)
def test_rule_is_judged_by_tlc(module: str, rule: str, expected: bool) -> None:
    assert holds(module, rule) is expected
