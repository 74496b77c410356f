"""NVIDIA's perf_analyzer against the ensemble and its steps: ``python -m benchmarks perf_analyzer``.

It finds the binary on PATH (it is there in Triton's SDK container), else takes it out of the last tritonclient wheel
that carries it and runs with Debian 12's glibc. The input file is made from the sample photos: for a STRING tensor
perf_analyzer wants the *serialised* element in base64, which is a little-endian length of 4 bytes, then the bytes.
"""

from __future__ import annotations

import argparse
import base64
import csv
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.harness.results import RESULTS, write_result
from preprocess_ensemble.contract import ENCODER
from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.imaging.decode import decode
from preprocess_ensemble.imaging.transform import PreprocessConfig, preprocess
from preprocess_ensemble.model_repository.config import installed_passport
from preprocess_ensemble.testing.sample_photos import write_thumbnails
from preprocess_ensemble.testing.server import QUIET, serving

WHEELS: Final = ("tritonclient==2.50.0", "nvidia-cuda-runtime-cu12")
"""The binary, and the CUDA library that it links to, GPU or not. tritonclient 2.60 and newer need glibc 2.38."""
UNSTABLE: Final = "stable measurement"
"""perf_analyzer gives no figures where its own windows differ too much, and says so in these words."""
UNPACKED: Final = Path("build") / "perf_analyzer"


class PerfAnalyzerMissing(ReportedError):
    """The binary is neither on PATH nor in a wheel that could be had, or cannot run here."""


def find_or_install() -> tuple[Path, dict[str, str]]:
    """Return the binary and the environment that it runs in."""
    on_path = shutil.which("perf_analyzer")
    if on_path is not None:
        return Path(on_path), dict(os.environ)
    binary = UNPACKED / "tritonclient-2.50.0.data" / "data" / "bin" / "perf_analyzer"
    if not binary.exists():
        _unpack_wheels()
    binary.chmod(0o755)
    libraries = UNPACKED / "nvidia" / "cuda_runtime" / "lib"
    environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries.resolve())}
    tried = subprocess.run([binary, "--version"], env=environment, capture_output=True, text=True, check=False)
    if "error while loading" in tried.stderr:
        reason = tried.stderr.strip().rsplit(": ", 3)
        raise PerfAnalyzerMissing(f"perf_analyzer cannot run: {': '.join(reason[1:])} (Debian: apt install libb64-0d)")
    return binary, environment


def _unpack_wheels() -> None:
    UNPACKED.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as downloads:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", downloads, *WHEELS]
        if subprocess.run(command, check=False).returncode:
            raise PerfAnalyzerMissing(
                "perf_analyzer is not on PATH, and pip could not download a wheel that carries it"
            )
        for wheel in Path(downloads).iterdir():
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(UNPACKED)


def write_input(path: Path, images: list[bytes]) -> None:
    """Write perf_analyzer's input file: one request of one row per image."""
    rows = [base64.b64encode(struct.pack("<I", len(image)) + image).decode() for image in images]
    path.write_text(json.dumps({"data": [{"image": {"content": {"b64": row}, "shape": [1]}} for row in rows]}))


def write_pixels(path: Path, images: list[bytes], repository: Path) -> None:
    """Write the input file of the encoder: what the first step makes of the images."""
    passport = installed_passport(repository)
    if passport is None:
        raise SystemExit(f"there is no model in {repository}: run clip-export")
    config = PreprocessConfig.from_mapping(passport.preprocess)
    rows = []
    for image in images:
        pixels = base64.b64encode(preprocess(decode(image), config).tobytes()).decode()
        rows.append({"pixels": {"content": {"b64": pixels}, "shape": [*config.size, 3]}, "status": [0]})
    path.write_text(json.dumps({"data": rows}))


