"""Requests joined into batches, and batches padded up to the sizes of the captured CUDA graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preprocess_ensemble.backends.onnxruntime.batch import bucket, joined, runner_for, split
from preprocess_ensemble.backends.onnxruntime.model_config import ModelLoadError
from preprocess_ensemble.backends.onnxruntime.session import open_planned_session
from preprocess_ensemble.backends.onnxruntime.session_plan import plan_session
from preprocess_ensemble.backends.onnxruntime.signature import read_signature
from tests.fixtures.models import tiny_onnx
from tests.fixtures.models.tiny_onnx import accelerators, parameters

if TYPE_CHECKING:
    from pathlib import Path

    import onnxruntime

GRAPHS = accelerators("gpu", "cuda", enable_cuda_graph="1")


@pytest.fixture(scope="module")
def affine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_onnx.affine(tmp_path_factory.mktemp("repository") / "m" / "1" / "model.onnx")


@settings(deadline=None, max_examples=50, derandomize=True)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=6))
def test_split_undoes_joined(rows: list[int]) -> None:
    rng = np.random.default_rng(sum(rows))
    requests = [{"a": rng.random((count, 3)), "b": rng.integers(0, 9, (count, 1))} for count in rows]
    whole = joined(requests)
    for request, part in zip(requests, split(whole, rows), strict=True):
        for name in ("a", "b"):
            np.testing.assert_array_equal(part[name], request[name])
    assert len(requests) > 1 or whole["a"] is requests[0]["a"], "a single request is not copied"


def test_batches_are_padded_up_to_a_bucket_and_cut_again(affine: Path) -> None:
    """The path of a GPU, with CPU memory: the session only gets the bucket's number of rows, and callers theirs."""
    plan = plan_session({"max_batch_size": 8, **parameters(batch_buckets="2,4")}, kind="CPU", device_id=0)
    session: Any = Recorded(open_planned_session(affine, plan))
    runner = runner_for(session, read_signature(session.real), plan)
    assert session.rows == [2, 4, 8], "every bucket is ready before the first request"
    kept = []
    for rows in (8, 3, 1, 5, 4):
        requests = [{"x": np.full((1, 4), 10.0 * rows + n, np.float32)} for n in range(rows)]
        outputs = runner.run(requests, ["z", "y"])
        kept.append((np.concatenate([request["x"] for request in requests]), outputs))
    assert session.rows[3:] == [8, 4, 2, 8, 4]
    assert session.graphs == session.rows, "a graph is told by its number of rows"
    for x, outputs in kept:
        np.testing.assert_array_equal(outputs["y"], x * 2 + 1, "later batches leave earlier answers alone")
        np.testing.assert_array_equal(outputs["z"], -x)


class Recorded:
    """A session that records its inputs."""

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self.real = session
        self.rows: list[int] = []
        self.graphs: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def run_with_iobinding(self, binding: Any, options: onnxruntime.RunOptions) -> None:
        self.graphs.append(int(options.get_run_config_entry("gpu_graph_id")))
        self.real.run_with_iobinding(binding, options)
        self.rows.append(binding.get_outputs()[0].shape()[0])


@settings(deadline=None, max_examples=50, derandomize=True)
@given(st.integers(1, 64), st.integers(1, 64))
def test_buckets_hold_every_batch_and_waste_less_than_half(most: int, rows: int) -> None:
    plan = plan_session({"max_batch_size": most, **GRAPHS}, kind="GPU", device_id=0)
    assert plan.buckets[-1] == most
    if rows <= most:
        assert rows <= bucket(rows, plan.buckets) < 2 * rows or rows == 1
    else:
        assert bucket(rows, plan.buckets) == rows


@pytest.mark.parametrize(
    ("config", "kind", "buckets"),
    [
        (GRAPHS, "GPU", (1, 2, 4, 8, 16, 24)),
        (accelerators("gpu", "tensorrt", trt_cuda_graph_enable="true"), "GPU", (1, 2, 4, 8, 16, 24)),
        (accelerators("gpu", "cuda", enable_cuda_graph="0"), "GPU", ()),
        (accelerators("gpu", "cuda"), "GPU", ()),
        (GRAPHS, "CPU", ()),
        ({**GRAPHS, **parameters(batch_buckets="8,1")}, "GPU", (1, 8, 24)),
        (parameters(batch_buckets="24"), "CPU", (24,)),
    ],
)
def test_buckets_of_a_plan(config: dict[str, Any], kind: str, buckets: tuple[int, ...]) -> None:
    plan = plan_session({"max_batch_size": 24, **config}, kind=kind, device_id=0)
    assert plan.buckets == buckets
    assert plan.graphs == (kind == "GPU" and len(buckets) > 1)


@pytest.mark.parametrize("text", ["", "0", "25", "two", "1;2"])
def test_wrong_buckets_are_refused(text: str) -> None:
    with pytest.raises(ModelLoadError, match=r"batch_buckets must be numbers from 1 to max_batch_size \(24\)"):
        plan_session({"max_batch_size": 24, **parameters(batch_buckets=text)}, kind="CPU", device_id=0)


def test_a_bucket_that_cannot_run_fails_the_load(tmp_path: Path) -> None:
    file = tiny_onnx.gather(tmp_path / "model.onnx", table=())
    plan = plan_session({"max_batch_size": 2, **parameters(batch_buckets="1")}, kind="CPU", device_id=0)
    session = open_planned_session(file, plan)
    with pytest.raises(
        ModelLoadError, match=r"A batch of 1 cannot be run.*take enable_cuda_graph and batch_buckets out"
    ):
        runner_for(session, read_signature(session), plan)
