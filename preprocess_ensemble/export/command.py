"""The command ``clip-export``: export an open_clip model into a Triton model repository."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from preprocess_ensemble.command_line import Parser, sigterm_like_ctrl_c, user_path
from preprocess_ensemble.contract import DEFAULT_NAME
from preprocess_ensemble.errors import ReportedError, pip_install
from preprocess_ensemble.export import hub
from preprocess_ensemble.export.model_source import WrongChoice, names_file, shipped_models
from preprocess_ensemble.model_repository.location import (
    MODEL_VARIABLE,
    PRETRAINED_VARIABLE,
    model_to_export,
    repository_to_fill,
)
from preprocess_ensemble.model_repository.tensorrt import VERSIONS, Tensorrt, default_cache

_MODEL: Final = "ViT-B-32"
_PRETRAINED: Final = "laion2b_s34b_b79k"
_BOTH: Final = "image,text"
_MODELS: Final = Path(__file__).with_name("models.md")
"""Tables of recommended models, as in docs/models.md. ``python -m benchmarks towers`` measures the speed: milliseconds
of one thread in fp32, in batches of 8. The recall is the mean of the recalls at 1, 5 and 10."""
_EPILOG: Final = """\
examples:
  clip-export                                    ViT-B-32 with the LAION-2B weights
  clip-export --model ViT-L-14 --pretrained datacomp_xl_s13b_b90k
  clip-export --pretrained /data/epoch_32.pt     your own checkpoint
  clip-export --towers image                     the image tower alone, without search by words
  clip-export --name big --model ViT-L-14 --pretrained laion2b_s32b_b82k
                                                 beside the default model, for ClipClient(url, model="big")
  clip-export --precision fp16 --tensorrt --repository /srv/models
                                                 for TensorRT on a GPU
  clip-export --pretrained random:0              seeded random weights, to try everything without a download

