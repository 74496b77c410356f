"""A report as one HTML page that needs nothing but itself: no network, no script, no folder of pictures."""

from __future__ import annotations

import base64
import io
import itertools
import os
from typing import IO, TYPE_CHECKING, Final

from clip_client.dedup.features.preview import preview
from clip_client.dedup.text import at_least, counted, human_bytes, printable, skipped_files
from clip_client.dedup.types import DuplicateReport, FailedFile, is_random

if TYPE_CHECKING:
    from clip_client.dedup.types import OnProgress

_THUMBNAIL_SIDE: Final = 320
"""Pixels; about 15 kB of JPEG each."""


def write_page(report: DuplicateReport, file: IO[bytes], *, on_progress: OnProgress | None = None) -> None:
    """Write the page for ``report`` into ``file``, in UTF-8.

    Thumbnails are made one at a time while the page is written, so memory does not grow with the report. A photo that
    can no longer be opened gets a note in place of its picture. ``on_progress(what, done, total)`` counts pictures.
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

    def thumbnail(path: str) -> str | None:
        if on_progress is not None:
            on_progress("drawing", next(drawn), total)
        return _data_uri(path)

    pieces = environment.get_template("report.html.j2").generate(
        report=report,
        is_random=is_random(report.model),
        copies=total - len(report.groups),
        counted=counted,
        skipped_files=skipped_files,
        thumbnail=thumbnail,
    )
    file.writelines(piece.encode() for piece in pieces)


def _data_uri(path: str) -> str | None:
    seen = preview(path, _THUMBNAIL_SIDE)
    if isinstance(seen, FailedFile):
        return None
    jpeg = io.BytesIO()
    seen.image.save(jpeg, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(jpeg.getvalue()).decode("ascii")
