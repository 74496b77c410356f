"""The texts and offers of the page; tests/browser shows that it works."""

import base64
import hashlib
import io
import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final

import pytest
from PIL import Image

from clip_client.dedup import DuplicateGroup, FailedFile, Member
from clip_client.dedup.features.preview import thumbnail
from clip_client.dedup.pages.html import apply_command, shell_word, write_page
from clip_client.dedup.types import EXACT, SAFE_TIERS, SAME_PIXELS, SIMILAR
from tests.fixtures import members
from tests.fixtures.members import group

HOSTILE: Final = "<img src=x><script>&\"'.jpg"
NAMES: Final = (b"plain.jpg", b"two words $HOME `x` 'q' \"d\" \\.jpg", b"caf\xe9.jpg", b"a\nb\x1b[2J.jpg",
                "gpj\u202e.exe".encode(), "\U0001f468\u200d\U0001f469.jpg".encode(), b"-rf", b"~", b"!!")  # fmt: skip


@pytest.fixture(autouse=True)
def _command_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")


def member(path: Path | str, size_bytes: int = 1000, **more: Any) -> Member:
    sha256 = hashlib.sha256(os.fsencode(path)).hexdigest()
    given = {"width": 64, "height": 48, "size_bytes": size_bytes, "sha256": sha256, "tier": SAME_PIXELS, **more}
    return members.member(path, similarity=0.99, **given)


def page(*groups: DuplicateGroup, offered: Mapping[str, Any] | None = None, **of_report: Any) -> str:
    file = io.BytesIO()
    write_page(members.report(*groups, **of_report), file, thumbnail=thumbnail, **(offered or {}))
    return file.getvalue().decode()


