"""Common first guesses are accepted if they are unambiguous; otherwise the error names the right spelling."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import App, Backoff, Retry
from holdfast.engine.ids import id_range
from holdfast.engine.units import seconds
from holdfast.errors import InvalidSetting
from holdfast.features.jobs.handle import Handle


@pytest.mark.req("CX-9", "DP-9")
@pytest.mark.parametrize(
    ("text", "length"),
    [("5 minutes", 300), ("1 hour, 30 minutes", 5400), ("1h30m", 5400), ("2 Days", 172_800), ("1.5 hours", 5400)],
)
def test_durations_are_read_in_words(text: str, length: float) -> None:
    assert seconds(text) == length
    for wrong in ("5 minuten", "minutes", "5 m m", "five minutes", "-5 minutes"):
        with pytest.raises(InvalidSetting, match="5 minutes"):
            seconds(wrong)


@pytest.mark.req("CX-9", "DP-22", "HF-5")
def test_unknown_option_error_suggests_valid_option() -> None:
    app = App("sqlite:///:memory:")

    @app.job()
    def send() -> None: ...

    def fix_of(**options: Any) -> str:
        with pytest.raises(InvalidSetting) as refused:
            send.using(**options)
        assert refused.value.code == "unknown_option"
        return refused.value.fix or ""

    assert "For eta use run_at" in fix_of(eta=1)
    assert "For countdown use delay" in fix_of(countdown=1)
    assert "For scheduled_at use run_at" in fix_of(scheduled_at=1)
    assert "Did you mean priority?" in fix_of(prioriti=1)
    assert "There are agent, causation_id" in fix_of(nonsense=1)
    with pytest.raises(InvalidSetting, match="Did you mean queue"):
        app.job(queu="mail")  # type: ignore[call-overload]
    with pytest.raises(InvalidSetting, match="Did you mean run_at"):
        app.prepare("send", run_att=1)  # type: ignore[call-arg]
    app.close()


@pytest.mark.req("CX-9", "DP-22")
def test_policy_error_suggests_valid_setting() -> None:
    with pytest.raises(InvalidSetting, match="Use max_attempts, which counts the first attempt"):
        Retry(max_retries=3)  # type: ignore[call-arg]
    with pytest.raises(InvalidSetting, match="Use base"):
        Backoff(initial=3)  # type: ignore[call-arg]
    with pytest.raises(AttributeError, match=r"use handle.state\(\)"):
        Handle.__getattr__(object(), "status")  # type: ignore[attr-defined]


@pytest.mark.req("CX-2")
def test_id_prefix_becomes_range_of_ids() -> None:
    assert id_range("01a1de74-eb") == (
        "01a1de74-eb00-0000-0000-000000000000",
        "01a1de74-ebff-ffff-ffff-ffffffffffff",
    )
    assert id_range("01A1DE74") == ("01a1de74-0000-0000-0000-000000000000", "01a1de74-ffff-ffff-ffff-ffffffffffff")
    for wrong in ("01a1d", "mail", "01a1de7-4eb", "01a1de74-eb8c-70f1-843b-cac5f6817387", ""):
        assert id_range(wrong) is None
