"""What does NVIDIA's perf_analyzer measure for the ensemble and its steps?

The binary comes from PATH (Triton's SDK container has it), or else from the last tritonclient wheel that contains it
and runs with Debian 12's glibc. The input file holds the sample photos. For a STRING tensor perf_analyzer wants the
*serialised* element in base64: a little-endian length of 4 bytes, then the bytes.
"""

from __future__ import annotations

import base64
import csv
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.fixtures.bare_encoder import exact_pixels, preprocessing
from benchmarks.harness.experiment import REPOSITORY, Run, experiment, option
from benchmarks.harness.results import show
from benchmarks.harness.venvs import EnvironmentFailed, venv_python
from preprocess_ensemble.contract import ENCODER

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class Unstable(RuntimeError):
    """perf_analyzer gave no figures, because its windows differed too much."""


def find_or_install() -> tuple[Path, dict[str, str]]:
    """Return the binary and the environment that it runs in. Raises EnvironmentFailed."""
    on_path = shutil.which("perf_analyzer")
    if on_path is not None:
        return Path(on_path), dict(os.environ)
    binary = venv_python("perf_analyzer").with_name("perf_analyzer")
    (libraries,) = binary.parents[1].glob("lib/python*/site-packages/nvidia/cuda_runtime/lib")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries.resolve())}
    tried = subprocess.run([binary, "--version"], env=environment, capture_output=True, text=True, check=False)
    if "error while loading" in tried.stderr:
        reason = tried.stderr.strip().rsplit(": ", 3)
        raise EnvironmentFailed(f"perf_analyzer cannot run: {': '.join(reason[1:])} (Debian: apt install libb64-0d)")
    return binary, environment


def write_input(path: Path, images: list[bytes]) -> None:
    """Write perf_analyzer's input file: one request of one row per image."""
    rows = (_base64(struct.pack("<I", len(image)) + image, [1]) for image in images)
    path.write_text(json.dumps({"data": [{"image": row} for row in rows]}))


def write_pixels(path: Path, pixels: npt.NDArray[np.uint8]) -> None:
    """Write the input file of the encoder: one request of one row for each of the pixels (N, H, W, 3)."""
    rows = (_base64(image.tobytes(), list(image.shape)) for image in pixels)
    path.write_text(json.dumps({"data": [{"pixels": row, "status": [0]} for row in rows]}))


def _base64(content: bytes, shape: list[int]) -> dict[str, Any]:
    return {"content": {"b64": base64.b64encode(content).decode()}, "shape": shape}


def analyze(
    installed: tuple[Path, dict[str, str]],
    *,
    model: str,
    url: str,
    data: Path,
    concurrency: int,
    rows: int,
    requests: int = 50,
    stability_percent: int = 10,
) -> dict[str, float]:
    """Measure one model at one concurrency with what :func:`find_or_install` returned.

    Returns rows per second and latencies in milliseconds.

    Three windows of ``requests`` in a row must agree within ``stability_percent``; raises :class:`Unstable` if they
    do not within ten windows, and ``RuntimeError`` if perf_analyzer fails.
    """
    binary, environment = installed
    with tempfile.TemporaryDirectory() as scratch:
        table = Path(scratch) / "latency.csv"
        command: list[str | Path] = [binary, "-m", model, "-u", url, "-i", "grpc", "-b", str(rows), "-f", table]
        command += ["--input-data", data, "--concurrency-range", str(concurrency)]
        if model != ENCODER:
            command += ["--shape", "image:1"]
        # Count windows: a time window of a slow model may hold too few requests to agree with the next one.
        command += ["--measurement-mode", "count_windows"]
        command += ["--measurement-request-count", str(max(requests, 4 * concurrency))]
        command += ["--stability-percentage", str(stability_percent)]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if not table.exists():
            said = ran.stderr or ran.stdout
            if "stable measurement" in said:
                raise Unstable("no figures, its windows differed")
            raise RuntimeError(f"perf_analyzer failed on {model}: {said.strip()[-500:]}")
        with table.open() as lines:
            (row,) = csv.DictReader(lines)
    return {
        "images_per_second": float(row["Inferences/Second"]),
        "p50_ms": float(row["p50 latency"]) / 1e3,
        "p99_ms": float(row["p99 latency"]) / 1e3,
        "queue_ms": float(row["Server Queue"]) / 1e3,
        "compute_ms": float(row["Server Compute Infer"]) / 1e3,
    }


@experiment(
    option("--url", help="gRPC address of a running server (default: start one)"),
    REPOSITORY,
    option("--models", nargs="+", default=["clip_image", "clip_preprocess", ENCODER], help="of the server"),
    option("--concurrency", type=int, nargs="+", default=[1, 8, 32], help="requests in flight"),
    option("--rows", type=int, default=1, help="images per request"),
    option("--requests", type=int, default=50, help="least number in a window; three windows must agree"),
)
def measure(run: Run) -> dict[str, Any]:
    """Measure every model at every concurrency, on a new server unless one is named."""
    options = run.options
    try:
        installed = find_or_install()
    except EnvironmentFailed as missing:
        raise SystemExit(str(missing)) from missing
    data, pixels = run.scratch / "input.json", run.scratch / "pixels.json"
    write_input(data, run.files)
    if ENCODER in options.models:
        write_pixels(pixels, exact_pixels(run.files, preprocessing(options.repository)))
    url = options.url or run.serve(None, "--open-statistics").grpc_url
    common = {"url": url, "rows": options.rows, "requests": options.requests}
    found = []
    for model in options.models:
        for concurrency in options.concurrency:
            file = pixels if model == ENCODER else data
            try:
                figures = analyze(installed, model=model, data=file, concurrency=concurrency, **common)
            except Unstable as error:
                print(f"{model}, concurrency {concurrency}: {error}", file=sys.stderr)
            else:
                found.append({"model": model, "concurrency": concurrency, **figures})
    if not found:
        raise SystemExit("perf_analyzer gave no figures, so no result is written; try again with more --requests")
    rows = [[f"{value:.1f}" if isinstance(value, float) else str(value) for value in line.values()] for line in found]
    headings = ("model", "conc.", "images/s", "p50 ms", "p99 ms", "queue ms", "compute ms")
    show(f"perf_analyzer, sample photos of 256 pixels, {options.rows} per request", headings, rows)
    return {"rows": options.rows, "figures": found}