class Tags(HTMLParser):
    """Collects the tags and their attributes; fails on tags that do not close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in {"meta", "img", "input"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", NAMES)
def test_a_shell_reads_a_quoted_path_as_it_was(name: bytes) -> None:
    word = shell_word(os.fsdecode(name))
    read = subprocess.run(["bash", "-c", f"printf %s {word}"], capture_output=True, check=True).stdout
    assert read == name
    assert "\n" not in word


PAIR = group(member("/p/a"), member("/p/b"))


def test_the_page_offers_the_command_that_wrote_it_with_apply_unless_that_has_moved_copies() -> None:
    apply = apply_command(["dedup", "my photos", "--dry-run", "-q", "--report", "r.html", "--verbose"])
    assert shlex.split(apply) == ["clip-client", "dedup", "my photos", "--report", "r.html", "--apply"]
    after_dashes = apply_command(["dedup", "--quiet", "--", "-v", "--apply"])
    assert shlex.split(after_dashes) == ["clip-client", "dedup", "--apply", "--", "-v", "--apply"]
    assert "clip-client dedup &#39;my photos&#39; --report r.html --apply" in page(PAIR, offered={"apply": apply})
    moved = apply_command(["dedup", "photos", "--apply"])
    text = page(PAIR, offered={"apply": moved})
    assert (moved, "Move the certain copies" in text) == ("", False)
    assert "<code>clip-client undo</code>" in text


def test_the_page_does_not_promise_more_than_the_command_holds() -> None:
    for tiers, is_certain in (SAFE_TIERS, True), ((EXACT,), False):
        text = page(PAIR, offered={"apply": "clip-client dedup photos --apply", "tiers": tiers})
        assert ("Only copies with the same bytes, the same pixels, or" in text) == is_certain
        assert ("Move the certain copies" in text) == is_certain
        assert ("It moves only with --act-on same-pixels." in text) != is_certain
        assert text.count(">Moves</span>") == is_certain


@pytest.mark.parametrize(("folder", "shown"), [("home/anna", "~"), ("home/anna/a", "~/a"), ("home/anna2", None)])
def test_the_page_says_where_the_command_must_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, shown: str | None
) -> None:
    (tmp_path / folder).mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home/anna"))
    monkeypatch.chdir(tmp_path / folder)
    text = page(PAIR, offered={"apply": "clip-client dedup photos --apply"})
    assert f"Run it in <bdi>{shown or tmp_path / folder}</bdi>" in text


def test_every_command_names_the_store_that_the_search_used(tmp_path: Path) -> None:
    text = unescape(page(PAIR, offered={"store": tmp_path / "my store"}))
    named = shlex.join(["--store", str(tmp_path / "my store")])
    assert f"clip-client undo {named}" in text
    assert f"clip-client decide {named} different" in text


def test_links_and_commands_lead_to_files_whose_names_are_no_text_by_their_whole_paths() -> None:
    text = page(group(member("a.jpg"), member("/p/caf\udce9 #1?.jpg")))
    found = re.search(r'<code class="decide">(.*?)</code>', text)
    assert found
    command = unescape(re.sub(r"<[^>]*>", "", found[1]))
    assert command == f"clip-client decide different {shlex.quote(os.path.abspath('a.jpg'))} $'/p/caf\\xe9 #1?.jpg'"
    assert 'href="file:///p/caf%E9%20%231%3F.jpg"' in text


def test_files_with_the_same_bytes_are_not_offered_as_different() -> None:
    one, other = member("/p/a"), member("/p/b")
    same = member("/p/a 2", sha256=one.sha256, tier=EXACT)
    for shown, is_offered in ((one, same), False), ((one, same, other), True):
        text = page(group(*shown))
        assert ("clip-client decide different" in text) == is_offered
        assert ("what if they are different" in text) == is_offered


def test_folders_are_shown_from_the_one_that_has_all_photos() -> None:
    def shown(*paths: str) -> list[str]:
        return re.findall(r"/\">([^<]*)</a></p><p class=\"facts", page(group(*map(member, paths))))

    assert shown("/home/anna/Pictures/2019/a", "/home/anna/Pictures/b") == ["Pictures/2019/", "Pictures/"]
    assert shown("/home/anna/a", "/srv/b") == ["/home/anna/", "/srv/"]
    assert shown("/photos/a", "/photos/b") == ["/photos/", "/photos/"]
    assert shown("a", "/photos/b") == ["", "/photos/"]


def test_the_policy_allows_this_style_and_script_and_nothing_else() -> None:
    text = page(group(member("/p/a"), member("/p/b"), tier=EXACT))
    policy = unescape(re.findall(r'Content-Security-Policy" content="(.*?)"', text)[0])
    for tag in ("style", "script"):
        (body,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; img-src 'self' data: file:; ")
    assert not re.search(r"<[^>]+\s(style|on\w+)=", text)


def test_the_page_shows_each_photo_and_needs_nothing_else(tmp_path: Path) -> None:
    first, second = tmp_path / "a.jpg", tmp_path / HOSTILE
    for path in (first, second):
        Image.linear_gradient("L").save(path, "JPEG")
    gone = member(tmp_path / "gone.jpg", 1_400_000)
    failure = FailedFile(
        path=str(tmp_path / os.fsdecode(b"caf\xe9.jpg")), code="EMPTY", message="It is <b>no</b> image."
    )
    shown = group(member(first), replace(member(second, tier=SIMILAR), similarity=0.993), gone)
    text = page(shown, failed=(failure,))
    tags = Tags(text)
    sources = [attributes["src"] or "" for tag, attributes in tags.seen if tag == "img"]
    assert [source.partition(",")[0] for source in sources] == ["data:image/jpeg;base64"] * 2
    assert {tag for tag, _ in tags.seen}.isdisjoint({"link", "iframe"})
    links = {attributes["href"] or "" for tag, attributes in tags.seen if tag == "a"}
    photos = {path.as_uri() for path in (first, second, tmp_path / "gone.jpg")}
    assert links == {*photos, f"{tmp_path.as_uri()}/", "#not-compared"}
    assert not re.search(r"url\(|@import", text)
    assert text.count('<span class="keep">Keep</span>') == text.count("can no longer be opened") == 1
    for said in ("similarity 0.9930", "64 × 48", "1.4 MB", "caf\\xe9.jpg", members.MODEL):
        assert said in text
    assert "random" not in text


def test_the_page_warns_where_the_weights_are_random() -> None:
    text = page(model="ViT-B-32/random:0@1a2b3c4d")
    for said in ("The weights of this model are random.", "random:0@1a2b3c4d", "No duplicates were found"):
        assert said in text
