"""``clip-export``: an open_clip model into the Triton model repository."""

from __future__ import annotations

import argparse
import logging
import os
import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ("main",)

_HUB: Final = "https://huggingface.co"
_HUB_TIMEOUT_S: Final = 10.0
_EPILOG: Final = """\
examples:
  clip-export                                    ViT-B-32 with LAION-2B's weights, into triton_models
  clip-export --model ViT-L-14 --pretrained datacomp_xl_s13b_b90k
  clip-export --pretrained /data/epoch_32.pt     a checkpoint of your own
  clip-export --pretrained random:0              no weights at hand: seeded random ones, to try everything out

The model is checked against PyTorch before it is installed; one that fails changes nothing.
Exit status: 0 installed, 1 failed, 2 misused.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 0 installed, 1 failed, 2 misused."""
    options = _parser().parse_args(arguments)
    # open_clip logs through the root logger, which would repeat each error of ours in other words.
    logging.basicConfig(level=logging.CRITICAL)
    _do_not_wait_for_the_hub(options.pretrained)
    try:
        # PyTorch takes seconds to load; --help and a wrong option need not wait for it.
        from preprocess_ensemble.export import atomic_install, exporter, parity
        from preprocess_ensemble.model_repository import config
    except ModuleNotFoundError as error:
        _say(f'clip-export needs {error.name}: pip install "clip-triton[exporter,local]"')
        return 1
    try:
        exporter.export_model(
            model=options.model,
            pretrained=options.pretrained,
            precision=options.precision,
            repository=options.repository,
            force=options.force,
            report=_say,
        )
    except exporter.WrongChoice as error:
        _say(str(error))
        return 2
    except (exporter.ExportError, parity.ParityError, config.RepositoryError, atomic_install.StagingError) as error:
        _say(str(error))
        return 1
    except OSError as error:
        _say(f"The model cannot be written: {error.strerror or error}: {error.filename or options.repository}.")
        return 1
    except KeyboardInterrupt:
        _say("Interrupted; the repository is as it was.")
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
        "--model", default="ViT-B-32", metavar="M", help="open_clip's name of a model, or a JSON file of its form"
    )
    parser.add_argument(
        "--pretrained",
        default="laion2b_s34b_b79k",
        metavar="TAG|PATH|random[:SEED]",
        help="open_clip's tag of the weights, a checkpoint file, or seeded random weights",
    )
    parser.add_argument(
        "--precision",
        default="fp32",
        choices=["fp32", "fp16", "int8"],
        help="fp16 is for GPUs; int8 (dynamic) is fast on CPUs with AVX512-VNNI or AMX, and costs accuracy, which is "
        "measured and printed (default: %(default)s)",
    )
    parser.add_argument("--repository", type=Path, default=Path("triton_models"), metavar="DIR")
    parser.add_argument("--force", action="store_true", help="export even what is installed already")
    return parser


def _do_not_wait_for_the_hub(pretrained: str) -> None:
    """Tell huggingface_hub to use its cache only, if the hub cannot be reached.

    It would try each file six times with growing pauses, most of a minute in all, before it says so. It reads the
    variable when it is imported, so this comes before open_clip.
    """
    if pretrained.partition(":")[0] == "random" or Path(pretrained).exists():
        return
    endpoint = os.environ.get("HF_ENDPOINT", _HUB)
    try:
        urllib.request.urlopen(urllib.request.Request(endpoint, method="HEAD"), timeout=_HUB_TIMEOUT_S).close()
    except urllib.error.HTTPError:
        return  # an answer all the same
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLError):
            return  # somebody answers; huggingface_hub may have other certificates
        _say(f"{endpoint} does not answer ({reason}); looking for the weights in the local cache only")
        os.environ["HF_HUB_OFFLINE"] = "1"


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
