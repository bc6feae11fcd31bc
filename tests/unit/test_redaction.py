"""Secrets are removed from text by name, by format and by value, in bounded time."""

from __future__ import annotations

import json
import time
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine import redaction
from holdfast.engine.payload import JsonValue
from holdfast.engine.redaction import HIDDEN, LEAST, Redactor, one_line
from holdfast.errors import InvalidSetting
from tests.support.strategies import CHARACTERS

pytestmark = pytest.mark.req("DP-22")

SECRET = "hunter2-Zq9"

NAMED = [
    "password=hunter2-Zq9",
    "login failed: password: hunter2-Zq9",
    "db_password = 'hunter2-Zq9'",
    '{"password": "hunter2-Zq9", "user": "ada"}',
    "{'user': 'ada', 'passwd': 'hunter2-Zq9'}",
    "{'secret': b'hunter2-Zq9'}",
    '"{\\"token\\": \\"hunter2-Zq9\\"}"',
    "https://x.example/?api_key=hunter2-Zq9&page=3",
    "apiKey=hunter2-Zq9",
    "X-API-Key: hunter2-Zq9",
    "client_secret => hunter2-Zq9",
    "Authorization: Custom one two hunter2-Zq9",
    "Cookie: a=1; session=hunter2-Zq9",
    "headers={'Authorization': 'Bearer hunter2-Zq9', 'x': 1}",
    "tokens=['hunter2-Zq9', 'other']",
    "credentials={'a': {'b': 'hunter2-Zq9'}} and so on",
    "password=SecretStr('hunter2-Zq9')",
    'password="""hunter2-Zq9 "quoted" """',
    "password='it\\'s hunter2-Zq9'",
    "PRIVATE_KEY=hunter2-Zq9",
    "ssn=hunter2-Zq9",
    "password='hunter2-Zq9",  # never closed
    "token=(hunter2-Zq9",
]


@pytest.mark.parametrize("text", NAMED)
def test_value_of_secret_name_is_redacted(text: str) -> None:
    hidden = Redactor()(text)
    assert "hunter2" not in hidden
    assert HIDDEN in hidden
    assert Redactor()(hidden) == hidden


