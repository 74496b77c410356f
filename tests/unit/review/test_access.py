"""Strangers get nothing. Each test sends what a hostile page, program or name server could send."""

import asyncio
import errno
import queue
import re
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.routing import Mount, Route

from clip_client.dedup import Store
from clip_client.dedup.report import DuplicateReport
from clip_client.review.app import review_app
from clip_client.review.state.applying import Worker
from tests.fixtures.reviews import Review, of_report, review_of
from tests.unit.review.albums import found_in, names, states

READING = (
    "/", "/groups/1", "/groups/1/plan", "/photos/0/small", "/state", "/plan", "/rules", "/rules/count",
    "/history", "/assets/review.css", "/search",
)  # fmt: skip
WRITING: tuple[tuple[str, dict[str, object]], ...] = (
    ("/groups/1/choice", {"what": "keep", "keep": 0, "move": [1]}),
    ("/search/photo", {}),
    ("/undo", {}),
    ("/plan", {}),
    ("/apply", {"plan": 1}),
    ("/rules/choose", {}),
    ("/rules/save", {"name": "mine", "rules": ["pixels"]}),
    ("/history/1/undo", {}),
)


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("access") / "album"


@pytest.fixture(scope="module")
def review(album: Path) -> Iterator[Review]:
    with review_of(album, store=album.parent / "store", search=of_report(found_in(album))) as running:
        yield running
        # Whatever the tests sent, nothing has changed.
        assert set(states(running).values()) == {"open"}
        assert len(names(album)) == 5
        with Store(album.parent / "store") as store:
            assert list(store.choices.all()) == []
            assert store.settings.keep_rules() == {}


def raw(review: Review, request: str) -> bytes:
    """Send bytes as they are, with the secret in place of SECRET, and return the whole answer."""
    with socket.create_connection(("127.0.0.1", review.port), timeout=60) as connection:
        connection.sendall(request.replace("/SECRET", review.secret).encode("latin-1"))
        answer = b""
        while piece := connection.recv(65_536):
            answer += piece
    return answer


def origin(review: Review) -> str:
    return f"http://127.0.0.1:{review.port}"


def read(review: Review, below: str, **headers: str) -> list[str]:
    """Return the pages below a path that are not refused."""
    answers = {path: review.request("GET", below + path, **headers) for path in READING}
    return [path for path, answer in answers.items() if answer.status != 403 or b"jpg" in answer.body]


def changed(review: Review, below: str, **headers: str) -> list[str]:
    """Return the changes that are not refused."""
    return [path for path, body in WRITING if review.request("POST", below + path, body, **headers).status != 403]


def test_every_address_is_tested_here(review: Review) -> None:
    tested = {"GET": READING, "POST": tuple(path for path, _ in WRITING)}
    for route in review_app(review.session, Worker(review.session)).routes:
        assert isinstance(route, Route | Mount)
        method = "POST" if isinstance(route, Route) and "POST" in (route.methods or ()) else "GET"
        assert any(route.path_regex.match(path) for path in tested[method]), route.path


@pytest.mark.parametrize(
    "secret", ["", "/", "/SECRETx", "/SECRE", "/secret", "/%53ECRET?", "/x/SECRET", "/x?SECRET", "/%ff", "/é"]
)
def test_without_the_secret_nothing_is_read_or_changed(secret: str, review: Review) -> None:
    """Neither with a part of it, nor with it elsewhere than in the first place."""
    wrong = secret.replace("SECRE", review.secret[1:-1]).replace("T", review.secret[-1])
    wrong = wrong.replace("secret", review.secret[1:].swapcase()).replace("é", "%C3%A9")
    assert read(review, wrong, Sec_Fetch_Site="none") == []
    assert changed(review, wrong, Origin=origin(review), Sec_Fetch_Site="same-origin") == []


