"""A model that is exported from its skeleton, without PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from preprocess_ensemble.export import parity
from preprocess_ensemble.export.model_source import (
    BuiltGraph,
    GraphOptions,
    TextSource,
    WrongChoice,
    check_activation,
    choose_weights,
)
from preprocess_ensemble.export.onnx_file import save
from preprocess_ensemble.export.parity import check_pixels
from preprocess_ensemble.export.skeleton import CHECK_NOISE, CHECK_SEED, GENERATED, Tower, fill, find_skeleton, key_of
from preprocess_ensemble.export.state_dict import Array, CheckpointFile, GeneratedWeights, StateDict, weights_sha256
from preprocess_ensemble.export.weights_download import download
from preprocess_ensemble.model_repository.config import MODEL_FILE
from preprocess_ensemble.runtimes.agreement import checked_vectors, sample_tokens
from preprocess_ensemble.runtimes.onnx_session import open_session

if TYPE_CHECKING:
    import numpy.typing as npt

    from preprocess_ensemble.imaging.transform import PreprocessConfig
    from preprocess_ensemble.runtimes.agreement import Rows
    from preprocess_ensemble.text.tokenizer import Tokenizer


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
        self.weights_bytes = self._skeleton.image.weights_bytes
        self.text = TextSource.of(self._skeleton.text_config, self._state, self._skeleton.text.weights_bytes)

    def build(self, stage: Path, options: GraphOptions) -> BuiltGraph:
        """Write the image tower's graph; see ``ExportableModel``."""
        skeleton = self._skeleton
        rows, check = check_pixels(self.config), check_pixels(skeleton.preprocess)
        return self._build(skeleton.image, stage, options, rows, check, self.config, skeleton.preprocess)

    def check_tokenizer(self, tokenizer: Tokenizer, report: Callable[[str], None]) -> None:
        """Do nothing: open_clip may be missing."""

    def build_text(self, stage: Path, options: GraphOptions, canary: npt.NDArray[np.int32]) -> BuiltGraph:
        """Write the text tower's graph; see ``ExportableModel``."""
        check = sample_tokens(*self._skeleton.token_kinds)
        rows = np.concatenate([check, canary[None]])
        return self._build(self._skeleton.text, stage, options, rows, check)

    def _build(
        self,
        tower: Tower,
        stage: Path,
        options: GraphOptions,
        rows: Rows,
        check: Rows,
        config: PreprocessConfig | None = None,
        check_config: PreprocessConfig | None = None,
    ) -> BuiltGraph:
        """``check`` and ``check_config`` belong to the vectors of generated weights."""
        if options.precision == "fp16" or options.has_data_file:
            what = "fp16" if options.precision == "fp16" else "Writing the weights to a file of their own"
            raise WrongChoice(f"{what} needs PyTorch: pip install 'clip-triton[export]'.")
        file = stage / MODEL_FILE

        def write(state: StateDict, values: PreprocessConfig | None) -> None:
            save(fill(tower.graph, tower.places, state, options.fingerprint, values), file)

        other_weights = None
        expected = tower.expected.get(key_of(self.source.model, self.weights_sha256, self.config))
        if expected is None:
            options.report("comparing the graph with PyTorch's recorded vectors")
            write(GeneratedWeights(self._skeleton.tensors, CHECK_SEED, CHECK_NOISE), check_config)
            session, recorded = open_session(file), tower.expected[GENERATED]
            other_weights, _ = parity.check(session, check, recorded, options.fingerprint, "fp32")
        options.report("filling the graph")
        write(self._state, config)
        if expected is None and options.precision != "fp32":
            expected = checked_vectors(open_session(file), rows, options.fingerprint)
        return BuiltGraph(files=[file], rows=rows, expected=expected, other_weights=other_weights)
