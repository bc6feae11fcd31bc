"""The address table: special addresses are refused in every notation."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from ipaddress import ip_network

import pytest

from holdfast import App
from holdfast.errors import EgressRefused, InvalidSetting
from holdfast.outgoing import EgressPolicy, Outgoing
from holdfast.outgoing.policy import Target, refusal

pytestmark = pytest.mark.req("JF-8")

# The last group contains addresses that some Python releases call global.
_REFUSED = """
    0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.127.255.255 127.0.0.1 127.255.255.254 168.63.129.16
    169.254.169.254 172.16.0.1 172.31.255.255 192.0.0.1 192.0.0.170 192.0.2.1 192.31.196.1 192.52.193.1 192.88.99.1
    192.168.1.1 192.175.48.1 198.18.0.1 198.19.255.255 198.51.100.7 203.0.113.9 224.0.0.1 239.255.255.250 240.0.0.1
    255.255.255.255
    :: ::1 100::1 2001:2::1 2001:10::1 2001:20::1 2001:db8::1 2001:1ff::1 2620:4f:8000::1 3fff::1 5f00::1 fc00::1
    fd00:ec2::254 fe80::1 febf::1 fec0::1 ff02::1 4000::1 1::1 fe80::1%eth0 2606:4700::1111%1
    ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:a9fe:a9fe ::127.0.0.1 ::7f00:1 ::8.8.8.8 ::ffff:0:127.0.0.1
    64:ff9b::a9fe:a9fe 64:ff9b::127.0.0.1 64:ff9b:1::7f00:1 64:ff9b:1::8.8.8.8 64:ff9b:1:2::1
    2002:7f00:1:: 2002:a9fe:a9fe:: 2002:808:808:: 2001:0:7f00:1::1 2001:0:808:808::f7f7:f7f7
    2606:4700::5efe:10.0.0.1 2606:4700::200:5efe:127.0.0.1
    nonsense 127.0.0.1.5 127.1
"""
_ALLOWED = """
    1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.1 100.63.255.255 100.128.0.1 126.255.255.255 128.0.0.1 172.15.255.255
    172.32.0.1 192.0.1.1 192.167.255.255 198.17.255.255 198.20.0.1 223.255.255.255 2606:4700::1111 2001:4860:4860::8888
    2001:200::1 2a00:1450::1 ::ffff:8.8.8.8 64:ff9b::8.8.8.8