SHAPED = {
    "a header": ("sent Bearer abcdefgh12345678 to it", "abcdefgh12345678"),
    "basic": ("Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
    "a url": ("postgresql://ada:s3cr3t@db.example/shop", "s3cr3t"),
    "a url with an @": ("amqp://ada:s3@cr3t@mq/", "cr3t"),
    "aws": ("key AKIAABCDEFGHIJKLMNOP refused", "AKIAABCDEFGHIJKLMNOP"),
    "jwt": ("got eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.SflKxwRJSMeKKF2", "SflKxwRJ"),
    "github": ("ghp_abcdefghijklmnopqrstuv", "ghp_abc"),
    "a key": ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----", "MIIE"),
    "a key cut short": ("-----BEGIN PRIVATE KEY-----\nMIIE…", "MIIE"),
}


@pytest.mark.parametrize("name", SHAPED)
def test_text_that_looks_like_a_secret_is_redacted(name: str) -> None:
    text, secret = SHAPED[name]
    assert secret not in Redactor()(text)


@pytest.mark.parametrize(
    "text",
    [
        "KeyError: 'page'",
        "a basic understanding of bearer authentication",
        "tokenizer=gpt2, classname=Order",
        "token=None, password=''",
        "https://example.com:8080/a@b",
        'File "app/mail.py", line 3, in send',
        "the secretary said: hello",
    ],
)
def test_ordinary_text_is_unchanged(text: str) -> None:
    assert Redactor()(text) == text


@pytest.mark.parametrize("text", ["{}", "x{}y", "'{}'", "a\n{}\tb"])
@pytest.mark.parametrize("value", [SECRET, "with 'quotes' \"and\" \\", "naïve → ключ", "line\nbreak"])
def test_known_value_is_redacted_in_every_encoding(text: str, value: str) -> None:
    redact = Redactor(values=[value])
    for written in (value, repr(value)[1:-1], json.dumps(value)[1:-1], quote(value, safe="")):
        assert redact(text.format(written)) == text.format(HIDDEN)


def test_values_can_be_registered_later_or_for_one_call() -> None:
    redact = Redactor()
    once = redact.also([SECRET])
    assert (redact(SECRET), once(SECRET)) == (SECRET, HIDDEN)
    redact.register(SECRET)
    assert redact(SECRET) == HIDDEN
    with pytest.raises(InvalidSetting) as caught:
        redact.register("x" * (LEAST - 1))
    assert caught.value.code == "secret_too_short"


def test_additional_secret_names_are_redacted() -> None:
    assert Redactor()("pesel=123") == "pesel=123"
    assert Redactor(names=["pesel"])("pesel=123") == f"pesel={HIDDEN}"


def test_secrets_of_environment_are_found() -> None:
    variables = {
        "SMTP_PASSWORD": SECRET,
        "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI",
        "DATABASE_URL": "postgresql://ada:p%40ssw0rd@db/x",
        "PWD": "where/we/are",
        "HOME": "somewhere",
        "MAX_TOKENS": "100000",
    }
    secrets = set(Redactor().in_environment(variables.items()))
    assert secrets == {SECRET, "wJalrXUtnFEMI", "p%40ssw0rd", "p@ssw0rd"}


def test_secrets_of_payload_are_found() -> None:
    payload: JsonValue = {
        "user": "ada",
        "auth": {"password": SECRET, "tokens": ["one-token", {"x": "two-token"}]},
        "n": 3,
    }
    assert set(Redactor().within(payload)) == {SECRET, "one-token", "two-token"}


HOSTILE = {
    "one word": "a",
    "the name again": "password",
    "names": "token_",
    "openings": "password=(",
    "quotes": "password='",
    "schemes": "a://b:",
    "headers": "Bearer ",
    "jwt starts": "-eyJaaaaa",
    "jwt dots": "eyJaaaaa.",
    "key starts": "-----BEGIN ",
    "spaces": "password ",
    "backslashes": 'password="\\',
    "blanks": " ",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_redaction_of_a_megabyte_takes_linear_time(name: str) -> None:
    """With the usual limit, and in full, where anything worse than linear would take minutes."""
    text = HOSTILE[name] * (1_000_000 // len(HOSTILE[name]))
    redact = Redactor(values=[SECRET])
    began = time.process_time()
    assert len(redact(text, 16_000)) <= 16_000
    one_line(text)
    assert time.process_time() - began < 1.0
    redact(text, len(text))
    assert time.process_time() - began < 10.0


@given(st.text(CHARACTERS, max_size=300), st.integers(0, 400))
def test_redacted_text_never_exceeds_limit(text: str, limit: int) -> None:
    assert len(Redactor(values=[SECRET])(text, limit)) <= limit
    assert len(one_line(text, limit)) <= limit


def test_cut_characters_are_counted() -> None:
    kept, _, note = Redactor()("x" * 100_000, 100).partition("… [")
    assert note == f"{100_000 - len(kept)} characters cut]"


@pytest.mark.parametrize("before", range(380, 402))
def test_secret_at_the_cut_is_fully_redacted(before: int) -> None:
    """The search covers four times the limit; here all but its end is redacted."""
    text = f"{('Bearer ' + 'A1' * 400)[: before - 1]} {SECRET} {'x' * 1000}"
    kept = Redactor(values=[SECRET])(text, 100)
    assert kept.startswith("Bearer [redacted]")
    assert not any(SECRET[:size] in kept for size in range(4, len(SECRET)))


@given(st.text(CHARACTERS))
def test_log_field_is_one_line_without_control_characters(text: str) -> None:
    line = one_line(text, 10_000)
    assert len(line.splitlines()) <= 1
    assert not any(ord(char) < 32 or 127 <= ord(char) < 160 for char in line)


PIECES = st.sampled_from(
    [
        *("password", "PassWord", "api", "API_", "key", "-key", "token", "ſecret", "card number", "ssn", "pwd2"),
        *("bearer ", "BASIC ", "Bearer\t", "abcDEF123==", "eyJabcdefgh.ijklmnop", "AKIAABCDEFGHIJKLMNOP"),
        *("ghp_0123456789abcdef", "sk-0123456789abcdefgh", "hf_" + "a" * 40, "whsec_0123456789abcdef"),
        *("=", ": ", " => ", "'x y'", '"', "hunter2", "\n", " ", "é", "K"),
    ]
)


@given(st.lists(PIECES, max_size=12).map("".join), st.booleans())
def test_quick_look_changes_no_result(text: str, custom: bool) -> None:
    names = ("patient-name", "größe") if custom else ()
    quick = Redactor(names)(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redaction, "_small", lambda _: None)  # every pattern is searched for
        assert Redactor(names)(text) == quick
