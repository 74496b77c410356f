"""A model that is exported through PyTorch."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from preprocess_ensemble.export.model_source import BuiltGraph, GraphOptions
from preprocess_ensemble.export.onnx_file import save
from preprocess_ensemble.export.parity import check_pixels
from preprocess_ensemble.export.pytorch.class_token_pruning import prune_to_class_token
from preprocess_ensemble.export.pytorch.graph import export_graph, reference_vectors
from preprocess_ensemble.export.pytorch.open_clip_model import find_source, load_open_clip_model, preprocessing_of
from preprocess_ensemble.export.pytorch.recording import NoSkeleton, numpy_state, record_graph
from preprocess_ensemble.export.shape_folding import fold_shapes
from preprocess_ensemble.export.skeleton import fill
from preprocess_ensemble.export.state_dict import weights_sha256
from preprocess_ensemble.model_repository.config import MODEL_FILE

if TYPE_CHECKING:
    import onnx


class PyTorchModel:
    """An open_clip network in memory. Raises ExportError if it cannot be loaded."""

    def __init__(self, model: str, pretrained: str) -> None:
        self.source = find_source(model, pretrained)
        self._network = load_open_clip_model(self.source)
        self.config = preprocessing_of(self._network)
        self.weights_sha256 = weights_sha256(numpy_state(self._network))
        tower = self._network.get_submodule("visual").state_dict().values()
        self.weights_bytes: int = 4 * sum(tensor.numel() for tensor in tower)

    def build(self, stage: Path, options: GraphOptions) -> BuiltGraph:
        """Write the graph; see ``ExportableModel``. The network must not be used after it."""
        options.report("writing the graph")
        # Before the graph is written, which changes the network.
        expected = reference_vectors(self._network, self.config, check_pixels(self.config))
        file, dimension = stage / MODEL_FILE, expected.shape[1]
        model = None
        if options.precision != "fp16" and not options.has_data_file:
            with suppress(NoSkeleton):
                # In the same two steps as without PyTorch, so both ways give the same file.
                graph, places = record_graph(self._network, self.config.size, dimension, file)
                model = fill(graph, places, numpy_state(self._network), self.config, options.fingerprint)
        if model is None:
            model = self._graph(file, dimension, options)
            if not options.has_data_file:
                fold_shapes(model)
        # The name depends on the model, so the old model.onnx keeps its weights until it is replaced.
        first, second = (number & 0xFFFFFFFF for number in options.fingerprint)
        weights = f"model-{first:08x}{second:08x}.data" if options.has_data_file else None
        return BuiltGraph(files=save(model, file, weights=weights), expected=expected)

    def _graph(self, file: Path, dimension: int, options: GraphOptions) -> onnx.ModelProto:
        """Return the graph with the network's own weights."""
        prune_to_class_token(self._network.get_submodule("visual"))
        if options.precision == "fp16":
            # Normalisation and L2 norm around the tower stay fp32.
            self._network.half()
        return export_graph(
            self._network,
            size=self.config.size,
            mean=np.array(self.config.mean, np.float32),
            std=np.array(self.config.std, np.float32),
            dimension=dimension,
            fingerprint=options.fingerprint,
            file=file,
        )
