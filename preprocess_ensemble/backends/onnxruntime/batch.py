"""Run requests together, on a GPU in buffers at fixed addresses, padded to the number of rows of a CUDA graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnxruntime

from preprocess_ensemble.backends.onnxruntime.session_plan import ModelLoadError, SessionPlan
from preprocess_ensemble.backends.onnxruntime.signature import Signature
from preprocess_ensemble.errors import first_line
from preprocess_ensemble.runtimes.model import Session

_RUNS_UNTIL_CAPTURED: Final = 3  # two plain runs allocate the memory of a CUDA graph, and the third is captured

Arrays = Mapping[str, npt.NDArray[Any]]  # tensor name -> array


def joined(requests: Sequence[Arrays]) -> Arrays:
    """Join the rows of all requests, tensor by tensor; a single request without a copy."""
    if len(requests) == 1:
        return requests[0]
    return {name: np.concatenate([request[name] for request in requests]) for name in requests[0]}


def bucket(rows: int, buckets: Sequence[int]) -> int:
    """Return the smallest of ``buckets`` (ascending) that holds ``rows``; ``rows`` itself if none does."""
    return next((size for size in buckets if size >= rows), rows)


def split(outputs: Arrays, rows: Sequence[int]) -> list[Arrays]:
    """Split the outputs of joined requests into views with ``rows[i]`` rows for request ``i``."""
    return [
        {name: array[end - count : end] for name, array in outputs.items()}
        for count, end in zip(rows, np.cumsum(rows), strict=True)
    ]


class Runner:
    """Runs a session of any runtime; ``entries`` go into ONNX Runtime's options of each run."""

    def __init__(self, session: Session, entries: Mapping[str, str]) -> None:
        self._session = session
        self._options = _run_options(entries)

    def run(self, requests: Sequence[Arrays], outputs: Sequence[str]) -> Arrays:
        results = self._session.run(list(outputs), dict(joined(requests)), self._options)
        return dict(zip(outputs, results, strict=True))


class BufferedRunner:
    """Runs an ONNX Runtime session through buffers of its own, one set for each batch size.

    Call it from one thread only: ONNX Runtime keeps a captured CUDA graph with the thread that ran it. The constructor
    captures a graph for each batch size. Raises ``ModelLoadError``, for instance if the device has too little memory.
    """

    def __init__(self, session: onnxruntime.InferenceSession, signature: Signature, plan: SessionPlan) -> None:
        self._session, self._signature, self._plan = session, signature, plan
        self._buffers: dict[int, _Buffers] = {}
        for rows in plan.buckets:
            zeros = {tensor.name: np.zeros((rows, *tensor.shape[1:]), tensor.dtype) for tensor in signature.inputs}
            try:
                for _ in range(_RUNS_UNTIL_CAPTURED):
                    self.run([zeros], ())
            except Exception as error:  # ONNX Runtime's exceptions share no public base class.
                raise ModelLoadError(
                    f"A batch of {rows} cannot be run as a CUDA graph ({first_line(error)}): "
                    "remove enable_cuda_graph from config.pbtxt."
                ) from error

    def run(self, requests: Sequence[Arrays], outputs: Sequence[str]) -> Arrays:
        rows = sum(len(next(iter(request.values()))) for request in requests)
        size = bucket(rows, self._plan.buckets)
        if size not in self._buffers:
            self._buffers[size] = _Buffers(self._session, self._signature, self._plan, size)
        results = self._buffers[size].run(requests, outputs)
        # Copy the results: on a CPU they are views of the buffers, which the next batch overwrites.
        return {name: array[:rows].copy() for name, array in results.items()}


def runner_for(
    session: onnxruntime.InferenceSession, signature: Signature, plan: SessionPlan
) -> Runner | BufferedRunner:
    """Return the runner for a session of ONNX Runtime: with buffers on a GPU. Raises ``ModelLoadError``."""
    # Buffers exist for each number of rows, so all other sizes must be known.
    tensors = (*signature.inputs, *signature.outputs)
    known = all(tensor.shape[:1] == (-1,) and -1 not in tensor.shape[1:] for tensor in tensors)
    if known and _device(session, plan) != "cpu":
        return BufferedRunner(session, signature, plan)
    return Runner(session, plan.run_entries)


class _Buffers:
    """Inputs and outputs on the device for one number of rows, at addresses that do not change between runs."""

    def __init__(
        self, session: onnxruntime.InferenceSession, signature: Signature, plan: SessionPlan, rows: int
    ) -> None:
        self._session, self._binding = session, session.io_binding()
        # Number the set of addresses for ONNX Runtime, because a CUDA graph is captured for one set.
        self._options = _run_options({**plan.run_entries, "gpu_graph_id": str(rows)})
        # Requests are joined in this array and copied to the device at once. Padding rows keep the content of earlier
        # requests; their results are dropped.
        self._host = {tensor.name: np.zeros((rows, *tensor.shape[1:]), tensor.dtype) for tensor in signature.inputs}
        device, number = _device(session, plan), int(plan.providers[0].options.get("device_id", 0))
        self._inputs, self._outputs = (
            {
                tensor.name: onnxruntime.OrtValue.ortvalue_from_shape_and_type(
                    [rows, *tensor.shape[1:]], tensor.dtype, device, number
                )
                for tensor in tensors
            }
            for tensors in (signature.inputs, signature.outputs)
        )
        for name, value in self._inputs.items():
            self._binding.bind_ortvalue_input(name, value)
        for name, value in self._outputs.items():
            self._binding.bind_ortvalue_output(name, value)

    def run(self, requests: Sequence[Arrays], outputs: Sequence[str]) -> Arrays:
        for name, host in self._host.items():
            arrays = [request[name] for request in requests]
            np.concatenate(arrays, out=host[: sum(map(len, arrays))])
            self._inputs[name].update_inplace(host)
        self._session.run_with_iobinding(self._binding, self._options)
        return {name: self._outputs[name].numpy() for name in outputs}


def _device(session: onnxruntime.InferenceSession, plan: SessionPlan) -> str:
    return plan.device if plan.providers[0].name in session.get_providers() else "cpu"


def _run_options(entries: Mapping[str, str]) -> onnxruntime.RunOptions:
    options = onnxruntime.RunOptions()
    for key, value in entries.items():
        options.add_run_config_entry(key, value)
    return options
