"""Ways to run the encoder on a card, as changes to a repository's own configuration: what an operator would write.

On a CPU the same settings run with the CPU provider, and fixed batch sizes through buffers that stay stand in for CUDA
graphs; so a run without a card tries everything but the provider.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from benchmarks.fixtures.repository_variants import variant
from preprocess_ensemble.contract import ENCODER, PREPROCESSOR

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CPU_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One way to serve."""

    precision: str
    """``fp32`` or ``fp16``: which export."""
    tf32: bool = False
    """Of fp32 alone: let matrix products round their inputs to ten bits of mantissa."""
    graphs: bool = False
    max_batch_size: int = 64
    encoders: int = 1
    decoders: int = 1
    delay_us: int = 0

    @property
    def name(self) -> str:
        """Such as ``fp16, graphs, batch 64, 2 x encoder, 4 x decoder``."""
        parts = ["tf32" if self.tf32 else self.precision]
        parts += ["graphs"] if self.graphs else []
        parts += [f"batch {self.max_batch_size}"]
        parts += [f"{self.encoders} x encoder"] if self.encoders > 1 else []
        parts += [f"{self.decoders} x decoder"] if self.decoders > 1 else []
        parts += [f"delay {self.delay_us} us"] if self.delay_us else []
        return ", ".join(parts)

    def change_encoder(self, config: Any, device: str) -> None:
        """Write the setting into the encoder's ModelConfig message for ``cuda`` or ``cpu``."""
        config.max_batch_size = self.max_batch_size
        config.instance_group[0].count = self.encoders
        config.instance_group[0].kind = {"cpu": 2, "cuda": 1}[device]  # KIND_CPU, KIND_GPU: never the other in silence
        config.dynamic_batching.max_queue_delay_microseconds = self.delay_us
        for warmup in config.model_warmup:
            warmup.batch_size = min(warmup.batch_size, self.max_batch_size)
        if device == "cuda":
            accelerator = config.optimization.execution_accelerators.gpu_execution_accelerator.add(name="cuda")
            accelerator.parameters["use_tf32"] = str(int(self.tf32))
            accelerator.parameters["enable_cuda_graph"] = str(int(self.graphs))
        elif self.graphs:
            sizes = [size for size in CPU_BUCKETS if size <= self.max_batch_size]
            config.parameters["batch_buckets"].string_value = ",".join(map(str, sizes))

    def change_decoder(self, config: Any) -> None:
        """Write the setting into the preprocessor's ModelConfig message; its instances share the cores."""
        config.instance_group[0].count = self.decoders
        if self.decoders > 1:
            threads = max(1, len(os.sched_getaffinity(0)) // self.decoders)
            config.parameters["decode_threads"].string_value = str(threads)


@contextmanager
def repository_with(setting: Setting, exports: Path, device: str) -> Iterator[Path]:
    """The repository ``exports/<precision>`` with ``setting``, for the length of a block."""
    with ExitStack() as stack:
        changed = stack.enter_context(
            variant(exports / setting.precision, lambda config: setting.change_encoder(config, device), model=ENCODER)
        )
        yield stack.enter_context(variant(changed, setting.change_decoder, model=PREPROCESSOR))
