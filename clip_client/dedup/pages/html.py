"""Write a report as an HTML page that works offline; a small report is one file."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from clip_client._files import printable
from clip_client.dedup.pages.previews import draw_previews, previews_folder
from clip_client.dedup.pages.words import TIER_NAMES, found_in_words, in_words, region_on, to_free_in_words
from clip_client.dedup.report import DuplicateReport, count_verdicts
from clip_client.dedup.text import at_least, counted, date_and_time, folder_above, human_bytes, skipped_files
from clip_client.dedup.types import NO_MODEL, SAFE_TIERS, TIERS, OnProgress, is_random

if TYPE_CHECKING:
    import jinja2

_ONLY_FOR_THE_SEARCH: Final = frozenset({"--dry-run", "--quiet", "-q", "--verbose", "-v"})
_SHOWN_BY_BROWSERS: Final = frozenset({".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".avif"})

_BETWEEN_TAGS: Final = re.compile(r"(?<=[>}])\n(?=<|{[%{])")
"""Line breaks that only make templates readable. In a page of 20,000 photos they would be a million nodes."""


def page_environment(loader: jinja2.BaseLoader, above: str = "") -> jinja2.Environment:
    """Return an environment that escapes all values, and shows paths without ``above``, the folder with all of them."""
    import jinja2

    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(
        at_least=at_least,
        below=lambda path: printable(path.removeprefix(above)),
        bytes=human_bytes,
        file_name=lambda path: printable(os.path.basename(path)),
        folder=lambda path: printable(os.path.join(os.path.dirname(path), "").removeprefix(above)),
        is_random=is_random,
        date_and_time=date_and_time,
        printable=printable,
        sentence=lambda text: text[:1].upper() + text[1:],
        tier_name=TIER_NAMES.__getitem__,
    )
    shared = {"counted": counted, "in_words": in_words, "region_on": region_on, "to_free_in_words": to_free_in_words}
    environment.globals.update(shared)
    return environment


def write_page(
    report: DuplicateReport,
    file: IO[bytes],
    *,
    thumbnail: Callable[[str, int], bytes | None],
    page: Path | None = None,
    apply: str = "",
    tiers: Collection[str] = SAFE_TIERS,
    is_applied: bool = False,
    store: Path | None = None,
    on_progress: OnProgress | None = None,
) -> None:
    """Write the page for ``report`` to ``file``, in UTF-8.

    Several threads call ``thumbnail(path, side)``, which returns a JPEG or None. More than 100 different pictures are
    written into a folder beside ``page``, the path of ``file``; without ``page``, all are in the page. The command
    ``apply`` must run in this folder, because its paths may be relative; it is empty if nothing is left to move. Raises
    OSError if the folder cannot be written.
    """
    of_store = () if store is None else ("--store", os.path.abspath(store))
    found = [group.moving_tier for group in report.groups]
    moving_bytes = sum(photo.spare_bytes for group in report.groups for photo in group.moving(tiers))
    headline = found_in_words(count_verdicts(report.groups), moving_bytes, tiers, is_applied=is_applied)
    environment = report_environment(member.photo.label for group in report.groups for member in group.members)
    pieces = environment.get_template("report.html.j2").generate(
        report=report,
        groups=report.groups_by_space,
        headline=headline if found else "no duplicates were found" if report.compared else "no photo was compared",
        tiers={tier: found.count(tier) for tier in TIERS if tier in found},
        no_model=NO_MODEL,
        previews=draw_previews(report, thumbnail, page and previews_folder(page), on_progress),
        apply=apply,
        apply_in=_from_home(os.getcwd()),
        undo=_command("undo", *of_store),
        decide=_command("decide", *of_store, "different"),
        moving_tiers=tiers,
        safe_tiers=SAFE_TIERS,
        skipped_files=skipped_files,
        unfolded=12,
    )
    file.writelines(piece.encode() for piece in pieces)


def apply_command(words: Sequence[str]) -> str:
    end = words.index("--") if "--" in words else len(words)  # after it come paths only
    kept = [word for word in words[:end] if word not in _ONLY_FOR_THE_SEARCH]
    return "" if "--apply" in words[:end] else _command(*kept, "--apply", *words[end:])


def _command(*words: str) -> str:
    program = ("clip-client",) if shutil.which("clip-client") else (sys.executable, "-m", "clip_client")
    return " ".join(map(shell_word, (*program, *words)))


def _from_home(path: str) -> str:
    home, separated = os.path.expanduser("~").rstrip(os.sep), os.path.join(path, "")
    return "~" + path[len(home) :] if home and separated.startswith(home + os.sep) else path


def shell_word(path: str) -> str:
    """Quote a path for a POSIX shell; characters that cannot be shown become escapes."""
    if printable(path) == path:
        return shlex.quote(path)
    escaped = (chr(byte) if 32 <= byte < 127 and byte not in b"\\'" else f"\\x{byte:02x}" for byte in os.fsencode(path))
    return f"$'{''.join(escaped)}'"


def report_environment(photos: Iterable[str]) -> jinja2.Environment:
    import jinja2

    loader = jinja2.FunctionLoader(lambda name: _BETWEEN_TAGS.sub("", _asset(name)))
    environment = page_environment(loader, folder_above([os.path.dirname(path) for path in photos]))
    environment.filters.update(
        browser_shows=lambda path: os.path.splitext(path)[1].lower() in _SHOWN_BY_BROWSERS,
        folder_url=lambda path: _url(os.path.dirname(path)) + "/",
        shell_word=lambda path: shell_word(os.path.abspath(path)),
        url=_url,
    )
    style, script = _asset("style.css"), _asset("viewer.js") + _asset("page.js")
    digests = (hashlib.sha256(text.encode()).digest() for text in (style, script))
    of_style, of_script = (f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    allowed = f"img-src 'self' data: file:; style-src {of_style}; script-src {of_script}"
    policy = f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"
    environment.globals.update(style=style, script=script, policy=policy)
    return environment


def _url(path: str) -> str:
    # Bytes that are not UTF-8 are escaped, too.
    return Path(os.path.abspath(path)).as_uri()


def _asset(name: str) -> str:
    folder = "templates" if name.endswith(".j2") else "assets"
    return (files("clip_client.dedup.pages") / folder / name).read_text("utf-8")
