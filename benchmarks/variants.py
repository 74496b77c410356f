"""A model repository like another but for a few settings of one model: what an operator would edit by hand."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from benchmarks.environments import BUILD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def variant(repository: Path, change: Callable[[Any], None], model: str = "clip_encoder") -> Iterator[Path]:
    """A repository for the length of a block; ``change`` is given the ModelConfig message of ``model``.

    The weights are linked, or copied where the repository is on another file system than ``build/``.
    """
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD, prefix="variant-") as scratch:
        copy = Path(scratch) / "triton_models"
        for file in repository.rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                target = copy / file.relative_to(repository)
                target.parent.mkdir(parents=True, exist_ok=True)
                try:
                    os.link(file, target)
                except OSError:
                    shutil.copyfile(file, target)
        path = copy / model / "config.pbtxt"
        config = text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())
        change(config)
        path.unlink()
        path.write_text(text_format.MessageToString(config))
        yield copy
