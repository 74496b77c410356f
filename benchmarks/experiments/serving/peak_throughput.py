"""How fast is this machine without a model? ``python -m benchmarks peak_throughput --device cpu``.

Matrix products and copies alone, through ONNX Runtime. No program reaches the peak of a data sheet, so a model's
kernels are compared with these.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper, numpy_helper

from benchmarks.harness.experiment import Run, experiment, option, seconds

if TYPE_CHECKING:
    import onnxruntime

SIDES: Final = {"cuda": 8192, "cpu": 1536}
"""Of the square matrices: 1.1 TFLOP and 7 GFLOP a product. On two cores of a CPU 1024 and 2048 were slower."""
COPIED_BYTES: Final = {"cuda": 2**30, "cpu": 2**28}
"""Size of the array that is read, far above that of any cache; the same amount is written."""
KINDS: Final[Mapping[str, tuple[str, ...]]] = {"cuda": ("fp16", "tf32", "fp32"), "cpu": ("fp32",)}
FLOAT, FLOAT16 = TensorProto.FLOAT, TensorProto.FLOAT16


def one_node(operator: str, inputs: Sequence[str], element: int, weight: npt.NDArray[Any] | None = None) -> bytes:
    """An ONNX model of a single node, matrices of ``element`` in and a matrix ``y`` out.

    ``weight`` makes the last input a constant, like the weights of a model. A runtime may then choose its layout once;
    without that, models would exceed the measured peak.
    """
    given = inputs if weight is None else inputs[:-1]
    constants = [] if weight is None else [numpy_helper.from_array(weight, inputs[-1])]
    matrices = {name: helper.make_tensor_value_info(name, element, [f"{name}0", f"{name}1"]) for name in (*given, "y")}
    node = helper.make_node(operator, list(inputs), ["y"])
    graph = helper.make_graph([node], operator, [matrices[name] for name in given], [matrices["y"]], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    content: bytes = model.SerializeToString()
    return content


def opened(
    folder: Path,
    model: bytes,
    device: str,
    accelerator: Mapping[str, str] | None = None,
    parameters: Mapping[str, str] | None = None,
) -> Any:
    """Open a session as the server's backend does, with ``parameters`` of an execution accelerator and of the model.

    ``device`` is ``cpu`` or the name of the accelerator. The model is kept in ``folder``. Raises ``ModelLoadError`` if
    the device cannot be used.
    """
    from preprocess_ensemble.backends.onnxruntime.session import open_session, select_model
    from preprocess_ensemble.backends.onnxruntime.session_plan import plan_session

    config: dict[str, Any] = {"parameters": {key: {"string_value": text} for key, text in (parameters or {}).items()}}
    kind = "gpu" if device in ("cuda", "tensorrt") else "cpu"
    if device != "cpu":
        accelerators = [{"name": device, "parameters": dict(accelerator or {})}]
        config["optimization"] = {"execution_accelerators": {f"{kind}_execution_accelerator": accelerators}}
    path = folder / "model.onnx"
    path.write_bytes(model)
    plan = plan_session(config, kind=kind.upper(), device_id=0)
    session = open_session(path, plan)
    return select_model(session, path, plan).model.session if device == "openvino" else session


def bound_run(
    session: onnxruntime.InferenceSession,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, tuple[Sequence[int], Any]],
    device: str,
    *,
    graph: str = "-1",
) -> tuple[Callable[[], None], dict[str, onnxruntime.OrtValue]]:
    """A run with arrays that stay on the device, and the arrays: ``inputs``, and name -> shape and dtype of outputs.

    ``graph`` is the number of its CUDA graph; -1 means no graph.
    """
    import onnxruntime

    binding = session.io_binding()
    values = {}
    for name, array in inputs.items():
        values[name] = onnxruntime.OrtValue.ortvalue_from_numpy(array, device, 0)
        binding.bind_ortvalue_input(name, values[name])
    for name, (shape, dtype) in outputs.items():
        values[name] = onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(shape), dtype, device, 0)
        binding.bind_ortvalue_output(name, values[name])
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("gpu_graph_id", graph)
    return lambda: session.run_with_iobinding(binding, options), values


def timed(run: Callable[[], object], seconds: float, *, warm_up: int, least: int, most: int) -> list[float]:
    """Seconds of each run, for about ``seconds`` and ``least`` to ``most`` runs, after ``warm_up`` runs."""
    for _ in range(warm_up):
        run()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < least or (time.perf_counter() < end and len(times) < most):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return times


def peaks(
    folder: Path, device: str, seconds: float, *, side: int | None = None, copied_bytes: int | None = None
) -> dict[str, Any]:
    """GFLOP/s of matrix products by data type, and GB/s read and written: the best and the median run of each.

    The models are kept in ``folder``. Raises ``ModelLoadError`` if the device cannot be used.
    """

    def rates(model: bytes, array: npt.NDArray[Any], work: float, *, tf32: bool = False) -> dict[str, float]:
        session = opened(folder, model, device, {"use_tf32": str(int(tf32))})
        # Weights are square, so the output is as large as the input.
        run, _ = bound_run(session, {"a": array}, {"y": (array.shape, array.dtype)}, device)
        times = timed(run, seconds, warm_up=2, least=5, most=10**6)
        return {"best": work / min(times), "median": work / statistics.median(times), "runs": len(times)}

    side = side or SIDES[device]
    random = np.random.default_rng(1)
    left, right = (random.standard_normal((side, side), np.float32) for _ in range(2))
    products = {}
    for kind in KINDS[device]:
        element, numbers = (FLOAT16, np.float16) if kind == "fp16" else (FLOAT, np.float32)
        model = one_node("MatMul", "ab", element, right.astype(numbers))
        products[kind] = rates(model, left.astype(numbers), 2 * side**3 / 1e9, tf32=kind == "tf32")
    array = np.ones(((copied_bytes or COPIED_BYTES[device]) // 4 // 4096, 4096), np.float32)
    copied = rates(one_node("Neg", "a", FLOAT), array, 2 * array.nbytes / 1e9)
    return {"side": side, "product_gflops": products, "memory_gb_s": copied}


@experiment(
    option("--device", choices=tuple(SIDES), required=True),
    seconds(1.0, "of each kind of product"),
    option("--check", action="store_true", help="run one small product and report only whether it ran"),
)
def measure(run: Run) -> dict[str, Any]:
    """Measure and print one line of JSON; exits with one sentence if the device cannot be used."""
    from preprocess_ensemble.backends.onnxruntime.model_config import ModelLoadError

    device = run.options.device
    try:
        if run.options.check:
            two = np.full((2, 2), 2.0, np.float32)
            session = opened(run.scratch, one_node("MatMul", "ab", FLOAT), device)
            (product,) = session.run(["y"], {"a": two, "b": two})
            raise SystemExit(int(not (product == 8).all()))
        found = peaks(run.scratch, device, run.options.seconds)
    except ModelLoadError as error:
        raise SystemExit(str(error)) from error
    print(json.dumps(found))
    return {"device": device, "summary": found}
