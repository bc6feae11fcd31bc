"""Sealed payloads open only with the key and for their job; errors never contain the key."""

from __future__ import annotations

import base64
import json

import pytest

from holdfast.engine.payload import MARK
from holdfast.errors import HoldfastError, InvalidSetting, Refused
from holdfast.features.payloads.model import NO_RULE, Effective, RuleDraft, combine, combined, forbidden_at
from holdfast.stores.vault import EMPTY, KeyRing, Vault, new_key, sealed_in
from tests.support.stores import new_id

pytestmark = pytest.mark.req("DP-4")

JOB = new_id()


def pack(vault: Vault, text: str, rule: Effective = NO_RULE, job_id: str = JOB, tenant: str = "acme") -> str:
    return vault.pack(text, rule, what="payload", kind="x", tenant=tenant, job_id=job_id)


def test_sealed_payload_opens_only_for_its_job() -> None:
    key = new_key()
    vault = Vault.of(None, f"k1:{key}")
    text = json.dumps({"name": "Ada", "π": "ß" * 100}, ensure_ascii=False)
    packed = pack(vault, text)
    assert packed.startswith(MARK)
    assert "Ada" not in packed
    assert pack(vault, text) != packed  # never the same twice
    assert vault.open(packed, what="payload", tenant="acme", job_id=JOB) == text
    for context in (
        {"what": "result", "tenant": "acme", "job_id": JOB},
        {"what": "payload", "tenant": "other", "job_id": JOB},
        {"what": "payload", "tenant": "acme", "job_id": new_id()},
    ):
        with pytest.raises(Refused, match="seal_broken"):
            vault.open(packed, **context)  # type: ignore[arg-type]
    sealed = sealed_in(packed)
    assert sealed is not None
    for at in (0, 12, -1):  # the nonce, the text and the tag
        data = bytearray(base64.b64decode(sealed[1]))
        data[at] ^= 1
        changed = packed.replace(sealed[1], base64.b64encode(data).decode())
        with pytest.raises(Refused, match="seal_broken"):
            vault.open(changed, what="payload", tenant="acme", job_id=JOB)
    for other in (EMPTY, Vault.of(None, f"k2:{key}")):
        with pytest.raises(Refused, match="key_unknown"):
            other.open(packed, what="payload", tenant="acme", job_id=JOB)
    assert vault.digest(text) == vault.digest(text) != Vault.of(None, f"k1:{new_key()}").digest(text)
    # Under a new key the digest stays the same while the old key is in the ring.
    assert Vault.of(None, f"k2:{new_key()},k1:{key}").digest(text) == vault.digest(text)


@pytest.mark.req("DP-4")
def test_invalid_keys_are_rejected_and_never_shown() -> None:
    key = new_key()
    for bad in (key, f":{key}", f"a b:{key}", "k:" + key[:-8], f"k:{key},k:{new_key()}", "k:!!", f"k:{key}x", ","):
        with pytest.raises(InvalidSetting) as refused:
            KeyRing.of(bad)
        assert refused.value.code == "invalid_keys"
        assert key[:20] not in str(refused.value)
    ring = KeyRing.of(f"b:{key}, a:{new_key()} ")
    assert (ring.current, ring.names) == ("b", ("b", "a"))
    assert key not in repr(ring) + repr(Vault(None, ring))


def test_payload_over_limit_needs_an_artifact_store() -> None:
    rule = Effective(max_bytes=300, store=True)
    with pytest.raises(HoldfastError, match="no_artifact_store"):
        pack(EMPTY, json.dumps("x" * 400), rule)
    with pytest.raises(Refused, match="payload_over_limit"):
        pack(EMPTY, json.dumps("x" * 400), Effective(max_bytes=300))
    assert pack(EMPTY, '"x"', rule) == '"x"'


def test_combined_rules_are_as_strict_as_the_strictest() -> None:
    one = RuleDraft.of(signal_only=True, forbidden=["A"], max_bytes=1000, store=True)
    two = RuleDraft.of(restricted=True, max_bytes="1KB", max_result_bytes=500)
    three = RuleDraft.of(store=False)
    assert combine([one, two]) == Effective(frozenset({"a"}), True, 1000, 500, True)
    assert not combine([one, two, three]).store
    assert combined(combine([one]), combine([two])) == combine([one, two])
    assert combined(NO_RULE, combine([two])) == combine([two]) == combined(combine([two]), NO_RULE)
    assert combine([]) is NO_RULE
    deep: object = {"a": 1}
    for _ in range(5000):
        deep = [deep]
    assert str(forbidden_at(deep, frozenset({"a"}))).endswith("[0].a")  # type: ignore[arg-type]
