"""Write a report as one self-contained HTML page: no network, no script, no image files."""

from __future__ import annotations

import base64
import itertools
import os
from typing import IO, TYPE_CHECKING, Final

from clip_client.dedup.text import at_least, counted, human_bytes, printable, skipped_files
from clip_client.dedup.types import DuplicateReport, is_random

if TYPE_CHECKING:
    from collections.abc import Callable

    from clip_client.dedup.types import OnProgress

_THUMBNAIL_SIDE: Final = 320
"""Pixels; about 15 kB of JPEG each."""


def write_page(
    report: DuplicateReport,
    file: IO[bytes],
    *,
    thumbnail: Callable[[str, int], bytes | None],
    on_progress: OnProgress | None = None,
) -> None:
    """Write the page for ``report`` to ``file``, in UTF-8.

    ``thumbnail(path, side)`` returns a JPEG no larger than ``side`` pixels, or None for a photo that can no longer be
    opened, which gets a note instead. It is called while the page is written, so memory does not grow with
    the report. ``on_progress(what, done, total)`` counts pictures.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("clip_client.dedup.reporting"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        at_least=at_least,
        bytes=human_bytes,
        printable=printable,
        file_name=lambda path: printable(os.path.basename(path)),
        folder=lambda path: printable(os.path.join(os.path.dirname(path), "")),
    )
    total = sum(len(group.members) for group in report.groups)
    drawn = itertools.count(1)

    def data_uri(path: str) -> str | None:
        if on_progress is not None:
            on_progress("drawing", next(drawn), total)
        jpeg = thumbnail(path, _THUMBNAIL_SIDE)
        return None if jpeg is None else "data:image/jpeg;base64," + base64.b64encode(jpeg).decode("ascii")

    pieces = environment.get_template("report.html.j2").generate(
        report=report,
        is_random=is_random(report.model),
        copies=total - len(report.groups),
        counted=counted,
        skipped_files=skipped_files,
        thumbnail=data_uri,
    )
    file.writelines(piece.encode() for piece in pieces)
