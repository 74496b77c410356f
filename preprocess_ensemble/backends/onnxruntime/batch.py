"""Several requests, one run: join their rows, run the session, and hand each request its own rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime

if TYPE_CHECKING:
    import numpy.typing as npt

    from preprocess_ensemble.backends.onnxruntime.session import SessionPlan
    from preprocess_ensemble.backends.onnxruntime.signature import Signature

__all__ = ("Arrays", "Runner", "joined", "split")

Arrays = Mapping[str, "npt.NDArray[Any]"]
"""Arrays by the name of their tensor."""


def joined(requests: Sequence[Arrays]) -> Arrays:
    """Rows of all requests in one array for each tensor; a single request passes through without a copy."""
    if len(requests) == 1:
        return requests[0]
    return {name: np.concatenate([request[name] for request in requests]) for name in requests[0]}


def split(outputs: Arrays, rows: Sequence[int]) -> list[Arrays]:
    """Undo :func:`joined` for the outputs: views with ``rows[i]`` rows for request ``i``."""
    ends = np.cumsum(rows)
    return [
        {name: array[end - count : end] for name, array in outputs.items()}
        for count, end in zip(rows, ends, strict=True)
    ]


class Runner:
    """Runs one session: plainly on the CPU, through buffers of its own on the device of a GPU."""

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        signature: Signature,
        plan: SessionPlan,
        *,
        bind: bool | None = None,
    ) -> None:
        """``bind`` says whether to use buffers; the default is to use them where the first provider runs on a GPU."""
        self._session = session
        self._signature = signature
        self._run_entries = dict(plan.run_entries)
        self._device = plan.device if plan.providers[0].name in session.get_providers() else "cpu"
        self._device_id = int(plan.providers[0].options.get("device_id", 0))
        self._buffers: dict[int, _DeviceBuffers] = {}
        # Buffers are kept for each number of rows, so all other sizes must be known.
        tensors = (*signature.inputs, *signature.outputs)
        known = signature.batches and all(-1 not in tensor.shape[1:] for tensor in tensors)
        self._binds = known and (self._device != "cpu" if bind is None else bind)

    def run(self, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        """Run the model and return the outputs with these names. Raises what ONNX Runtime raises."""
        if self._binds:
            return self._run_bound(inputs, outputs)
        results = self._session.run(list(outputs), dict(inputs), self._run_options())
        return dict(zip(outputs, results, strict=True))

    def _run_bound(self, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        rows = len(next(iter(inputs.values())))
        if rows not in self._buffers:
            self._buffers[rows] = _DeviceBuffers(self._session, self._signature, rows, self._device, self._device_id)
        # A CUDA graph is captured for one set of addresses; this number tells ONNX Runtime which set it is.
        options = self._run_options()
        options.add_run_config_entry("gpu_graph_id", str(rows))
        return self._buffers[rows].run(inputs, outputs, options)

    def _run_options(self) -> onnxruntime.RunOptions:
        options = onnxruntime.RunOptions()
        for key, value in self._run_entries.items():
            options.add_run_config_entry(key, value)
        return options


class _DeviceBuffers:
    """Inputs and outputs on the device for one number of rows, at addresses that do not change between runs."""

    def __init__(
        self, session: onnxruntime.InferenceSession, signature: Signature, rows: int, device: str, device_id: int
    ) -> None:
        self._session = session
        self._binding = session.io_binding()
        self._inputs: dict[str, onnxruntime.OrtValue] = {}
        self._outputs: dict[str, onnxruntime.OrtValue] = {}
        for bound, tensors, bind in (
            (self._inputs, signature.inputs, self._binding.bind_ortvalue_input),
            (self._outputs, signature.outputs, self._binding.bind_ortvalue_output),
        ):
            for tensor in tensors:
                shape = [rows, *tensor.shape[1:]]
                value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(shape, tensor.dtype, device, device_id)
                bind(tensor.name, value)
                bound[tensor.name] = value

    def run(self, inputs: Arrays, outputs: Sequence[str], options: onnxruntime.RunOptions) -> Arrays:
        for name, array in inputs.items():
            self._inputs[name].update_inplace(np.ascontiguousarray(array))
        self._session.run_with_iobinding(self._binding, options)
        return {name: self._outputs[name].numpy() for name in outputs}
