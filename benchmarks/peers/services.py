"""Services other than Triton, each started for the length of a block."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from benchmarks.fixtures.repositories import BUILD, device
from benchmarks.fixtures.server import ServerDidNotStart, free_port

START_S: Final = 180.0
# infinity imports optimum's BetterTransformer, which refuses transformers 4.49 and newer, and a typer of its time; it
# reads images through aiohttp, which its extra ``server`` leaves out.
INFINITY: Final = (
    "infinity-emb[torch,server,vision]==0.0.78",
    "transformers<4.49",
    "optimum<1.25",
    "click<8.2",
    "aiohttp",
)


class Service(NamedTuple):
    """A service that runs."""

    url: str
    process_id: int


def infinity_python() -> Path:
    """The Python of infinity's environment, which is made if necessary."""
    directory = BUILD / "infinity"
    python = directory / "bin" / "python"
    stamp = directory / ".installed"
    if stamp.exists() and stamp.read_text() == repr(INFINITY):
        return python
    print(f"making {directory}: this takes minutes, once", file=sys.stderr)
    # Pip must not reach the terminal's standard output: that is where results go.
    for command in (
        (sys.executable, "-m", "venv", directory),
        (python, "-m", "pip", "install", "--quiet", *INFINITY),
    ):
        subprocess.run(command, check=True, stdout=sys.stderr)
    stamp.write_text(repr(INFINITY))
    return python


def plain_service(model: str, pretrained: str, *, max_batch: int = 32) -> AbstractContextManager[Service]:
    """PyTorch behind FastAPI (``peers.baseline``). ``max_batch`` 1 turns its batching off."""
    environment = {"CLIP_MODEL": model, "CLIP_PRETRAINED": pretrained, "CLIP_MAX_BATCH": str(max_batch)}
    if device() == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""  # or it would use a GPU that the other systems do not use
    return _running((sys.executable, "-m", "benchmarks.peers.baseline"), "/healthz", environment)


def onnx_service(repository: Path) -> AbstractContextManager[Service]:
    """ONNX Runtime behind FastAPI, one photo at a time, as Immich's service works (``peers.onnx_service``)."""
    command = (sys.executable, "-m", "benchmarks.peers.onnx_service", "--repository", str(repository))
    return _running(command, "/healthz")


def gateway(url: str, *, workers: int) -> AbstractContextManager[Service]:
    """clip-gateway in front of the Triton at this gRPC address."""
    options = ("--url", url, "--workers", str(workers))
    return _running((sys.executable, "-m", "clip_client.gateway.command", *options), "/health")


def infinity(model: str, pretrained: str) -> AbstractContextManager[Service]:
    """infinity in fp32 on the device of the other systems, with the same weights."""
    python = infinity_python()
    directory = _infinity_model(python, model, pretrained)
    options = ("--model-id", str(directory), "--served-model-name", "clip", "--engine", "torch", "--dtype", "float32")
    other = ("--device", device(), "--host", "127.0.0.1", "--log-level", "warning", "--no-model-warmup")
    environment = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0"}
    return _running((str(python.with_name("infinity_emb")), "v2", *options, *other), "/health", environment)


def _infinity_model(python: Path, model: str, pretrained: str) -> Path:
    """Convert the weights of open_clip's model for infinity, once."""
    import open_clip
    import torch

    from preprocess_ensemble.export.pytorch.open_clip_model import find_source, load_open_clip_model

    directory = BUILD / "infinity-pairs" / f"{Path(model).stem}-{pretrained.replace(':', '-')}"
    if (directory / "preprocessor_config.json").exists():
        return directory
    network = cast("Any", load_open_clip_model(find_source(model, pretrained)))
    directory.mkdir(parents=True, exist_ok=True)
    weights = directory / "open_clip.pt"
    tokenizer = open_clip.SimpleTokenizer()
    saved = {
        "config": open_clip.get_model_config(Path(model).stem),
        "state": network.state_dict(),
        "vocabulary": tokenizer.encoder,
        "merges": [" ".join(pair) for pair in tokenizer.bpe_ranks],
    }
    torch.save(saved, weights)
    script = Path(__file__).with_name("infinity_model.py")
    subprocess.run([python, script, weights, directory], check=True, stdout=sys.stderr)
    weights.unlink()
    return directory


@contextmanager
def _running(command: tuple[str, ...], health: str, environment: Mapping[str, str] | None = None) -> Iterator[Service]:
    """Run ``command`` on a free port, once the path ``health`` answers. Raises ServerDidNotStart."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [*command, "--port", str(port)], env={**os.environ, **(environment or {})}, stdout=sys.stderr
    )
    try:
        deadline = time.monotonic() + START_S
        while not _is_up(url + health):
            if process.poll() is not None or time.monotonic() > deadline:
                raise ServerDidNotStart(f"this did not start: {' '.join(command)}")
            time.sleep(0.2)
        yield Service(url, process.pid)
    finally:
        process.terminate()
        process.wait(timeout=60)


def _is_up(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except OSError:  # urllib's errors are OSErrors
        return False
