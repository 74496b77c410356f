"""One run for several requests: join their rows, run the session, and return each request its own rows.

On a GPU the rows go through buffers at fixed addresses. A CUDA graph also fixes the number of rows, so a batch is
padded up to the next of the plan's buckets, and the extra rows of the result are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnxruntime

from preprocess_ensemble.backends.onnxruntime.model_config import ModelLoadError
from preprocess_ensemble.errors import first_line

if TYPE_CHECKING:
    import numpy.typing as npt

    from preprocess_ensemble.backends.onnxruntime.session_plan import SessionPlan
    from preprocess_ensemble.backends.onnxruntime.signature import Signature
    from preprocess_ensemble.runtimes.model import Session

_RUNS_UNTIL_CAPTURED: Final = 3
"""ONNX Runtime captures a CUDA graph after two plain runs, which allocate the memory that the graph needs."""

Arrays = Mapping[str, "npt.NDArray[Any]"]
"""Tensor name -> array."""


def joined(requests: Sequence[Arrays]) -> Arrays:
    """Join the rows of all requests, tensor by tensor. A single request is returned without a copy."""
    if len(requests) == 1:
        return requests[0]
    return {name: np.concatenate([request[name] for request in requests]) for name in requests[0]}


def bucket(rows: int, buckets: Sequence[int]) -> int:
    """Return the least of ``buckets`` (ascending) that holds ``rows``, or ``rows`` if none does."""
    return next((size for size in buckets if size >= rows), rows)


def split(outputs: Arrays, rows: Sequence[int]) -> list[Arrays]:
    """Split the outputs of joined requests: views with ``rows[i]`` rows for request ``i``."""
    ends = np.cumsum(rows)
    return [
        {name: array[end - count : end] for name, array in outputs.items()}
        for count, end in zip(rows, ends, strict=True)
    ]


class Runner:
    """Runs one session: directly on a CPU, through its own buffers on a GPU.

    Call it from one thread only: ONNX Runtime keeps a captured CUDA graph with the thread that ran it.
    """

    def __init__(self, session: onnxruntime.InferenceSession, signature: Signature, plan: SessionPlan) -> None:
        """It has buffers on a GPU, and if the plan has buckets."""
        self._session = session
        self._signature = signature
        self._plan = plan
        self._device = plan.device if plan.providers[0].name in session.get_providers() else "cpu"
        self._device_id = int(plan.providers[0].options.get("device_id", 0))
        self._buffers: dict[int, _Buffers] = {}
        # There are buffers for each number of rows, so all other sizes must be known.
        tensors = (*signature.inputs, *signature.outputs)
        known = signature.batches and all(-1 not in tensor.shape[1:] for tensor in tensors)
        self._binds = known and (self._device != "cpu" or bool(plan.buckets))

    def prepare(self) -> None:
        """Allocate the buffers of every bucket and let CUDA capture its graph, so that no request waits for that.

        Raises ``ModelLoadError``, for instance if the device has not enough memory.
        """
        if not self._binds:
            return
        for rows in self._plan.buckets:
            zeros = {
                tensor.name: np.zeros((rows, *tensor.shape[1:]), tensor.dtype) for tensor in self._signature.inputs
            }
            try:
                for _ in range(_RUNS_UNTIL_CAPTURED if self._plan.graphs else 1):
                    self.run([zeros], ())
            except Exception as error:  # ONNX Runtime's exceptions share no public base class.
                raise ModelLoadError(
                    f"A batch of {rows} cannot be run through fixed buffers ({first_line(error)}): "
                    "take enable_cuda_graph and batch_buckets out of config.pbtxt."
                ) from error

    def run(self, requests: Sequence[Arrays], outputs: Sequence[str]) -> Arrays:
        """Run the model on the rows of all requests; return ``outputs`` with the rows of all requests, in order.

        Raises what ONNX Runtime raises.
        """
        if self._binds:
            return self._run_bound(requests, outputs)
        results = self._session.run(list(outputs), dict(joined(requests)), self._run_options())
        return dict(zip(outputs, results, strict=True))

    def _run_bound(self, requests: Sequence[Arrays], outputs: Sequence[str]) -> Arrays:
        rows = sum(len(next(iter(request.values()))) for request in requests)
        size = bucket(rows, self._plan.buckets)
        if size not in self._buffers:
            self._buffers[size] = _Buffers(self._session, self._signature, size, self._device, self._device_id)
        options = self._run_options()
        # A CUDA graph is captured for one set of addresses; this number tells ONNX Runtime which set.
        options.add_run_config_entry("gpu_graph_id", str(size))
        results = self._buffers[size].run(requests, outputs, options)
        # On a CPU these are views of the buffers, which the next batch overwrites.
        return {name: array[:rows].copy() for name, array in results.items()}

    def _run_options(self) -> onnxruntime.RunOptions:
        options = onnxruntime.RunOptions()
        for key, value in self._plan.run_entries.items():
            options.add_run_config_entry(key, value)
        return options


class DirectRunner:
    """Runs a session of another runtime than ONNX Runtime, without fixed buffers."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def run(self, requests: Sequence[Arrays], outputs: Sequence[str]) -> Arrays:
        """Run the model on the rows of all requests; return ``outputs`` with the rows of all requests, in order.

        Raises what the runtime raises.
        """
        return dict(zip(outputs, self._session.run(outputs, joined(requests)), strict=True))


class _Buffers:
    """Inputs and outputs on the device for one number of rows, at addresses that do not change between runs."""

    def __init__(
        self, session: onnxruntime.InferenceSession, signature: Signature, rows: int, device: str, device_id: int
    ) -> None:
        self._session = session
        self._binding = session.io_binding()
        # Requests are joined here and copied to the device at once. Padding rows keep the content of earlier requests;
        # their results are dropped.
        self._host = {tensor.name: np.zeros((rows, *tensor.shape[1:]), tensor.dtype) for tensor in signature.inputs}
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

    def run(self, requests: Sequence[Arrays], outputs: Sequence[str], options: onnxruntime.RunOptions) -> Arrays:
        for name, host in self._host.items():
            arrays = [request[name] for request in requests]
            np.concatenate(arrays, out=host[: sum(map(len, arrays))])
            self._inputs[name].update_inplace(host)
        self._session.run_with_iobinding(self._binding, options)
        return {name: self._outputs[name].numpy() for name in outputs}
