"""Options and commands that former versions had, with their replacements: one table, until the first release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Final

GONE: Final[Mapping[str, str]] = {
    "clip-client index": "read the vectors with load_vectors, and send them to Qdrant, as docs/search.md shows",
    "clip-client search qdrant://": "search in Qdrant from Python, as docs/search.md shows",
    "clip-client --in qdrant://": "search in Qdrant from Python, as docs/search.md shows",
    "clip-client --in qdrants://": "search in Qdrant from Python, as docs/search.md shows",
    "clip-client --strict": "cut the list with --top N",
    "clip-client tune": "set the similarity from which photos are shown with clip-client dedup --threshold",
    "clip-client dedup --hard-link": "move copies to the quarantine with --apply, and free their space with "
    "clip-client purge",
    "clip-client embed --shard-rows": "leave it out; each file holds 10,000 photos",
    "clip-client --hash-bits": "leave it out; perceptual hashes may differ in 3 bits",
    "clip-client --verify": "leave it out; you may stop a slow search, and the same command continues it",
    "clip-client --keep bytes": "leave it out; the default rules keep the photo with the most pixels",
    "clip-client --keep smallest": "leave it out; the default rules keep the photo with the most pixels",
    "clip-gateway --max-items": "leave it out, and send at most 2,048 items in one request",
    "clip-gateway --max-held-bytes": "leave it out; a proxy in front limits the requests at a time, as docs/gateway.md "
    "says",
    "clip-gateway --client-token-file": "name the file with the token for Triton with --token-file, and the file with "
    "the token that callers must send with --callers-token-file",
    "clip-gateway --fetch-urls": "download each image yourself, and send its bytes; the error for a URL shows how",
    "clip-gateway --immich-upstream": "give Immich the address of its own machine-learning service again",
    "clip-client profile": "measure a server and its parts with python -m benchmarks ensemble, as docs/performance.md "
    "says",
    "clip-serve --tensorrt": "write TensorRT into a repository with clip-export --tensorrt 11, or 10 for Triton images "
    "before 26.06, and serve that",
    "clip-serve --tensorrt-cache": "name the folder with clip-export --tensorrt 11 --tensorrt-cache DIR",
}
"""Removed words of a command line -> the rest of the sentence ``WORDS is gone: ...``.

The words are the command, perhaps a subcommand, perhaps an option with or without a value. An option without a
subcommand is gone from all. A value that ends in ``://`` stands for all URLs that begin with it."""


def refusal(program: str, words: Sequence[str], gone: Mapping[str, str] = GONE) -> str:
    """Return the sentence about the first removed word in a command line; empty if there is none."""
    # Words after -- are files, or arguments of another program.
    before = [*takewhile(lambda word: word != "--", words)]
    options = [part for word in before for part in (word.split("=", 1) if word.startswith("--") else [word])]
    for key, instead in gone.items():
        command, *parts = key.split()
        if command == program and _contains(options, parts):
            return f"{key} is gone: {instead}"
    return ""


def _contains(words: Sequence[str], parts: Sequence[str]) -> bool:
    if parts and not parts[0].startswith("-"):
        if words[:1] != [parts[0]]:
            return False
        parts = parts[1:]
    places = range(len(words) - len(parts) + 1)
    return any(all(map(_is, words[place:], parts)) for place in places)


def _is(word: str, part: str) -> bool:
    return word.startswith(part) if part.endswith("://") else word == part
