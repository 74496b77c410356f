"""How templates of pages are read: everything they show is escaped, and an unknown name is an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clip_client.dedup.reporting.words import TIER_NAMES
from clip_client.dedup.text import at_least, counted, human_bytes, printable

if TYPE_CHECKING:
    import jinja2


def page_environment(loader: jinja2.BaseLoader) -> jinja2.Environment:
    """Return an environment with the filters of every page."""
    import jinja2

    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(
        at_least=at_least,
        bytes=human_bytes,
        printable=printable,
        sentence=lambda text: text[:1].upper() + text[1:],
        tier_name=TIER_NAMES.__getitem__,
    )
    environment.globals.update(counted=counted)
    return environment
