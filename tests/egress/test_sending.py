"""Sending to real servers: the checked address is the one connected to, and every limit holds."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from collections.abc import Sequence

import pytest

from holdfast.errors import EgressError, EgressRefused, EgressTimeout, EgressTooLarge, EgressUnreachable
from holdfast.outgoing import EgressPolicy, Outgoing, send
from tests.egress.conftest import Policy
from tests.support.http_server import Page, Web, running

pytestmark = pytest.mark.req("JF-8")


class Names:
    """A resolver that returns the next entry of a list for each query."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.queries: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.queries.append(host)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


async def test_request_is_sent_and_its_response_returned(web: Web, open_to: Policy) -> None:
    web.says("/x", 201, b"made", {"X-Kind": "a", "content-type": "text/plain"})
    request = Outgoing("POST", f"{web.url}/x?a=ü", {"X-Own": "1", "User-Agent": "tests"}, b"body")
    response = await send(request, open_to())
    assert (response.status, response.body, response.header("x-KIND"), response.address) == (
        201,
        b"made",
        "a",
        "127.0.0.1",
    )
    assert response.elapsed > 0
    received = web.asked[0]
    assert (received.method, received.path, received.body) == ("POST", "/x?a=%C3%BC", b"body")
    assert received.headers["host"] == f"127.0.0.1:{web.port}"
    assert (received.headers["x-own"], received.headers["user-agent"]) == ("1", "tests")
    assert (await send(Outgoing("HEAD", f"{web.url}/x"), open_to())).body == b""
    assert (await send(Outgoing("GET", f"{web.url}/none"), open_to())).status == 404


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "localhost.", "2130706433", "0x7f.1", "0x7f000001", "0177.0.0.1", "127.1", "0",
     "[::1]", "[::ffff:127.0.0.1]", "[::]", "127。0。0。1"],
)  # fmt: skip
async def test_loopback_cannot_be_reached_by_any_name(web: Web, host: str) -> None:
    with pytest.raises((EgressRefused, EgressUnreachable)) as caught:  # some resolvers reject some forms
        await send(Outgoing("GET", f"http://{host}:{web.port}/"), EgressPolicy(ports=(web.port,)))
    assert caught.value.code in ("egress_refused", "egress_unreachable")
    assert web.asked == []


async def test_name_is_resolved_only_once(web: Web) -> None:
    """The first answer is allowed, the second would be loopback: the name is not resolved again."""
    names = Names(["192.0.2.1"], ["127.0.0.1"])
    policy = EgressPolicy(ports=(web.port,), allow=("192.0.2.1/32",), resolver=names, connect=0.3)
    with pytest.raises((EgressTimeout, EgressUnreachable)):
        await send(Outgoing("GET", f"http://rebound.example:{web.port}/"), policy)
    assert names.queries == ["rebound.example"]
    assert web.asked == []


async def test_one_forbidden_address_refuses_the_name(web: Web) -> None:
    for answers in (["8.8.8.8", "127.0.0.1"], ["127.0.0.1", "8.8.8.8"], ["2606:4700::1111", "::ffff:10.0.0.1"]):
        with pytest.raises(EgressRefused, match="may not be reached"):
            await send(
                Outgoing("GET", f"http://mixed.example:{web.port}/"),
                EgressPolicy(ports=(web.port,), resolver=Names(answers)),
            )
    many = [f"8.8.{n}.1" for n in range(65)]
    with pytest.raises(EgressRefused, match="more than 64"):
        await send(Outgoing("GET", "http://many.example/"), EgressPolicy(resolver=Names(many)))
    with pytest.raises(EgressUnreachable, match="no address"):
        await send(Outgoing("GET", "http://none.example/"), EgressPolicy(resolver=Names([])))
    assert web.asked == []


async def test_host_header_keeps_the_name_and_the_next_address_is_tried(web: Web, open_to: Policy) -> None:
    web.says("/", 200, b"here")
    names = Names(["127.0.0.2", "127.0.0.1"])  # nothing listens on the first address
    response = await send(
        Outgoing("GET", f"http://named.example:{web.port}/"), open_to(allow=("127.0.0.0/8",), resolver=names)
    )
    assert (response.body, response.address) == (b"here", "127.0.0.1")
    assert web.asked[0].headers["host"] == f"named.example:{web.port}"