def run(
    binary: Path,
    environment: dict[str, str],
    *,
    model: str,
    url: str,
    data: Path,
    concurrency: int,
    rows: int,
    requests: int = 50,
    stability_percent: int = 10,
) -> dict[str, float]:
    """Measure one model at one concurrency; return rows per second and latencies in milliseconds.

    Three windows of ``requests`` in a row must agree within ``stability_percent``; raises ``RuntimeError`` if ten
    windows did not.
    """
    with tempfile.TemporaryDirectory() as scratch:
        table = Path(scratch) / "latency.csv"
        command: list[str | Path] = [binary, "-m", model, "-u", url, "-i", "grpc", "-b", str(rows), "-f", table]
        command += ["--input-data", data, "--concurrency-range", str(concurrency)]
        if model != ENCODER:
            command += ["--shape", "image:1"]
        # Count windows: a time window of a slow model may hold too few requests to agree with the next one.
        command += [
            "--measurement-mode",
            "count_windows",
            "--measurement-request-count",
            str(max(requests, 4 * concurrency)),
        ]
        command += ["--stability-percentage", str(stability_percent)]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if not table.exists():
            raise RuntimeError(f"perf_analyzer failed on {model}: {(ran.stderr or ran.stdout).strip()[-500:]}")
        with table.open() as lines:
            (row,) = csv.DictReader(lines)
    return {
        "images_per_second": float(row["Inferences/Second"]),
        "p50_ms": float(row["p50 latency"]) / 1e3,
        "p99_ms": float(row["p99 latency"]) / 1e3,
        "queue_ms": float(row["Server Queue"]) / 1e3,
        "compute_ms": float(row["Server Compute Infer"]) / 1e3,
    }


def main() -> None:
    """Start a server unless one is named, measure, print, keep the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="gRPC address of a running server; without it one is started")
    parser.add_argument("--repository", type=Path, default=Path("triton_models"))
    parser.add_argument("--models", nargs="+", default=["clip_image", "clip_preprocess", ENCODER])
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rows", type=int, default=1, help="images per request")
    parser.add_argument("--requests", type=int, default=50, help="in a window, at least; three windows must agree")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    try:
        binary, environment = find_or_install()
    except PerfAnalyzerMissing as missing:
        sys.exit(str(missing))

    found = []
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        photos = scratch / "photos"
        write_thumbnails(photos)
        images = [path.read_bytes() for path in sorted(photos.iterdir())]
        data, pixels = scratch / "input.json", scratch / "pixels.json"
        write_input(data, images)
        if ENCODER in arguments.models:
            write_pixels(pixels, images, arguments.repository)
        url = arguments.url or stack.enter_context(serving(arguments.repository, *QUIET, "--open-statistics")).grpc_url
        for model in arguments.models:
            for concurrency in arguments.concurrency:
                with Console(stderr=True).status(f"{model}, concurrency {concurrency}"):
                    try:
                        figures = run(
                            binary,
                            environment,
                            model=model,
                            url=url,
                            data=pixels if model == ENCODER else data,
                            concurrency=concurrency,
                            rows=arguments.rows,
                            requests=arguments.requests,
                        )
                    except RuntimeError as error:
                        if UNSTABLE not in str(error):
                            raise
                        print(f"{model}, concurrency {concurrency}: no figures, its windows differed", file=sys.stderr)
                        continue
                found.append({"model": model, "concurrency": concurrency, **figures})

    if not found:
        sys.exit("perf_analyzer gave no figures at all, so nothing is kept; try again with more --requests")
    table = Table(title=f"perf_analyzer, sample photos of 256 pixels, {arguments.rows} to a request")
    for heading in ("model", "conc.", "images/s", "p50 ms", "p99 ms", "queue ms", "compute ms"):
        table.add_column(heading, justify="right", no_wrap=True)
    for line in found:
        table.add_row(*(f"{value:.1f}" if isinstance(value, float) else str(value) for value in line.values()))
    Console().print(table)
    print(f"kept in {write_result('perf_analyzer', {'rows': arguments.rows, 'figures': found}, arguments.results)}")


if __name__ == "__main__":
    main()
