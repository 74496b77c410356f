"""Downloads pretrained weights from the Hugging Face hub, into the cache that open_clip uses as well."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Final

from preprocess_ensemble.errors import first_line
from preprocess_ensemble.export.model_source import ExportError, WeightsUnavailable

_BLOCK_BYTES: Final = 1 << 20
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


def download(model: str, tag: str, repository: str, file: str) -> Path:
    """Return the path of ``file`` of the hub's ``repository``, from the cache or downloaded with a progress bar.

    An interrupted download is continued. Raises WeightsUnavailable, or ExportError if the file is damaged.
    """
    try:
        import huggingface_hub
    except ModuleNotFoundError:
        raise ExportError(
            "Downloading weights needs huggingface_hub: pip install 'clip-triton[local]', or use a checkpoint file: "
            f"clip-export --model {model} --pretrained FILE.safetensors"
        ) from None
    try:
        path = Path(huggingface_hub.hf_hub_download(repository, file))
    except Exception as error:  # its own errors, those of its HTTP library, or of the file system
        root: BaseException = error
        while deeper := root.__cause__ or root.__context__:
            root = deeper
        raise WeightsUnavailable(model, tag, tried=repository, got=first_line(root)) from error
    _verify(path)
    return path


def _verify(path: Path) -> None:
    """Compare the file with its SHA-256, which is the name of the cached file that ``path`` links to."""
    cached = path.resolve()
    if not _SHA256.fullmatch(cached.name):
        return
    digest = hashlib.sha256()
    with cached.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    found = digest.hexdigest()
    if found != cached.name:
        cached.unlink()
        raise ExportError(
            f"The downloaded weights {path.name} are damaged (SHA-256 {found[:8]} instead of {cached.name[:8]}) and "
            "have been deleted; run the command again."
        )
