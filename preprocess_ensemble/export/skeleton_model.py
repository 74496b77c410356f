"""A model that is exported from its skeleton, without PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from preprocess_ensemble.export import parity, skeleton
from preprocess_ensemble.export.model_source import (
    BuiltGraph,
    GraphOptions,
    WrongChoice,
    check_activation,
    choose_weights,
)
from preprocess_ensemble.export.onnx_file import save
from preprocess_ensemble.export.skeleton import fill, find_skeleton
from preprocess_ensemble.export.state_dict import Array, CheckpointFile, GeneratedWeights, weights_sha256
from preprocess_ensemble.export.weights_download import download
from preprocess_ensemble.model_repository.config import MODEL_FILE
from preprocess_ensemble.runtimes.agreement import checked_vectors
from preprocess_ensemble.runtimes.onnx_session import open_session

if TYPE_CHECKING:
    from preprocess_ensemble.imaging.transform import PreprocessConfig


class SkeletonModel:
    """A skeleton and the weights that fill it.

    ``model`` is the name of a model whose skeleton is part of this package, or a skeleton file's path. Raises
    ExportError.
    """

    def __init__(self, model: str, pretrained: str) -> None:
        self._skeleton = find_skeleton(model)
        name, tags = self._skeleton.model, self._skeleton.tags
        self.source = choose_weights(name, pretrained, tags)
        self.config = self._skeleton.preprocess
        self._state: Mapping[str, Array]
        if self.source.seed is not None:
            self._state = GeneratedWeights(self._skeleton.tensors, self.source.seed)
        else:
            path = self.source.checkpoint
            if path is None:
                weights = tags[pretrained]
                check_activation(
                    name, pretrained, trained_quick=weights.quick_gelu, model_quick=self._skeleton.quick_gelu
                )
                self.config = weights.preprocess
                path = download(name, pretrained, weights.repository, weights.file)
            self._state = CheckpointFile(path, name, self._skeleton.tensors)
        self.weights_sha256 = weights_sha256(self._state)
        self.weights_bytes = self._skeleton.weights_bytes

    def build(self, stage: Path, options: GraphOptions) -> BuiltGraph:
        """Write the graph; see ``ExportableModel``."""
        if options.precision == "fp16" or options.has_data_file:
            what = "fp16" if options.precision == "fp16" else "Writing the weights to a file of their own"
            raise WrongChoice(f"{what} needs PyTorch: pip install 'clip-triton[export]'.")
        file = stage / MODEL_FILE
        other_weights = None
        expected = self._skeleton.expected.get(skeleton.key_of(self.source.model, self.weights_sha256, self.config))
        if expected is None:
            options.report("comparing the graph with PyTorch's recorded vectors")
            other_weights = self._check_skeleton(file, options.fingerprint)
        options.report("filling the graph")
        self._fill(file, self._state, self.config, options.fingerprint)
        if expected is None and options.precision != "fp32":
            expected = checked_vectors(open_session(file), parity.check_pixels(self.config), options.fingerprint)
        return BuiltGraph(files=[file], expected=expected, other_weights=other_weights)

    def _check_skeleton(self, file: Path, fingerprint: tuple[int, int]) -> float:
        """Compare the graph, with generated weights, with the vectors that PyTorch computed from the same weights."""
        config = self._skeleton.preprocess
        weights = GeneratedWeights(self._skeleton.tensors, skeleton.CHECK_SEED, skeleton.CHECK_NOISE)
        self._fill(file, weights, config, fingerprint)
        expected = self._skeleton.expected[skeleton.GENERATED]
        lowest, _ = parity.check(open_session(file), parity.check_pixels(config), expected, fingerprint, "fp32")
        return lowest

    def _fill(
        self, file: Path, state: Mapping[str, Array], config: PreprocessConfig, fingerprint: tuple[int, int]
    ) -> None:
        save(fill(self._skeleton.graph, self._skeleton.places, state, config, fingerprint), file)
