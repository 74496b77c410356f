"""How fast is this machine without a model? ``python -m benchmarks peak_throughput --device cpu``.

Matrix products and copies alone, through ONNX Runtime. No program reaches the peak of a data sheet, so a model's
kernels are compared with these. Each of the two models has one node and is written byte by byte, without ``onnx``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.harness.results import write_result

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt
    import onnxruntime

SIDES: Final = {"cuda": 8192, "cpu": 1536}
"""Of the square matrices: 1.1 TFLOP and 7 GFLOP a product. On two cores of a CPU 1024 and 2048 were slower."""
COPIED_BYTES: Final = {"cuda": 2**30, "cpu": 2**28}
"""Size of the array that is read, far above that of any cache; the same amount is written."""
KINDS: Final[Mapping[str, tuple[str, ...]]] = {"cuda": ("fp16", "tf32", "fp32"), "cpu": ("fp32",)}
LEAST_RUNS: Final = 5
FLOAT, FLOAT16 = 1, 10  # TensorProto.DataType
_OPSET, _IR = 17, 8


def _field(number: int, content: bytes | int) -> bytes:
    """One field of a protobuf message: a number, or bytes with their length before them."""
    if isinstance(content, int):
        return _varint(number << 3) + _varint(content)
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    head, rest = value & 0x7F, value >> 7
    return bytes([head | 0x80]) + _varint(rest) if rest else bytes([head])


def one_node(operator: str, inputs: Sequence[str], element: int, weight: npt.NDArray[Any] | None = None) -> bytes:
    """An ONNX model of a single node, matrices in and a matrix ``y`` out; field numbers are those of ``onnx.proto``.

    ``weight`` makes the last input a constant, like the weights of a model. A runtime may then choose its layout once;
    without that, models would exceed the measured peak.
    """

    def matrix(name: str) -> bytes:
        shape = b"".join(_field(1, _field(2, f"{name}{axis}".encode())) for axis in range(2))
        return _field(1, name.encode()) + _field(2, _field(1, _field(1, element) + _field(2, shape)))

    given = inputs if weight is None else inputs[:-1]
    constant = b"" if weight is None else _field(5, _constant(inputs[-1], element, weight))
    node = b"".join(_field(1, name.encode()) for name in inputs) + _field(2, b"y") + _field(4, operator.encode())
    values = constant + b"".join(_field(11, matrix(name)) for name in given) + _field(12, matrix("y"))
    graph = _field(1, node) + _field(2, operator.encode()) + values
    return _field(1, _IR) + _field(7, graph) + _field(8, _field(1, b"") + _field(2, _OPSET))


def _constant(name: str, element: int, values: npt.NDArray[Any]) -> bytes:
    """A TensorProto."""
    dims = b"".join(_field(1, side) for side in values.shape)
    return dims + _field(2, element) + _field(8, name.encode()) + _field(9, values.tobytes())


def opened(model: bytes, device: str, *, tf32: bool = False) -> onnxruntime.InferenceSession:
    """Open a session as the server's backend does. Raises ``ModelLoadError`` if CUDA is wanted and does not start."""
    from preprocess_ensemble.backends.onnxruntime.session import open_session
    from preprocess_ensemble.backends.onnxruntime.session_plan import plan_session

    accelerators = [{"name": "cuda", "parameters": {"use_tf32": str(int(tf32))}}]
    config = {"optimization": {"execution_accelerators": {"gpu_execution_accelerator": accelerators}}}
    plan = plan_session(config, kind="GPU" if device == "cuda" else "CPU", device_id=0)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "model.onnx"
        path.write_bytes(model)
        return open_session(path, plan)


def seconds_a_run(
    session: onnxruntime.InferenceSession, inputs: Mapping[str, Any], device: str, seconds: float
) -> list[float]:
    """Seconds of each run for about ``seconds``, after two warm-up runs; all arrays stay on the device."""
    import onnxruntime

    binding = session.io_binding()
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array, device, 0) for name, array in inputs.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    # Inputs are square, so the output is as large as each of them.
    first = next(iter(inputs.values()))
    result = onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(first.shape), first.dtype, device, 0)
    binding.bind_ortvalue_output("y", result)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < LEAST_RUNS + 2 or time.perf_counter() < end:
        then = time.perf_counter()
        session.run_with_iobinding(binding)
        times.append(time.perf_counter() - then)
    return times[2:]


def measure(device: str, seconds: float, *, side: int | None = None, copied_bytes: int | None = None) -> dict[str, Any]:
    """GFLOP/s of matrix products by data type, and GB/s read and written: the best and the median run of each."""
    side = side or SIDES[device]
    random = np.random.default_rng(1)
    left, right = (random.standard_normal((side, side), np.float32) for _ in range(2))
    products = {}
    for kind in KINDS[device]:
        element, numbers = (FLOAT16, np.float16) if kind == "fp16" else (FLOAT, np.float32)
        session = opened(one_node("MatMul", "ab", element, right.astype(numbers)), device, tf32=kind == "tf32")
        times = seconds_a_run(session, {"a": left.astype(numbers)}, device, seconds)
        products[kind] = _rates(2 * side**3 / 1e9, times)
    rows = (copied_bytes or COPIED_BYTES[device]) // 4 // 4096
    array = np.ones((rows, 4096), np.float32)
    times = seconds_a_run(opened(one_node("Neg", "a", FLOAT), device), {"a": array}, device, seconds)
    return {"side": side, "product_gflops": products, "memory_gb_s": _rates(2 * array.nbytes / 1e9, times)}


def _rates(work: float, times: Sequence[float]) -> dict[str, float]:
    return {"best": work / min(times), "median": work / statistics.median(times), "runs": len(times)}


def main() -> int:
    """Measure and print one line of JSON; 1 and one sentence if the device cannot be used."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=tuple(SIDES), required=True)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each kind of product (default: %(default)s)")
    parser.add_argument("--check", action="store_true", help="run one small product and report only whether it ran")
    parser.add_argument("--results", type=Path, help="also keep the result as JSON in this folder")
    arguments = parser.parse_args()
    from preprocess_ensemble.backends.onnxruntime.model_config import ModelLoadError

    try:
        if arguments.check:
            two = np.full((2, 2), 2.0, np.float32)
            session = opened(one_node("MatMul", "ab", FLOAT), arguments.device)
            (product,) = session.run(["y"], {"a": two, "b": two})
            return int(not (product == 8).all())
        found = measure(arguments.device, arguments.seconds)
    except ModelLoadError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(found))
    if arguments.results:
        write_result("peak_throughput", {"device": arguments.device, "summary": found}, arguments.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
