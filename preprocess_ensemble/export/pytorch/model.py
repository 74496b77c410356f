"""A model that is exported through PyTorch."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx

from preprocess_ensemble.export.model_source import BuiltGraph, GraphRequest
from preprocess_ensemble.export.pytorch.class_token_pruning import prune_to_class_token
from preprocess_ensemble.export.pytorch.graph import reference_vectors, write_graph
from preprocess_ensemble.export.pytorch.open_clip_model import find_source, load_open_clip_model, preprocessing_of
from preprocess_ensemble.export.pytorch.recording import NoSkeleton, numpy_state, record_graph
from preprocess_ensemble.export.shape_folding import fold_shapes
from preprocess_ensemble.export.skeleton import fill
from preprocess_ensemble.export.state_dict import weights_sha256
from preprocess_ensemble.model_repository.config import MODEL_FILE


class PyTorchModel:
    """An open_clip network in memory. Raises ExportError if there is none."""

    def __init__(self, model: str, pretrained: str) -> None:
        self.source = find_source(model, pretrained)
        self._network = load_open_clip_model(self.source)
        self.config = preprocessing_of(self._network)
        self.weights_sha256 = weights_sha256(numpy_state(self._network))
        tower = self._network.get_submodule("visual").state_dict().values()
        self.weights_bytes: int = 4 * sum(tensor.numel() for tensor in tower)

    def build(self, request: GraphRequest, report: Callable[[str], None]) -> BuiltGraph:
        """Write the graph; see ``ExportableModel``. The network must not be used after it."""
        report("writing the graph")
        # Before the graph is written, which changes the network.
        expected = reference_vectors(self._network, self.config, request.pixels)
        file, dimension = request.stage / MODEL_FILE, expected.shape[1]
        cannot_fill = request.precision == "fp16" or request.has_data_file
        if cannot_fill or not self._record_and_fill(file, dimension, request.fingerprint):
            self._write_directly(file, dimension, request)
        return BuiltGraph(
            files=_with_data_file(file, request.fingerprint) if request.has_data_file else [file], expected=expected
        )

    def _record_and_fill(self, file: Path, dimension: int, fingerprint: tuple[int, int]) -> bool:
        """Write the graph in the same two steps as without PyTorch, so both ways give the same file.

        Returns False if this model cannot have a skeleton.
        """
        try:
            graph, places = record_graph(self._network, self.config.size, dimension, file)
        except NoSkeleton:
            return False
        onnx.save(fill(graph, places, numpy_state(self._network), self.config, fingerprint), str(file))
        return True

    def _write_directly(self, file: Path, dimension: int, request: GraphRequest) -> None:
        prune_to_class_token(self._network.get_submodule("visual"))
        if request.precision == "fp16":
            # Normalisation and L2 norm around the tower stay fp32.
            self._network.half()
        write_graph(
            file,
            self._network,
            size=self.config.size,
            mean=np.array(self.config.mean, np.float32),
            std=np.array(self.config.std, np.float32),
            dimension=dimension,
            fingerprint=request.fingerprint,
        )
        if not request.has_data_file:
            fold_shapes(file)


def _with_data_file(file: Path, fingerprint: tuple[int, int]) -> list[Path]:
    """Move the weights of ``file`` to a file of their own; return both."""
    # The name depends on the model, so the old model.onnx keeps its weights until it is replaced.
    weights = file.with_name(f"model-{fingerprint[0] & 0xFFFFFFFF:08x}{fingerprint[1] & 0xFFFFFFFF:08x}.data")
    onnx.save_model(onnx.load(str(file)), str(file), save_as_external_data=True, location=weights.name)
    # onnx makes that file readable for its owner only; the server may run as another user.
    shutil.copymode(file, weights)
    return [weights, file]
