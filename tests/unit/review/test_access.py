"""What strangers get: nothing. Each test sends what a hostile page, program or name server could send."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
from starlette.routing import Mount, Route

from clip_client.dedup import Store
from clip_client.review.app import review_app
from clip_client.review.state.applying import Worker
from tests.fixtures.reviews import Review, of_report, review_of
from tests.unit.review.albums import found_in, names, states

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

READING = (
    "/", "/rows", "/groups/1", "/groups/1/plan", "/photos/0/small", "/state", "/plan", "/rules", "/rules/count",
    "/history", "/assets/review.css",
)  # fmt: skip
WRITING: tuple[tuple[str, dict[str, object]], ...] = (
    ("/groups/1/choice", {"what": "keep", "keep": 0, "move": [1]}),
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
    """Send bytes as they are, with the cookie, and return the whole answer."""
    with socket.create_connection(("127.0.0.1", review.port), timeout=60) as connection:
        connection.sendall(request.replace("COOKIE", review.cookie).encode("latin-1"))
        answer = b""
        while piece := connection.recv(65_536):
            answer += piece
    return answer


def origin(review: Review) -> str:
    return f"http://127.0.0.1:{review.port}"


def test_every_address_is_tested_here(review: Review) -> None:
    tested = {"GET": READING, "POST": tuple(path for path, _ in WRITING)}
    for route in review_app(review.session, Worker(review.session)).routes:
        assert isinstance(route, Route | Mount)
        method = "POST" if isinstance(route, Route) and "POST" in (route.methods or ()) else "GET"
        assert any(route.path_regex.match(path) for path in tested[method]), route.path


@pytest.mark.parametrize("cookie", ["", "clip-review=1", "clip-review-PORT=", "clip-review-PORT=1", "\xff"])
def test_without_the_cookie_nothing_is_read_or_changed(cookie: str, review: Review) -> None:
    headers = {"Cookie": cookie.replace("PORT", str(review.port))}
    for path in READING:
        answer = review.request("GET", path, **headers)
        assert (path, answer.status, b"jpg" in answer.body) == (path, 403, False)
    for path, body in WRITING:
        answer = review.request("POST", path, body, Origin=origin(review), Sec_Fetch_Site="same-origin", **headers)
        assert (path, answer.status) == (path, 403)


@pytest.mark.parametrize("site", ["cross-site", "same-site", ""])
def test_a_page_of_another_server_reads_nothing_with_the_cookie_of_the_browser(site: str, review: Review) -> None:
    for path in READING:
        answer = review.request("GET", path, Cookie=review.cookie, Sec_Fetch_Site=site)
        assert (path, answer.status) == (path, 403)
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"


@pytest.mark.parametrize("other", [None, "null", "http://evil.example", "http://localhost:1", "https://127.0.0.1:PORT"])
def test_a_page_of_another_server_changes_nothing_with_the_cookie_of_the_browser(
    other: str | None, review: Review
) -> None:
    headers = {} if other is None else {"Origin": other.replace("PORT", str(review.port))}
    for path, body in WRITING:
        answer = review.request("POST", path, body, Cookie=review.cookie, **headers)
        assert (path, answer.status) == (path, 403)
        answer = review.request(
            "POST", path, body, Cookie=review.cookie, Origin=origin(review), Sec_Fetch_Site="cross-site"
        )
        assert (path, answer.status) == (path, 403)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:PORT", "127.0.0.1.evil.example", "localhost.", "", "1"])
def test_a_name_server_cannot_lead_a_browser_here(host: str, review: Review) -> None:
    named = host.replace("PORT", str(review.port))
    for method, path in (("GET", "/"), ("GET", f"/?{review.address.partition('?')[2]}"), ("POST", "/undo")):
        answer = review.request(method, path, Host=named, Origin=f"http://{named}", Cookie=review.cookie)
        assert (answer.status, answer.headers["Set-Cookie"]) == (421, None)


@pytest.mark.parametrize("host", ["127.0.0.1:9", "localhost", "localhost:8765", "[::1]:1"])
def test_a_forwarded_port_leads_here(host: str, review: Review) -> None:
    assert review.request("GET", "/", Host=host, Cookie=review.cookie).status == 200
    # The answer is "nothing to take back", so the request came through.
    assert review.request("POST", "/undo", {}, Host=host, Origin=f"http://{host}", Cookie=review.cookie).status == 409


def test_a_token_works_once_and_the_terminal_shows_the_next_one(review: Review) -> None:
    path = review.address.partition(str(review.port))[2]
    used = review.request("GET", path)
    assert (used.status, used.headers["Set-Cookie"]) == (403, None)
    assert review.request("GET", path, Cookie=review.cookie).status == 200  # opened again in the same browser
    assert review.request("GET", "/?token=").status == 403
    assert review.request("GET", "/?token=%ff").status == 403
    following = review.addresses.get(timeout=60)
    answer = review.request("GET", following.partition(str(review.port))[2], Sec_Fetch_Site="cross-site")
    assert answer.status == 200
    attributes = answer.headers["Set-Cookie"].lower().split("; ")[1:]
    assert {"httponly", "samesite=strict"} <= set(attributes)
    assert following not in answer.text
    assert review.request("GET", following.partition(str(review.port))[2]).status == 403
    review.addresses.get(timeout=60)


@pytest.mark.parametrize(
    "path",
    [
        "/assets/../access.py", "/assets/%2e%2e/access.py", "/assets/..%2faccess.py", "/assets//etc/passwd",
        "/assets/%00", "/photos/../../etc/passwd/small", "/photos/%2e%2e%2fetc%2fpasswd/small", "/photos/0/small",
        "/photos/0/../../../etc/passwd", "/groups/-1", "/groups/1e0", "/groups/999999999999999999999", "/groups/0",
        "//etc/passwd", "/etc/passwd", "http://127.0.0.1/etc/passwd", "/history/../../undo", "*", "/rows?state=x",
        "/rows?start=-1", "/rows?most=201", "/rows?start=%ef%bc%91", "/groups/1/plan?keep=x", "/groups/1/plan?keep=9",
    ],
)  # fmt: skip
def test_no_path_leads_to_a_file(path: str, review: Review) -> None:
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nCookie: COOKIE\r\nConnection: close\r\n\r\n"
    status, _, _ = raw(review, request).partition(b"\r\n")
    assert status.split()[1] in (b"400", b"404"), status


@pytest.mark.parametrize(
    "request_text",
    [
        "GET / HTTP/1.0\r\nCookie: COOKIE\r\n\r\n",
        "GET / HTTP/1.1\r\nCookie: COOKIE\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nCookie: COOKIE\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "\x16\x03\x01\x02\r\n\r\n",
    ],
)
def test_odd_requests_are_refused(request_text: str, review: Review) -> None:
    answer = raw(review, request_text)
    assert answer == b"" or answer.split()[1] in (b"400", b"421"), answer
    assert b"jpg" not in answer


def test_every_answer_forbids_scripts_frames_guesses_and_copies(review: Review) -> None:
    for path in (*READING, "/nothing", "/?token=1"):
        answer = review.get(path)
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["Cache-Control"] == "no-store"
        assert "Server" not in answer.headers


@pytest.mark.parametrize("body", ["", "[]", "{", '{"what": 1}', '{"what": "keep", "keep": "0"}', "\xff"])
def test_a_body_that_is_no_choice_is_refused(body: str, review: Review) -> None:
    request = (
        f"POST /groups/1/choice HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\nCookie: COOKIE\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}"
    )
    assert raw(review, request).split()[1] == b"400"