PyTorch is needed for fp16, for weights that are not in a .safetensors file, and for models other than
{models}.
Before it is installed, the model is compared with PyTorch, or with vectors that PyTorch computed. If it fails, the
repository stays unchanged. Exit status: 0 installed, 1 failed, 2 misused.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        options = _parser().parse_args(arguments)
        model, weights = model_to_export()
        if options.tensorrt_cache is not None and options.tensorrt is None:
            raise WrongChoice("--tensorrt-cache needs --tensorrt.")
        tensorrt = None
        if options.tensorrt is not None:
            cache = (options.tensorrt_cache or default_cache()).absolute()
            tensorrt = Tensorrt(version=options.tensorrt, cache=cache)
    except ReportedError as error:
        _say(str(error))
        return 2
    if options.list:
        blocks = _MODELS.read_text(encoding="utf-8").split("\n\n")
        listed = (_aligned(block) if block.startswith("|") else block.strip() for block in blocks)
        sys.stdout.write("\n\n".join(listed) + "\n")
        return 0
    # Silence the root logger, through which open_clip would repeat each error in other words.
    logging.basicConfig(level=logging.CRITICAL)
    if options.model is not None:
        weights = None  # the environment's weights belong to another model
    model = options.model or model or _MODEL
    pretrained = options.pretrained or weights or ("random" if options.skeleton else _PRETRAINED)
    if not (pretrained.partition(":")[0] == "random" or names_file(pretrained) or Path(pretrained).exists()):
        hub.do_not_wait(_say)
    try:
        # Check for ONNX Runtime before the download: the extras server and export do not install it.
        import onnxruntime  # noqa: F401

        # Import it here: PyTorch takes seconds to load, and --help and a wrong option do not need it.
        from preprocess_ensemble.export.exporter import export_model
    except ModuleNotFoundError as error:
        return _missing(error, "local")
    try:
        with sigterm_like_ctrl_c():  # unfinished files, of gigabytes, are then removed
            if options.skeleton is not None:
                return _record(model, options.pretrained, options.skeleton)
            export_model(
                model=model,
                pretrained=pretrained,
                weights_dtype=options.precision,
                repository=options.repository,
                name=options.name,
                text=options.towers == _BOTH,
                force=options.force,
                tensorrt=tensorrt,
                report=_say,
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


def _parser() -> Parser:
    parser = Parser(
        prog="clip-export",
        usage="%(prog)s [options]",
        description="Export an open_clip model to ONNX, check it, and install it in a Triton model repository.",
        epilog=_EPILOG.format(models=", ".join(shipped_models())),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--model",
        metavar="M",
        help="an open_clip model name, a JSON file in its format, or a skeleton file (default: the environment "
        f"variable {MODEL_VARIABLE}, else {_MODEL})",
    )
    parser.add_argument(
        "--pretrained",
        metavar="TAG|PATH|random[:SEED]",
        help=f"open_clip's tag of the weights, a checkpoint file, or seeded random weights (default: the environment "
        f"variable {PRETRAINED_VARIABLE} if --model is not given, else {_PRETRAINED})",
    )
    parser.add_argument(
        "--precision",
        default="fp32",
        choices=["fp32", "fp16", "int8"],
        help="fp16 is for GPUs; int8 (dynamic) is fast on CPUs with AVX512-VNNI or AMX, but less accurate; the export "
        "measures and prints the accuracy (default: %(default)s)",
    )
    parser.add_argument(
        "--towers",
        default=_BOTH,
        choices=[_BOTH, "image"],
        metavar=f"{_BOTH}|image",
        help="image: only the image tower, without search by words (default: %(default)s)",
    )
    parser.add_argument(
        "--name",
        default=DEFAULT_NAME,
        help="name by which clients select this model; several models can share a repository (default: %(default)s)",
    )
    parser.add_argument(
        "--repository",
        type=user_path,
        default=repository_to_fill(),
        metavar="DIR",
        help="default: CLIP_REPOSITORY, else triton_models in this folder, else your data folder; now %(default)s",
    )
    parser.add_argument(
        "--skeleton",
        type=user_path,
        metavar="FILE",
        help="only record the model's graph, without its weights, for later exports without PyTorch (--model "
        "FILE.skeleton); with --pretrained, also record vectors that such an export is compared with",
    )
    parser.add_argument(
        "--tensorrt",
        nargs="?",
        type=int,
        const=VERSIONS[-1],
        choices=VERSIONS,
        help="run the image encoder, and with fp16 the text encoder, on this version of TensorRT, which needs a GPU; "
        "Triton images have 11 since 26.06 (default: none; without a number %(const)s)",
    )
    parser.add_argument(
        "--tensorrt-cache",
        type=user_path,
        metavar="DIR",
        help="folder for TensorRT's engines and timings on the server (default: tensorrt in your cache folder)",
    )
    parser.add_argument("--list", action="store_true", help="list models: size, speed, languages, licence; no export")
    parser.add_argument("--force", action="store_true", help="export even if the same model is installed already")
    parser.add_version_option()
    return parser


def _record(model: str, pretrained: str | None, file: Path) -> int:
    try:
        from preprocess_ensemble.export.pytorch.recording import record_file
    except ModuleNotFoundError as error:
        return _missing(error, "export,local")
    _say(f"recording {model}")
    recorded = record_file(model, pretrained, file)
    image, text = (len(tower.places) for tower in (recorded.image, recorded.text))
    _say(f"recorded {recorded.model} in {file}: {image} and {text} tensors of its two graphs come from the weights")
    return 0


def _missing(error: ModuleNotFoundError, extras: str) -> int:
    _say(f"clip-export needs {error.name}: {pip_install(extras)}")
    return 1


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _aligned(table: str) -> str:
    first, _, *others = (line.strip("|").split("|") for line in table.replace("`", "").strip().splitlines())
    rows = [[cell.strip() for cell in row] for row in (first, *others)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


if __name__ == "__main__":
    sys.exit(main())