def test_an_incomplete_address_says_how_to_open_the_pages(review: Review) -> None:
    """Such as a bookmark of an earlier start, or the port alone."""
    for path in ("/", "/groups/1", f"{review.secret[:-1]}/rules", "/favicon.ico"):
        answer = review.request("GET", path)
        assert answer.status == 403
        assert answer.headers.get_content_type() == "text/html"
        assert "Open the whole address that <code>clip-client review</code> shows in the terminal." in answer.text


def test_no_page_tells_the_secret_and_every_answer_forbids_scripts_frames_guesses_and_copies(
    review: Review, caplog: pytest.LogCaptureFixture
) -> None:
    """A page that is saved and sent to others opens nothing; the addresses in it are relative."""
    for path in (*READING, "/nothing"):
        answer = review.get(path)
        assert review.secret[1:] not in answer.text + str(answer.headers)
        assert not re.search(r'(href|src|action|data-(plan|next|count))="/', answer.text)
        assert {"Set-Cookie", "Server"}.isdisjoint(answer.headers)
        policy = answer.headers["Content-Security-Policy"]
        assert {"default-src 'none'", "frame-ancestors 'none'"} <= set(policy.split("; "))
        assert "unsafe" not in policy
        headers = {
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
            "Cross-Origin-Opener-Policy": "same-origin",
        }
        assert {name: answer.headers[name] for name in headers} == headers
    raw(review, "GET /SECRET/ HTTP/9\r\n\r\n")
    assert review.secret[1:] not in caplog.text


def test_the_address_without_its_last_slash_leads_to_the_pages(review: Review) -> None:
    answer = review.request("GET", review.secret)
    assert (answer.status, answer.headers["Location"]) == (303, f"{review.secret}/")


def test_a_link_on_another_page_opens_the_pages_but_not_in_a_frame(review: Review) -> None:
    """Such as the printed address in a terminal that is itself a web page."""
    link = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}
    assert review.request("GET", f"{review.secret}/", Sec_Fetch_Dest="document", **link).status == 200
    assert review.request("GET", f"{review.secret}/", Sec_Fetch_Dest="iframe", **link).status == 403
    answer = review.request(
        "POST", f"{review.secret}/undo", {}, Sec_Fetch_Dest="document", Origin="http://evil.example", **link
    )
    assert answer.status == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site", ""])
def test_a_page_of_another_server_reads_nothing_with_the_secret(site: str, review: Review) -> None:
    assert read(review, review.secret, Sec_Fetch_Site=site) == []
    answer = review.request("GET", review.secret, Sec_Fetch_Site=site)
    assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"


@pytest.mark.parametrize("other", [None, "null", "http://evil.example", "http://localhost:1", "https://127.0.0.1:PORT"])
def test_a_page_of_another_server_changes_nothing_with_the_secret(other: str | None, review: Review) -> None:
    headers = {} if other is None else {"Origin": other.replace("PORT", str(review.port))}
    assert changed(review, review.secret, **headers) == []
    assert changed(review, review.secret, Origin=origin(review), Sec_Fetch_Site="cross-site") == []


@pytest.mark.parametrize("host", ["evil.example", "evil.example:PORT", "127.0.0.1.evil.example", "localhost.", "", "1"])
def test_a_name_server_cannot_lead_a_browser_here(host: str, review: Review) -> None:
    named = host.replace("PORT", str(review.port))
    for method, path in (("GET", "/"), ("GET", f"{review.secret}/"), ("POST", f"{review.secret}/undo")):
        answer = review.request(method, path, Host=named, Origin=f"http://{named}")
        assert (answer.status, answer.headers["Location"]) == (421, None)


@pytest.mark.parametrize("host", ["127.0.0.1:9", "localhost", "localhost:8765", "[::1]:1"])
def test_a_forwarded_port_leads_here(host: str, review: Review) -> None:
    assert review.request("GET", f"{review.secret}/", Host=host).status == 200
    # The answer is "nothing to take back", so the request came through.
    assert review.request("POST", f"{review.secret}/undo", {}, Host=host, Origin=f"http://{host}").status == 409


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8")
def test_no_other_address_of_this_computer_is_served(review: Review) -> None:
    """A server on all of them would answer the network, too."""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", review.port), timeout=60).close()


