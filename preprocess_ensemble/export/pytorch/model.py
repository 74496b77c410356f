"""A model that is exported through PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import open_clip
from torch import nn

from preprocess_ensemble.errors import first_line
from preprocess_ensemble.export.exportable import BuiltGraph, ExportableModel, GraphOptions, is_pixels
from preprocess_ensemble.export.model_source import ExportError
from preprocess_ensemble.export.onnx_file import save
from preprocess_ensemble.export.pytorch.graph import export_graph, tower_vectors
from preprocess_ensemble.export.pytorch.open_clip_model import (
    find_source,
    load_open_clip_model,
    numpy_state,
    preprocessing_of,
    text_config_of,
    token_kinds,
)
from preprocess_ensemble.export.pytorch.recording import NoSkeleton, record_tower
from preprocess_ensemble.export.skeleton import fill
from preprocess_ensemble.model_repository.config import MODEL_FILE
from preprocess_ensemble.runtimes.agreement import SAMPLE_TEXTS, Rows
from preprocess_ensemble.text.tokenizer import Tokenizer


class PyTorchModel(ExportableModel):
    """An open_clip network in memory. Raises ExportError if it cannot be loaded."""

    def __init__(self, model: str, pretrained: str) -> None:
        source = find_source(model, pretrained)
        self._network = network = load_open_clip_model(source)
        image_bytes = _bytes(network.get_submodule("visual"))
        super().__init__(
            source=source,
            config=preprocessing_of(network),
            text_config=text_config_of(source.model),
            state=numpy_state(network),
            image_bytes=image_bytes,
            text_bytes=_bytes(network) - image_bytes,
        )

    @property
    def token_kinds(self) -> tuple[int, int, int]:
        return token_kinds(self._network, self.text_config)

    def check_tokenizer(self, tokenizer: Tokenizer, report: Callable[[str], None]) -> None:
        """Often open_clip needs transformers, and files in its form; without them, ``report`` says so."""
        model = self.source.model
        try:
            theirs = open_clip.get_tokenizer(model)
        except Exception as error:  # errors of transformers, the hub or its HTTP library
            reason = first_line(error)
            report(f"the tokenizer was not compared with open_clip's, which cannot be loaded here ({reason})")
            return
        ours, _ = tokenizer.encode(SAMPLE_TEXTS)
        different = np.flatnonzero((ours != theirs(list(SAMPLE_TEXTS)).numpy()).any(axis=1))
        if different.size:
            raise ExportError(
                f"The tokenizer of {model} gives other token ids here than in open_clip {open_clip.__version__}, for "
                f"example for {SAMPLE_TEXTS[different[0]]!r}: please report it, with the versions of tokenizers and "
                "transformers. The image tower alone: clip-export --towers image"
            )

    def build(self, rows: Rows, stage: Path, options: GraphOptions) -> BuiltGraph:
        """Do not use the tower afterwards."""
        network, config = self._network, self.config if is_pixels(rows) else None
        options.report("writing the graph")
        file = stage / MODEL_FILE
        # Compute the vectors first, because writing the graph may change the network.
        expected = tower_vectors(network, self.config, rows)
        dimension = expected.shape[1]
        model = None
        if options.weights_dtype != "fp16" and not options.has_data_file:
            # Take the two steps of an export without PyTorch, so that both write the same file.
            with suppress(NoSkeleton):
                tower = record_tower(network, rows, dimension, file)
                model = fill(tower, numpy_state(network), options.fingerprint, config)
        if model is None:
            model = export_graph(
                network,
                rows,
                None if config is None else (np.array(config.mean, np.float32), np.array(config.std, np.float32)),
                dimension=dimension,
                fingerprint=options.fingerprint,
                file=file,
                half=options.weights_dtype == "fp16",
                fold=not options.has_data_file,
            )
        # Name the weights after the model, so that the old model.onnx keeps its weights until it is replaced.
        first, second = (number & 0xFFFFFFFF for number in options.fingerprint)
        weights = f"model-{first:08x}{second:08x}.data" if options.has_data_file else None
        return BuiltGraph(files=save(model, file, weights=weights), expected=expected)


def _bytes(module: nn.Module) -> int:
    count: int = sum(tensor.numel() for tensor in module.state_dict().values())
    return 4 * count
