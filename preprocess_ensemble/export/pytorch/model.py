"""A model that is exported through PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from preprocess_ensemble.export.model_source import BuiltGraph, GraphOptions, TextSource
from preprocess_ensemble.export.onnx_file import save
from preprocess_ensemble.export.parity import check_pixels
from preprocess_ensemble.export.pytorch.class_token_pruning import prune_to_class_token
from preprocess_ensemble.export.pytorch.graph import export_image_graph, export_text_graph, image_vectors, text_vectors
from preprocess_ensemble.export.pytorch.open_clip_model import (
    check_tokenizer,
    find_source,
    load_open_clip_model,
    preprocessing_of,
    text_config_of,
    token_kinds,
)
from preprocess_ensemble.export.pytorch.recording import (
    NoSkeleton,
    Recorded,
    numpy_state,
    record_image_graph,
    record_text_graph,
)
from preprocess_ensemble.export.shape_folding import fold_shapes
from preprocess_ensemble.export.skeleton import fill
from preprocess_ensemble.export.state_dict import weights_sha256
from preprocess_ensemble.model_repository.config import MODEL_FILE
from preprocess_ensemble.runtimes.agreement import sample_tokens

if TYPE_CHECKING:
    import numpy.typing as npt
    import onnx
    from torch import nn

    from preprocess_ensemble.imaging.transform import PreprocessConfig
    from preprocess_ensemble.text.tokenizer import Tokenizer


class PyTorchModel:
    """An open_clip network in memory. Raises ExportError if it cannot be loaded."""

    def __init__(self, model: str, pretrained: str) -> None:
        self.source = find_source(model, pretrained)
        self._network = load_open_clip_model(self.source)
        self.config = preprocessing_of(self._network)
        state = numpy_state(self._network)
        self.weights_sha256 = weights_sha256(state)
        self.weights_bytes = _bytes(self._network.get_submodule("visual"))
        text_bytes = _bytes(self._network) - self.weights_bytes
        self.text = TextSource.of(text_config_of(self.source.model), state, text_bytes)

    def build(self, stage: Path, options: GraphOptions) -> BuiltGraph:
        """Write the image tower's graph; see ``ExportableModel``. That tower must not be used after it."""
        options.report("writing the graph")
        network, file, rows = self._network, stage / MODEL_FILE, check_pixels(self.config)
        # Before the graph is written, which changes the network.
        expected = image_vectors(network, self.config, rows)
        dimension = expected.shape[1]

        def export() -> onnx.ModelProto:
            visual = network.get_submodule("visual")
            prune_to_class_token(visual)
            if options.precision == "fp16":
                # Normalisation and L2 norm around the tower stay fp32.
                visual.half()
            return export_image_graph(
                network,
                size=self.config.size,
                mean=np.array(self.config.mean, np.float32),
                std=np.array(self.config.std, np.float32),
                dimension=dimension,
                fingerprint=options.fingerprint,
                file=file,
            )

        model = self._filled(
            options, lambda: record_image_graph(network, self.config.size, dimension, file), export, self.config
        )
        return BuiltGraph(files=save_graph(model, file, options), rows=rows, expected=expected)

    def check_tokenizer(self, tokenizer: Tokenizer, report: Callable[[str], None]) -> None:
        """Compare ``tokenizer`` with open_clip's; see ``ExportableModel``."""
        check_tokenizer(self.source.model, tokenizer, report)

    def build_text(self, stage: Path, options: GraphOptions, canary: npt.NDArray[np.int32]) -> BuiltGraph:
        """Write the text tower's graph; see ``ExportableModel``. The network must not be used after it."""
        options.report("writing the graph of the text tower")
        network, file, length = self._network, stage / MODEL_FILE, len(canary)
        rows = np.concatenate([sample_tokens(*token_kinds(network, length)), canary[None]])
        expected = text_vectors(network, rows)
        dimension = expected.shape[1]

        def export() -> onnx.ModelProto:
            if options.precision == "fp16":
                network.half()
            return export_text_graph(
                network, context_length=length, dimension=dimension, fingerprint=options.fingerprint, file=file
            )

        model = self._filled(options, lambda: record_text_graph(network, length, dimension, file), export)
        return BuiltGraph(files=save_graph(model, file, options), rows=rows, expected=expected)

    def _filled(
        self,
        options: GraphOptions,
        record: Callable[[], Recorded],
        export: Callable[[], onnx.ModelProto],
        config: PreprocessConfig | None = None,
    ) -> onnx.ModelProto:
        """Return a tower's graph: if possible in the same two steps as without PyTorch, so both give the same file."""
        if options.precision != "fp16" and not options.has_data_file:
            with suppress(NoSkeleton):
                graph, places = record()
                return fill(graph, places, numpy_state(self._network), options.fingerprint, config)
        model = export()
        if not options.has_data_file:
            fold_shapes(model)
        return model


def _bytes(module: nn.Module) -> int:
    count: int = sum(tensor.numel() for tensor in module.state_dict().values())
    return 4 * count


def save_graph(model: onnx.ModelProto, file: Path, options: GraphOptions) -> list[Path]:
    """Write a graph to ``file``, and its weights to a file of their own if they need one; return the files."""
    # The name depends on the model, so the old model.onnx keeps its weights until it is replaced.
    first, second = (number & 0xFFFFFFFF for number in options.fingerprint)
    return save(model, file, weights=f"model-{first:08x}{second:08x}.data" if options.has_data_file else None)
