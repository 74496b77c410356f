"""Makes the text of a sidecar that saves the facts that only a copy of a photo has."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Sequence

from clip_client.dedup.metadata.facts import Facts, Position, Value, not_held
from clip_client.dedup.metadata.names import LISTS, SAVED
from clip_client.dedup.metadata.xmp import write_xmp


def merged(sidecar: Facts, copy: Facts, kept: Sequence[Facts]) -> Facts:
    """Add to the facts of ``sidecar`` those of ``copy`` that none of ``kept``, a photo and its sidecars, has.

    A list gets all values, even those of the kept photo, because programs that find a list in a sidecar ignore that of
    the photo. A field with a single value gets the value that covers all others, if there is one.
    """
    said = dict(sidecar.said)
    for name, lost in copy.lost_in(kept).items():
        known = lost.union(*(one.said.get(name, ()) for one in (sidecar, *kept))) - {None}
        if name in LISTS:
            said[name] = known
        elif name in SAVED and (whole := [value for value in known if not not_held(known, {value})]):
            said[name] = {min(whole, key=str)}
    # A ChainMap begins with the keys of its last map: those of the kept photo come first.
    return Facts(said=said, texts=dict(ChainMap(copy.texts, sidecar.texts, *(one.texts for one in reversed(kept)))))


def sidecar_text(facts: Facts) -> bytes:
    properties: dict[str, str | list[str]] = {}
    ranks = {key: rank for rank, key in enumerate(facts.texts)}
    for name, values in facts.said.items():
        # The first creator is the main one, so lists are in the order of the files.
        ordered = sorted(values, key=lambda value: (ranks.get((name, str(value)), len(ranks)), str(value)))
        texts = [facts.texts.get((name, text), text) for value in ordered for text in _texts(value)]
        if name in LISTS:
            properties[SAVED[name][0]] = texts
        else:  # one text for each property, or the same one for all
            properties |= dict(zip(SAVED[name], texts * len(SAVED[name]), strict=False))
    return write_xmp(properties)


def _texts(value: Value) -> Iterable[str]:
    if isinstance(value, Position):
        return _as_xmp(value.latitude, "NS"), _as_xmp(value.longitude, "EW"), "2.3.0.0"  # the version of the GPS tags
    return (value if isinstance(value, str) else " ".join(f"{number:.15g}" for number in value or ()),)


def _as_xmp(degrees: float, directions: str) -> str:
    whole, rest = divmod(abs(degrees), 1)
    return f"{int(whole)},{rest * 60:.6f}{directions[degrees < 0]}"
