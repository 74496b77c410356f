"""What does NVIDIA's perf_analyzer measure for the ensemble and its preprocessor?

The program is that of PATH (Triton's SDK image has it), or else of PyPI, where it needs glibc 2.38. With an older one,
``--root`` names a folder with a newer system, in which it runs; root makes it with ``mmdebstrap --variant=minbase
--include=ca-certificates,libcurl4t64 trixie DIR``. The input file holds the photos. For a STRING tensor perf_analyzer
wants the *serialised* element in base64: a little-endian length of 4 bytes, then the bytes.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Final

from benchmarks.fixtures.repositories import BUILD
from benchmarks.harness.experiment import PHOTOS, REPOSITORY, Run, experiment, option, say
from benchmarks.harness.results import show

_WHEEL: Final = "perf-analyzer==2.60.0"
_COLUMNS: Final = {
    "p50_ms": "p50 latency", "p99_ms": "p99 latency", "queue_ms": "Server Queue", "compute_ms": "Server Compute Infer",
}  # fmt: skip
"""Microseconds in the table that perf_analyzer writes."""
_PLATFORM: Final = ("--platform", "manylinux_2_38_x86_64", "--only-binary", ":all:", "--no-deps")


def program() -> Path:
    """perf_analyzer of PATH, or else of PyPI, which is downloaded once."""
    if on_path := shutil.which("perf_analyzer"):
        return Path(on_path)
    if not (installed := BUILD / "perf_analyzer").exists():
        with tempfile.TemporaryDirectory() as folder:
            command = (sys.executable, "-m", "pip", "download", "--quiet", *_PLATFORM, "--dest", folder, _WHEEL)
            subprocess.run(command, check=True, stdout=sys.stderr)
            (wheel,) = Path(folder).iterdir()
            BUILD.mkdir(exist_ok=True)
            installed.write_bytes(zipfile.ZipFile(wheel).read("perf_analyzer/bin/perf_analyzer"))
        installed.chmod(0o755)
    return installed


def input_file(images: list[bytes]) -> str:
    """perf_analyzer's input: one request of one row for each image."""
    rows = [base64.b64encode(struct.pack("<I", len(image)) + image).decode() for image in images]
    return json.dumps({"data": [{"image": {"content": {"b64": row}, "shape": [1]}} for row in rows]})


def analyze(folder: Path, model: str, concurrency: int, url: str, requests: int, root: Path | None) -> dict[str, Any]:
    """Return rows a second, and milliseconds; nothing if three windows did not agree. Exit if perf_analyzer fails."""
    inside = folder if root is None else Path("/", folder.relative_to(root))
    command: list[str | Path] = [] if root is None else ["chroot", root]
    command += [inside / "perf_analyzer", "-m", model, "-u", url, "-i", "grpc", "-f", inside / "latency.csv"]
    command += ["--input-data", inside / "input.json", "--shape", "image:1", "--concurrency-range", str(concurrency)]
    # A window of time of a slow model may hold too few requests to agree with the next one.
    command += ["--measurement-mode", "count_windows", "--stability-percentage", "20"]
    command += ["--measurement-request-count", str(max(requests, 4 * concurrency))]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    table = folder / "latency.csv"
    if not table.exists():
        said = (ran.stderr or ran.stdout).strip()
        if "stable measurement" not in said:
            raise SystemExit(f"perf_analyzer failed on {model}: {said[-500:]}")
        say(f"{model}, concurrency {concurrency}: no figures, because the windows differed")
        return {}
    (row,) = csv.DictReader(io.StringIO(table.read_text(encoding="utf-8")))
    table.unlink()
    ms = {name: float(row[column]) / 1e3 for name, column in _COLUMNS.items()}
    return {"images_per_second": float(row["Inferences/Second"]), **ms}


@experiment(
    REPOSITORY,
    PHOTOS,
    option("--root", type=Path, metavar="DIR", help="folder of a newer system to run perf_analyzer in"),
    option("--concurrency", type=int, nargs="+", default=[1, 8, 32], help="requests in flight"),
    option("--requests", type=int, default=50, help="least number in a window; three windows must agree within 20 %%"),
)
def measure(run: Run) -> dict[str, Any]:
    options = run.options
    root = options.root and options.root.resolve()
    folder = Path(run.stack.enter_context(tempfile.TemporaryDirectory(dir=root and root / "tmp")))
    shutil.copy(program(), folder / "perf_analyzer")
    (folder / "input.json").write_text(input_file(run.files), encoding="ascii")
    url = run.serve(None, "--open-statistics").grpc_url
    found = {
        f"{model} x{concurrency}": analyze(folder, model, concurrency, url, options.requests, root)
        for model in ("clip_image", "clip_preprocess")
        for concurrency in options.concurrency
    }
    show("perf_analyzer, one image a request", found)
    return {"model": run.passport.id, "figures": found}
