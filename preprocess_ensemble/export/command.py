"""The command ``clip-export``: export an open_clip model into a Triton model repository."""

from __future__ import annotations

import argparse
import logging
import os
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from preprocess_ensemble.errors import ReportedError

_HUB: Final = "https://huggingface.co"
_HUB_TIMEOUT_S: Final = 10.0
_EPILOG: Final = """\
examples:
  clip-export                                    ViT-B-32 with the LAION-2B weights, into triton_models
  clip-export --model ViT-L-14 --pretrained datacomp_xl_s13b_b90k
  clip-export --pretrained /data/epoch_32.pt     your own checkpoint
  clip-export --pretrained random:0              seeded random weights, to try everything without a download

The model is compared with PyTorch before it is installed; if it fails, the repository stays unchanged.
Exit status: 0 installed, 1 failed, 2 misused.
"""


def main(arguments: Sequence[str] | None = None, **collaborators: Any) -> int:
    """Run the command; return its exit status: 0 installed, 1 failed, 2 misused.

    ``collaborators`` are passed on to :func:`~preprocess_ensemble.export.exporter.export_model`.
    """
    options = _parser().parse_args(arguments)
    # open_clip logs through the root logger, which would repeat each of our errors in other words.
    logging.basicConfig(level=logging.CRITICAL)
    _do_not_wait_for_the_hub(options.pretrained)
    try:
        # PyTorch takes seconds to load; --help and a wrong option do not need it.
        from preprocess_ensemble.export.exporter import export_model
        from preprocess_ensemble.export.open_clip_model import WrongChoice
    except ModuleNotFoundError as error:
        _say(f'clip-export needs {error.name}: pip install "clip-triton[export,local]"')
        return 1
    try:
        export_model(
            model=options.model,
            pretrained=options.pretrained,
            precision=options.precision,
            repository=options.repository,
            force=options.force,
            report=_say,
            **collaborators,
        )
    except ReportedError as error:
        _say(str(error))
        return 2 if isinstance(error, WrongChoice) else 1
    except OSError as error:
        _say(f"The model cannot be written: {error.strerror or error}: {error.filename or options.repository}.")
        return 1
    except KeyboardInterrupt:
        _say("Interrupted; the repository is unchanged.")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="clip-export",
        description="Export an open_clip model to ONNX, check it, and install it in a Triton model repository.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--model",
        default="ViT-B-32",
        metavar="M",
        help="an open_clip model name, or a JSON file in its format (default: %(default)s)",
    )
    parser.add_argument(
        "--pretrained",
        default="laion2b_s34b_b79k",
        metavar="TAG|PATH|random[:SEED]",
        help="open_clip's tag of the weights, a checkpoint file, or seeded random weights (default: %(default)s)",
    )
    parser.add_argument(
        "--precision",
        default="fp32",
        choices=["fp32", "fp16", "int8"],
        help="fp16 is for GPUs; int8 (dynamic) is fast on CPUs with AVX512-VNNI or AMX but less accurate; the export "
        "measures and prints by how much (default: %(default)s)",
    )
    parser.add_argument(
        "--repository", type=Path, default=Path("triton_models"), metavar="DIR", help="default: %(default)s"
    )
    parser.add_argument("--force", action="store_true", help="export even if the same model is installed already")
    return parser


def _do_not_wait_for_the_hub(pretrained: str) -> None:
    """Tell huggingface_hub to use only its cache if the hub cannot be reached.

    Otherwise it tries each file six times with growing pauses, most of a minute in all, before it fails. It reads the
    variable when it is imported, so this must run before open_clip is imported.
    """
    if pretrained.partition(":")[0] == "random" or Path(pretrained).exists():
        return
    endpoint = os.environ.get("HF_ENDPOINT", _HUB)
    try:
        urllib.request.urlopen(urllib.request.Request(endpoint, method="HEAD"), timeout=_HUB_TIMEOUT_S).close()
    except urllib.error.HTTPError:
        return  # the hub answers
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLError):
            return  # a server answers; huggingface_hub may have other certificates
        _say(f"{endpoint} does not answer ({reason}); looking for the weights in the local cache only")
        os.environ["HF_HUB_OFFLINE"] = "1"


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
