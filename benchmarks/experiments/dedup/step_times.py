"""Where the processor time of a search goes: counters around the functions of ``clip_client``, step by step."""

from __future__ import annotations

import functools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final

STEPS: Final[dict[str, tuple[str, ...]]] = {
    "list the files": ("clip_client.dedup.search:scan",),
    "read and hash": (
        "clip_client.dedup.features.collect:FeatureCollector._read_one",
        "clip_client._pipeline.encoder:read_image",
    ),
    "decode": (
        "preprocess_ensemble.imaging.decode:decode",
        "preprocess_ensemble.imaging.preprocessor:decode_image",
    ),
    "features": ("clip_client.dedup.features.image_features:_extract",),
    "reduce for the model": (
        "preprocess_ensemble.imaging.transform:reduced_jpeg",
        "preprocess_ensemble.imaging.preprocessor:preprocess",
    ),
    "compare": (
        "clip_client.dedup.features.collect:CollectedFeatures.comparable",
        "clip_client.dedup.features.pixel_hash:pixel_hash_of",
        "clip_client.dedup.grouping:join_vectors",
        "clip_client.dedup.grouping:join_hashes",
        "clip_client.dedup.grouping:make_groups",
    ),
    "align": (
        "clip_client.dedup.alignment.aligner:keep_small_picture",
        "clip_client.dedup.alignment.aligner:keypoints_in",
        "clip_client.dedup.alignment.keypoints:_find_keypoints",
        "clip_client.dedup.alignment.aligner:align",
        "clip_client.dedup.alignment.aligner:full_photo",
        "clip_client.dedup.alignment.aligner:check_at_full_size",
    ),
    "write the store": (
        "clip_client.dedup.features.collect:FeatureCollector.save",
        "clip_client.dedup.features.collect:FeatureCollector.compact",
    ),
}
"""Step -> its functions, ``module:name``. A function that another one calls counts for its own step alone."""
REST: Final = "model and the rest"
"""What no step counts: ONNX Runtime, the event loop, gRPC."""


class StepTimes:
    """Processor seconds by step, over all threads."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._lock = threading.Lock()
        self._thread = threading.local()

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Put the counters around the functions of :data:`STEPS` until the end of the block."""
        replaced = []
        try:
            for step, functions in STEPS.items():
                for function in functions:
                    module, _, path = function.partition(":")
                    *owners, name = path.split(".")
                    owner: Any = functools.reduce(getattr, owners, import_module(module))
                    original = getattr(owner, name)
                    replaced.append((owner, name, original))
                    setattr(owner, name, self._counted(step, original))
            yield
        finally:
            for owner, name, original in replaced:
                setattr(owner, name, original)

    def _counted(self, step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def counted(*arguments: Any, **options: Any) -> Any:
            outer_inside = getattr(self._thread, "inside", 0.0)
            self._thread.inside = 0.0
            started = time.thread_time()
            try:
                return function(*arguments, **options)
            finally:
                spent = time.thread_time() - started
                with self._lock:
                    self.seconds[step] += spent - self._thread.inside
                self._thread.inside = outer_inside + spent

        return counted
