"""Artifact stores: a directory and a bucket behave alike, and no reference crosses tenants."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from holdfast.errors import HoldfastError
from holdfast.stores.artifacts import Artifacts, Reference, open_artifacts
from holdfast.stores.s3 import Bucket, Credentials, signed
from tests.support.http_server import running
from tests.support.s3_server import ACCESS, REGION, SECRET, S3Server
from tests.support.stores import new_id

pytestmark = pytest.mark.req("DP-21")


@pytest.fixture
def server() -> Iterator[S3Server]:
    with running(server=(started := S3Server())):
        yield started


@pytest.fixture(params=["directory", "bucket"])
def artifacts(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Artifacts:
    if request.param == "directory":
        opened = open_artifacts(tmp_path / "kept")
    else:
        server = request.getfixturevalue("server")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        opened = open_artifacts(f"s3://jobs/some/prefix?region={REGION}&endpoint={server.url}")
    assert opened is not None
    return opened


def code(call: object) -> str:
    with pytest.raises(HoldfastError) as caught:
        call()  # type: ignore[operator]
    return caught.value.code


def test_artifact_is_readable_by_its_tenant_only_and_verified_by_digest(artifacts: Artifacts) -> None:
    job, data = new_id(), bytes(range(256)) * 50
    for tenant in ("acme", "..", "a/b", "ümlaut & co", ".hidden", "x" * 100):
        ref = artifacts.put(data, tenant=tenant, job_id=job)
        assert ref.endswith(f"/{job}/{hashlib.sha256(data).hexdigest()}")
        assert artifacts.put(data, tenant=tenant, job_id=job) == ref
        assert artifacts.get(ref, tenant=tenant) == data
        assert artifacts.exists(ref, tenant=tenant)
        for call in (artifacts.get, artifacts.exists, artifacts.delete):
            assert code(lambda call=call, ref=ref: call(ref, tenant="other")) == "artifact_not_yours"
        artifacts.delete(ref, tenant=tenant)
        artifacts.delete(ref, tenant=tenant)
        assert not artifacts.exists(ref, tenant=tenant)
        assert code(lambda ref=ref, tenant=tenant: artifacts.get(ref, tenant=tenant)) == "artifact_missing"
    kept = {artifacts.put(b"one", tenant=tenant, job_id=job) for tenant in ("acme", "..", "a/b", "ümlaut & co", "<&>")}
    artifacts.store.put("notes/of/others", b"")
    assert sorted(map(str, artifacts.references())) == sorted(kept), "references of other programs are left out"
    ref = artifacts.put(b"one", tenant="acme", job_id=job)
    artifacts.store.put(ref.removeprefix("artifact://"), b"two")
    assert code(lambda: artifacts.get(ref, tenant="acme")) == "artifact_changed"
    for bad in ("file:///etc/passwd", ref + "/../x", "artifact://acme/../" + "0" * 64, "artifact://acme//x", ""):
        assert code(lambda bad=bad: artifacts.get(bad, tenant="acme")) == "invalid_reference"


@pytest.mark.req("JF-10")
def test_put_file_stores_file_under_its_digest(artifacts: Artifacts, tmp_path: Path) -> None:
    path, job = tmp_path / "report", new_id()
    path.write_bytes(b"row\n" * 100_000)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    ref = artifacts.put_file(path, digest, tenant="acme", job_id=job)
    assert artifacts.get(ref, tenant="acme") == path.read_bytes()
    assert ref == artifacts.put(path.read_bytes(), tenant="acme", job_id=job)
    with artifacts.file(ref, tenant="acme") as found:
        assert found.read_bytes() == path.read_bytes()
    kept: dict[str, bytes] = {}

    class Own:
        """A custom store without `put_file` and `get_file`."""

        put, get = kept.__setitem__, kept.get
        exists, delete = kept.__contains__, kept.__delitem__

    assert Artifacts(Own()).put_file(path, digest, tenant="acme", job_id=job) == ref
    assert list(kept.values()) == [path.read_bytes()]
    with Artifacts(Own()).file(ref, tenant="acme") as found:
        assert found.read_bytes() == path.read_bytes()
    artifacts.store.put(Reference.of(ref).key, b"changed")
    assert code(lambda: artifacts.file(ref, tenant="acme").__enter__()) == "artifact_changed"
    artifacts.delete(ref, tenant="acme")
    assert code(lambda: artifacts.file(ref, tenant="acme").__enter__()) == "artifact_missing"
    assert code(lambda: artifacts.file(ref, tenant="other").__enter__()) == "artifact_not_yours"


def test_key_cannot_leave_directory(tmp_path: Path) -> None:
    artifacts = open_artifacts(str(tmp_path / "kept"))
    assert artifacts is not None
    (tmp_path / "secret").write_text("no")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "link").symlink_to(tmp_path)
    for key in ("../secret", "a/../../secret", "/etc/passwd", "a//b", ".", "a/.b", "a\0b", "link/secret", ""):
        for call in (artifacts.store.get, artifacts.store.exists, artifacts.store.delete):
            assert code(lambda key=key, call=call: call(key)) == "invalid_reference", key
        assert code(lambda key=key: artifacts.store.put(key, b"")) == "invalid_reference", key
    artifacts.store.put("a/b/c", b"x")
    assert [path.name for path in (tmp_path / "kept" / "a" / "b").iterdir()] == ["c"]  # no temporary file is left
    assert (tmp_path / "secret").read_text() == "no"


@pytest.mark.slow
def test_bucket_retries_errors_and_refuses_bad_signatures(server: S3Server) -> None:
    given = {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET}
    url = f"s3://jobs?region={REGION}&endpoint={server.url}"
    bucket = Bucket.of(url, given)
    server.failures = 2
    bucket.put("a/b", b"x")
    assert server.objects == {"/jobs/a/b": b"x"}
    assert [request.method for request in server.asked] == ["PUT"] * 3
    server.failures = 3
    assert code(lambda: bucket.get("a/b")) == "artifacts_away"
    wrong = Bucket.of(url, given | {"AWS_SECRET_ACCESS_KEY": "another"})
    for call in (wrong.get, wrong.exists, wrong.delete):
        assert code(lambda call=call: call("a/b")) == "artifacts_refused"
    assert "another" not in repr(wrong)
    assert SECRET not in repr(bucket)
    assert code(lambda: Bucket.of(url, {})) == "missing_credentials"
    for bad in ("s3://", "s3://jobs?colour=red", "s3://jobs?endpoint=ftp://x", "s3://u:p@jobs"):
        assert code(lambda bad=bad: Bucket.of(bad, given)) == "invalid_artifacts"
    assert code(lambda: open_artifacts("ftp://x")) == "invalid_artifacts"
    server.shutdown()
    server.server_close()
    unreachable = Bucket.of(url, given)
    assert code(lambda: unreachable.put("a", b"")) == "artifacts_away"


def test_signature_matches_example_of_s3_documentation() -> None:
    """The example for a request without further headers in the S3 documentation."""
    given = Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
    now, host = datetime(2013, 5, 24, tzinfo=UTC), "examplebucket.s3.amazonaws.com"
    headers = signed("GET", host, "/", b"", "us-east-1", given, now, "lifecycle=")
    assert headers["authorization"] == (
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
        "SignedHeaders=host;x-amz-content-sha256;x-amz-date, "
        "Signature=fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"
    )