"""


def test_special_addresses_are_refused_and_others_allowed() -> None:
    assert [address for address in _REFUSED.split() if refusal(address) is None] == []
    assert [(address, refusal(address)) for address in _ALLOWED.split() if refusal(address) is not None] == []


def test_allowed_network_opens_only_itself() -> None:
    here = [ip_network("127.0.0.1/32")]
    assert refusal("127.0.0.1", here) is None
    assert refusal("::ffff:127.0.0.1", here) is None
    assert refusal("127.0.0.2", here) is not None
    translation = [ip_network("64:ff9b:1::/96")]
    assert refusal("64:ff9b:1::8.8.8.8", translation) is None
    assert "carries 10.0.0.1" in (refusal("64:ff9b:1::10.0.0.1", translation) or "")
    assert refusal("8.8.8.8", (), [ip_network("8.8.0.0/16")]) is not None
    assert refusal("64:ff9b::8.8.8.8", here, [ip_network("8.8.0.0/16")]) is not None


def test_url_is_parsed_once_and_ambiguous_urls_are_refused() -> None:
    assert Target.of("https://Example.COM./a b".replace(" ", "%20")) == Target("https", "example.com", 443, "/a%20b")
    assert Target.of("http://[2606:4700:0:0::1111]:8080?x=ü#part").authority == "[2606:4700::1111]:8080"
    assert Target.of("http://bücher.example/").host == "xn--bcher-kva.example"
    assert Target.of("http://１２７。０。０。１/").host == "127.0.0.1"  # and is checked as that address
    assert Target.of("http://0x7f.1/").host == "0x7f.1"  # the resolver interprets it
    ambiguous = [
        *(
            "",
            "ftp://example.com/",
            "file:///etc/passwd",
            "//example.com/",
            "http:///x",
            "http://",
            "https:example.com",
        ),
        *("http://user@example.com/", "http://u:p@example.com/", "http://example.com@127.0.0.1/"),
        *("http://exa mple.com/", "http://example.com\\@127.0.0.1/", "http://example.com/\r\nX: y", "http://a\tb/"),
        *("http://[fe80::1%25eth0]/", "http://[::1", "http://[]/", "http://[1.2.3.4]/", "http://127.0.0.1%2f/"),
        *("http://example.com:0/", "http://example.com:65536/", "http://example.com:x/", "http://..example.com/"),
        *("http://" + "a" * 64 + ".example/", "http://example.com/" + "a" * 9_000, "http://-ü-.example/\u2028"),
        *("http://exam\x00ple.com/", "gopher://127.0.0.1:70/", "http://example.com../"),
    ]
    for url in ambiguous:
        with pytest.raises(EgressRefused):
            Target.of(url)
    for value in (None, 7, b"http://example.com/"):
        with pytest.raises(EgressRefused):
            Target.of(value)


def test_hosts_ports_and_schemes_are_allow_lists() -> None:
    policy = EgressPolicy(schemes=("https",), hosts=("api.example.com", "*.partner.example"))
    policy.check(Target.of("https://API.example.com/x"))
    policy.check(Target.of("https://eu.partner.example:443/"))
    for url in (
        *("http://api.example.com/", "https://api.example.com:8443/", "https://example.com/"),
        *("https://partner.example/", "https://notpartner.example/", "https://api.example.com.evil.example/"),
    ):
        with pytest.raises(EgressRefused):
            policy.check(Target.of(url))
    both = EgressPolicy(hosts=("*.example.com",), own_hosts=("api.example.com:8443", "[2606:4700::1]:81"))
    both.check(Target.of("https://api.example.com:8443/"))
    for url in ("https://api.example.com/", "https://www.example.com:8443/", "http://[2606:4700::1]:81/"):
        with pytest.raises(EgressRefused):
            both.check(Target.of(url))
    EgressPolicy(own_hosts=("[2606:4700::1]:81",)).check(Target.of("http://[2606:4700::1]:81/"))


def test_invalid_policies_and_requests_are_refused() -> None:
    for wrong in (
        *({"schemes": ("ftp",)}, {"ports": (0,)}, {"total": 0}, {"read": 10_000}, {"max_bytes": 0}, {"redirects": 99}),
        *({"allow": ("10.0.0.0/99",)}, {"deny": ("10.0.0.1/8",)}, {"allow": "10.0.0.0/8"}),
    ):
        with pytest.raises(InvalidSetting, match="invalid_egress"):
            EgressPolicy(**wrong)
    for request in (
        Outgoing("CONNECT", "http://example.com/"),
        Outgoing("get", "http://example.com/"),
        Outgoing("GET", "http://example.com/", {"X-A": "b\r\nX-C: d"}),
        Outgoing("GET", "http://example.com/", {"X A": "b"}),
        Outgoing("GET", "http://example.com/", {"Host": "127.0.0.1"}),
        Outgoing("POST", "http://example.com/", {"Transfer-Encoding": "chunked"}),
        Outgoing("GET", "http://example.com/", {f"X-{number}": "" for number in range(101)}),
        Outgoing("POST", "http://example.com/", body=b"x" * 11_000_000),
    ):
        with pytest.raises(EgressRefused):
            request.check(EgressPolicy())
    assert "secret" not in repr(Outgoing("GET", "http://e.example/?k=secret", {"A": "secret"}, b"secret"))
    assert "hunter22" not in repr(EgressPolicy(proxy="http://u:hunter22@proxy:3128"))


def test_extra_is_required_only_for_sending() -> None:
    script = (
        "import sys; sys.modules['httpcore2'] = sys.modules['httpx2'] = sys.modules['idna'] = None;"
        "import asyncio, holdfast; from holdfast.outgoing import *;"
        "asyncio.run(send(Outgoing('GET', 'http://127.0.0.1/'), EgressPolicy(allow=('127.0.0.1/32',))))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "[missing_extra] pip install 'holdfast[http]'" in done.stderr.splitlines()[-1]


def test_environment_can_allow_networks_and_set_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_EGRESS_ALLOW", "10.0.0.0/8, 127.0.0.1/32")
    monkeypatch.setenv("HOLDFAST_EGRESS_PROXY", "http://egress.example:3128")
    with closing(App("sqlite:///:memory:")) as app:
        assert (app._egress.allow, app._egress.proxy) == (("10.0.0.0/8", "127.0.0.1/32"), "http://egress.example:3128")
    monkeypatch.setenv("HOLDFAST_EGRESS_ALLOW", "everything")
    with pytest.raises(InvalidSetting, match="invalid_egress"):
        App("sqlite:///:memory:")
