"""Downloads of weights and tokenizers from the Hugging Face hub, into the cache that open_clip also uses."""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from preprocess_ensemble.errors import first_line, pip_install
from preprocess_ensemble.export.model_source import ExportError

_TIMEOUT_S: Final = 10.0
_ATTEMPTS: Final = 6
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


def do_not_wait(report: Callable[[str], None]) -> None:
    """If the hub cannot be reached, make huggingface_hub, which is not yet imported, use only its cache.

    Otherwise it tries each file six times with growing pauses, most of a minute in all, before it fails.
    """
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        urllib.request.urlopen(urllib.request.Request(endpoint, method="HEAD"), timeout=_TIMEOUT_S).close()
    except urllib.error.HTTPError:
        return  # the hub answers
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLError):
            return  # a server answers; huggingface_hub may have other certificates
        report(f"{endpoint} does not answer ({reason}); looking for the weights in the local cache only")
        os.environ["HF_HUB_OFFLINE"] = "1"


def download_weights(model: str, tag: str, repository: str, file: str) -> Path:
    """Return a hub's file, cached or downloaded; an interrupted download is continued. Raises ExportError."""
    try:
        import huggingface_hub
    except ModuleNotFoundError:
        raise ExportError(
            f"Downloading weights needs huggingface_hub: {pip_install('local')}, or use a checkpoint file: "
            f"clip-export --model {model} --pretrained FILE.safetensors"
        ) from None
    try:
        if not isinstance(huggingface_hub.try_to_load_from_cache(repository, file), str):
            with suppress(OSError, http.client.HTTPException):  # huggingface_hub may be able to, and says what is wrong
                _fetch(repository, file)
        path = Path(huggingface_hub.hf_hub_download(repository, file))
    except Exception as error:  # errors of huggingface_hub, of its HTTP library or of the file system
        raise weights_unavailable(model, tag, tried=repository, error=error) from error
    cached = path.resolve()
    if _SHA256.fullmatch(cached.name):
        with cached.open("rb") as content:
            found = hashlib.file_digest(content, "sha256").hexdigest()
        if found != cached.name:
            cached.unlink()
            raise ExportError(
                f"The downloaded weights {path.name} are damaged (SHA-256 {found[:8]} instead of {cached.name[:8]}) "
                "and have been deleted; run the command again."
            )
    return path


def _fetch(repository: str, file: str) -> None:
    """Download a file into its place in the hub's cache, and continue what an earlier process has left of it.

    Since huggingface_hub 1.18, ``hf_hub_download`` starts from the beginning after a kill. The partial file is named
    after the SHA-256 of the whole file, so it always belongs to the same file. Raises ``OSError`` or ``HTTPException``.
    """
    from filelock import FileLock
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]  # documented, but loaded lazily

    about = get_hf_file_metadata(hf_hub_url(repository, file))
    if about.size is None or about.etag is None or not _SHA256.fullmatch(about.etag):
        return
    # The layout that huggingface_hub documents in "Manage the cache".
    blobs = Path(constants.HF_HUB_CACHE, f"models--{repository.replace('/', '--')}", "blobs")
    blobs.mkdir(parents=True, exist_ok=True)
    partial = blobs / f"{about.etag}.partial"
    with FileLock(blobs / f"{about.etag}.lock"), partial.open("ab") as target:
        for _ in range(_ATTEMPTS):
            done = target.seek(0, os.SEEK_END)
            if done == about.size:
                partial.rename(blobs / about.etag)
                return
            # Large files lie on other servers, whose addresses are signed, so this sends no token.
            request = urllib.request.Request(about.location, headers={"Range": f"bytes={done}-"})
            with suppress(ConnectionError, TimeoutError), urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                if answer.status != http.HTTPStatus.PARTIAL_CONTENT or done > about.size:
                    done = target.truncate(0)
                bar = tqdm(desc=file, initial=done, total=about.size, unit="B", unit_scale=True)  # type: ignore[no-untyped-call]
                with bar:
                    while chunk := answer.read(2**20):
                        bar.update(target.write(chunk))


def download_folder(repository: str, needed: str, optional: str) -> Path:
    """Return the folder with ``needed`` and, if it exists, ``optional``. Raises the errors of huggingface_hub."""
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    # Get the needed file first: without the hub, each file takes half a minute to fail.
    folder = Path(huggingface_hub.hf_hub_download(repository, needed)).parent
    try:
        huggingface_hub.hf_hub_download(repository, optional)
    except LocalEntryNotFoundError:  # the hub may have it
        raise
    except EntryNotFoundError:
        pass
    return folder


def weights_unavailable(model: str, tag: str, *, tried: str, error: BaseException) -> ExportError:
    return ExportError(
        f"The weights {tag!r} of {model} are not in the cache and cannot be downloaded.\n"
        f"  tried: {tried}\n"
        f"  got:   {failure(error)}\n"
        "You can use:\n"
        f"  a checkpoint file:   clip-export --model {model} --pretrained FILE.safetensors\n"
        f"  a mirror of the hub: HF_ENDPOINT=https://MIRROR clip-export --model {model} --pretrained {tag}\n"
        f"  untrained weights:   clip-export --model {model} --pretrained random "
        "(enough to try everything out, not to judge similarity)"
    )


def failure(error: BaseException) -> str:
    from huggingface_hub.errors import OfflineModeIsEnabled

    root = error
    while deeper := root.__cause__ or root.__context__:
        root = deeper
    if isinstance(root, OfflineModeIsEnabled):
        # Replace its text, which asks the user to unset a variable that clip-export may have set itself.
        return "only the cache was searched, because the hub does not answer or HF_HUB_OFFLINE is set"
    return first_line(root)