async def test_environment_proxies_are_ignored(web: Web, open_to: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    web.says("/", 200, b"direct")
    with running() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HTTPS_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        assert (await send(Outgoing("GET", web.url), open_to())).body == b"direct"
        assert proxy.asked == []


async def test_configured_proxy_is_a_second_layer(web: Web, open_to: Policy) -> None:
    """The guard checks first, as always; the proxy gets the name and checks it again."""
    with running() as proxy:
        target = f"http://named.example:{web.port}/x"
        proxy.says(target, 200, b"by the proxy")
        url = f"http://user:pass@127.0.0.1:{proxy.port}"
        response = await send(Outgoing("GET", target), open_to(proxy=url, resolver=Names(["127.0.0.1"])))
        assert response.body == b"by the proxy"
        assert proxy.asked[0].headers["proxy-authorization"].startswith("Basic ")
        with pytest.raises(EgressRefused):
            await send(Outgoing("GET", target), open_to(proxy=url, resolver=Names(["10.0.0.1"])))
        proxy.says(f"named.example:{web.port}", 403)
        with pytest.raises(EgressUnreachable, match="the proxy refused"):
            await send(
                Outgoing("GET", target.replace("http:", "https:")),
                open_to(proxy=url, resolver=Names(["127.0.0.1"])),
            )
        assert len(proxy.asked) == 2
    assert web.asked == []


async def test_redirects_are_returned_unless_enabled(web: Web, open_to: Policy) -> None:
    web.says("/a", 302, b"", {"location": "/b"})
    web.says("/b", 200, b"there")
    web.says("/round", 302, b"", {"location": "/round"})
    web.says("/inside", 302, b"", {"location": "http://169.254.169.254/latest/meta-data"})
    web.says("/file", 302, b"", {"location": "file:///etc/passwd"})
    assert (await send(Outgoing("GET", f"{web.url}/a"), open_to())).status == 302
    assert (await send(Outgoing("GET", f"{web.url}/a"), open_to(redirects=1))).body == b"there"
    with pytest.raises(EgressRefused, match="more than 3 redirects"):
        await send(Outgoing("GET", f"{web.url}/round"), open_to(redirects=3))
    for path in ("/inside", "/file"):
        with pytest.raises(EgressRefused):
            await send(Outgoing("GET", f"{web.url}{path}"), open_to(redirects=3, ports=(web.port, 80)))
    names = Names(["127.0.0.1"])
    web.says("/other", 302, b"", {"location": f"http://other.example:{web.port}/b"})
    listed = open_to(redirects=3, hosts=("named.example",), resolver=names)
    before = len(web.asked)
    with pytest.raises(EgressRefused, match="is not among the hosts"):
        await send(Outgoing("GET", f"http://named.example:{web.port}/other"), listed)
    assert (names.queries, len(web.asked) - before) == (["named.example"], 1)


async def test_credentials_do_not_follow_a_redirect_to_another_origin(web: Web, open_to: Policy) -> None:
    with running() as other:
        other.says("/", 200, b"elsewhere")
        web.says("/", 302, b"", {"location": f"http://127.0.0.1:{other.port}/"})
        web.says("/same", 303, b"", {"location": "/end"})
        web.says("/keeps", 307, b"", {"location": f"http://127.0.0.1:{other.port}/"})
        web.says("/end", 200, b"end")
        headers = {"Authorization": "Bearer x", "X-Api-Key": "y", "Cookie": "z", "Accept": "text/plain"}
        policy = open_to(redirects=2, ports=(web.port, other.port))
        assert (await send(Outgoing("GET", web.url, headers), policy)).body == b"elsewhere"
        assert other.asked[0].headers["accept"] == "text/plain"
        assert not {"authorization", "x-api-key", "cookie"} & other.asked[0].headers.keys()
        assert (await send(Outgoing("POST", f"{web.url}/same", headers, b"body"), policy)).body == b"end"
        assert (web.asked[-1].method, web.asked[-1].body) == ("GET", b"")
        assert web.asked[-1].headers["x-api-key"] == "y"  # same origin
        with pytest.raises(EgressRefused, match="body to another origin"):
            await send(Outgoing("POST", f"{web.url}/keeps", headers, b"body"), policy)
        assert len(other.asked) == 1


async def test_large_responses_are_refused_or_cut(web: Web, open_to: Policy) -> None:
    def endless(page: Page) -> None:
        page.send_response(200)
        page.end_headers()
        while not web.over.is_set():
            page.wfile.write(b"x" * 10_000)

    web.pages["/endless"] = endless
    web.says("/long", 200, b"x" * 5_000)
    web.says("/headers", 200, b"", {f"x-{number}": "y" * 500 for number in range(60)})
    web.says("/header", 200, b"", {"x": "y" * 200_000})
    small = open_to(max_bytes=1_000)
    for path in ("/endless", "/long"):
        with pytest.raises(EgressTooLarge, match="egress_too_large"):
            await send(Outgoing("GET", f"{web.url}{path}"), small)
        cut = await send(Outgoing("GET", f"{web.url}{path}"), open_to(max_bytes=1_000, cut=True))
        assert (cut.body, cut.truncated) == (b"x" * 1_000, True)
    with pytest.raises(EgressTooLarge, match="bytes of headers"):
        await send(Outgoing("GET", f"{web.url}/headers"), open_to(max_header_bytes=10_000))
    with pytest.raises(EgressError):
        await send(Outgoing("GET", f"{web.url}/header"), open_to())


async def test_size_limit_applies_to_decompressed_data(web: Web, open_to: Policy) -> None:
    bomb = gzip.compress(bytes(60_000_000))
    assert len(bomb) < 100_000
    web.says("/bomb", 200, bomb, {"content-encoding": "gzip"})
    web.says("/twice", 200, gzip.compress(bomb), {"content-encoding": "gzip, gzip"})
    web.says("/gzip", 200, gzip.compress(b"a") + gzip.compress(b"b"), {"content-encoding": "gzip"})
    web.says("/deflate", 200, zlib.compress(b"text"), {"content-encoding": "deflate"})
    web.says("/half", 200, gzip.compress(b"text" * 100)[:-9], {"content-encoding": "gzip"})
    web.says("/lie", 200, b"plain", {"content-encoding": "gzip"})
    web.says("/none", 204, b"", {"content-encoding": "gzip"})
    tracemalloc.start()
    try:
        with pytest.raises(EgressTooLarge):
            await send(Outgoing("GET", f"{web.url}/bomb"), open_to(max_bytes=1_000_000))
        assert tracemalloc.get_traced_memory()[1] < 10_000_000  # the 60 MB were never in memory
    finally:
        tracemalloc.stop()
    cut = await send(Outgoing("GET", f"{web.url}/bomb"), open_to(max_bytes=100_000, cut=True))
    assert (len(cut.body), cut.truncated) == (100_000, True)
    assert (await send(Outgoing("GET", f"{web.url}/gzip"), open_to())).body == b"ab"
    assert (await send(Outgoing("GET", f"{web.url}/deflate"), open_to())).body == b"text"
    assert (await send(Outgoing("GET", f"{web.url}/none"), open_to())).body == b""
    for path in ("/twice", "/half", "/lie"):
        with pytest.raises(EgressError, match=r"encoding|compressed"):
            await send(Outgoing("GET", f"{web.url}{path}"), open_to())


async def test_slow_or_broken_responses_end(web: Web, open_to: Policy) -> None:
    def silent(page: Page) -> None:
        web.over.wait(30)

    def trickle(page: Page) -> None:
        page.send_response(200)
        page.end_headers()
        while not web.over.wait(0.02):
            page.wfile.write(b"x")

    def nonsense(page: Page) -> None:
        page.wfile.write(b"SSH-2.0-OpenSSH\r\n\r\n")

    def short(page: Page) -> None:
        page.answer(200, b"half", {"content-length": "100"})

    web.pages |= {"/silent": silent, "/trickle": trickle, "/nonsense": nonsense, "/short": short}
    with pytest.raises(EgressTimeout, match="egress_timeout"):
        await send(Outgoing("GET", f"{web.url}/silent"), open_to(read=0.1))
    with pytest.raises(EgressTimeout):
        await send(Outgoing("GET", f"{web.url}/trickle"), open_to(total=0.3))
    with pytest.raises(EgressTimeout):
        await send(Outgoing("GET", f"{web.url}/trickle", timeout=0.1), open_to())
    for path in ("/nonsense", "/short"):
        with pytest.raises(EgressError, match="egress_failed"):
            await send(Outgoing("GET", f"{web.url}{path}"), open_to())
    with pytest.raises(EgressUnreachable, match="egress_unreachable"):
        await send(Outgoing("GET", f"{web.url}/"), open_to(resolver=Names(["127.0.0.2"]), allow=("127.0.0.2/32",)))