def test_a_connection_that_comes_while_the_server_ends_is_refused(album: Path) -> None:
    """A connection that is accepted after the event loop has ended would stay open."""
    errors: list[int] = []
    begun = threading.Event()

    async def search(_on_progress: object) -> DuplicateReport:
        begun.set()
        try:
            return await asyncio.Future()
        finally:
            with socket.socket() as late:
                errors.append(late.connect_ex(("127.0.0.1", one.port)))

    with review_of(album, store=album.parent / "store", search=search, waits=False) as one:
        assert begun.wait(60)
    assert errors == [errno.ECONNREFUSED]


def test_what_a_browser_is_started_with_works_once(album: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other users can read the command line of the browser, so the secret is not on it."""
    opened: queue.Queue[str] = queue.Queue()
    monkeypatch.setattr("webbrowser.open", opened.put)
    with review_of(album, store=album.parent / "store", search=of_report(found_in(album)), opens_browser=True) as one:
        shown = opened.get(timeout=60)
        assert one.secret[1:] not in shown
        assert shown.startswith(f"{origin(one)}/?ticket=")
        path = shown.removeprefix(origin(one))
        assert one.request("GET", "/?ticket=").status == 403
        assert one.request("GET", "/?ticket=%ff").status == 403
        assert one.request("POST", path, {}, Origin=origin(one)).status == 403
        first = one.request("GET", path, Sec_Fetch_Site="none")
        assert (first.status, first.headers["Location"]) == (303, f"{one.secret}/")
        assert first.headers["Referrer-Policy"] == "no-referrer"
        again = one.request("GET", path, Sec_Fetch_Site="none")
        assert (again.status, again.headers["Location"]) == (403, None)
        assert "another program on this computer may have used" in again.text


@pytest.mark.parametrize(
    "path",
    [
        "/assets/../access.py", "/assets/%2e%2e/access.py", "/assets/..%2faccess.py", "/assets//etc/passwd",
        "/assets/%00", "/photos/../../etc/passwd/small", "/photos/%2e%2e%2fetc%2fpasswd/small", "/photos/0/small",
        "/photos/0/../../../etc/passwd", "/groups/-1", "/groups/1e0", "/groups/999999999999999999999", "/groups/0",
        "//etc/passwd", "/etc/passwd", "/http://127.0.0.1/etc/passwd", "/history/../../undo", "/?state=x",
        "/?start=-1", "/groups/1?most=1000001", "/?start=%ef%bc%91", "/groups/1/plan?keep=x", "/groups/1/plan?keep=9",
    ],
)  # fmt: skip
def test_no_path_leads_to_a_file(path: str, review: Review) -> None:
    for below, refusals in (("/SECRET", (b"400", b"404")), ("", (b"403",))):
        request = f"GET {below}{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        status, _, _ = raw(review, request).partition(b"\r\n")
        assert status.split()[1] in refusals, status


@pytest.mark.parametrize(
    "request_text",
    [
        "GET /SECRET/ HTTP/1.0\r\n\r\n",
        "GET /SECRET/ HTTP/1.1\r\n\r\n",
        "GET /SECRET/ HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "\x16\x03\x01\x02\r\n\r\n",
    ],
)
def test_odd_requests_are_refused(request_text: str, review: Review) -> None:
    answer = raw(review, request_text)
    assert answer == b"" or answer.split()[1] in (b"400", b"421"), answer
    assert b"jpg" not in answer


@pytest.mark.parametrize("body", ["", "[]", "{", '{"what": 1}', '{"what": "keep", "keep": "0"}', "\xff"])
def test_a_body_that_is_no_choice_is_refused(body: str, review: Review) -> None:
    request = (
        f"POST /SECRET/groups/1/choice HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}"
    )
    assert raw(review, request).split()[1] == b"400"
