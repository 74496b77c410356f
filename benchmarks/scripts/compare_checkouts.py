"""Do two checkouts give the same pixels, vectors and groups?: ``python -m benchmarks compare_checkouts OLD NEW``.

Use it for a change that must not change results, such as a restructuring. Each checkout is used through its own
``.venv`` and its commands alone, so the two may differ inside. Compared bit for bit, on the sample photos: the pixels
that ``clip_preprocess`` returns, the vectors through a server and through ``local:``, and the JSON of ``dedup``.
"""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton

from benchmarks.fixtures.sample_photos import write_with_copies
from benchmarks.fixtures.server import TINY_CLIP, free_port
from preprocess_ensemble.contract import IMAGE, PIXELS, PREPROCESSOR


def measure(root: Path, scratch: Path, photos: Path, model: str) -> dict[str, bytes]:
    """Return everything that must be equal, by name; exits if a command of the checkout fails."""
    scratch.mkdir()
    scripts, repository, port = root.resolve() / ".venv" / "bin", scratch / "triton_models", free_port()

    def run(name: str, *arguments: str | Path) -> None:
        done = subprocess.run([scripts / name, *arguments], cwd=scratch, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{scripts / name}: exit code {done.returncode}\n{done.stderr}")

    run("clip-export", "--model", model, "--pretrained", "random:0", "--repository", repository)
    ports = ("--grpc-port", str(port), "--metrics-port", str(free_port()))
    command: list[str | Path] = [scripts / "clip-serve", "--repository", repository, *ports]
    results = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=scratch) as server:
        assert server.stdout is not None, "it is a pipe"
        try:
            if not any(line.startswith("ready:") for line in server.stdout):
                raise SystemExit(f"{command[0]} ended before it was ready")
            for path in sorted(photos.iterdir()):
                results[f"pixels of {path.name}"] = pixels(f"127.0.0.1:{port}", path.read_bytes())
            for url in (f"127.0.0.1:{port}", f"local:{repository}"):
                place = url.partition(":")[0]
                for transfer in ("thumbnail", "original"):
                    vectors = scratch / f"{place}-{transfer}.npz"
                    run("clip-client", "embed", photos, "--url", url, "--transfer", transfer, "--output", vectors)
                    with np.load(vectors, allow_pickle=False) as kept:
                        order = np.argsort([bytes(path) for path in np.char.encode(kept["paths"].astype(str), "utf-8")])
                        results[f"vectors, {place}, {transfer}"] = kept["vectors"][order].tobytes()
                groups = scratch / f"{place}.json"
                run("clip-client", "dedup", photos, "--url", url, "--json", groups, "--store", scratch / place)
                # Times differ from run to run; everything else must be equal.
                results[f"groups, {place}"] = re.sub(rb'"seconds": [0-9.]+', b'"seconds": 0', groups.read_bytes())
        finally:
            server.send_signal(signal.SIGINT)
    return results


def pixels(url: str, image: bytes) -> bytes:
    """Return what the preprocessing step makes of one file."""
    with triton.InferenceServerClient(url) as client:
        tensor = triton.InferInput(IMAGE, [1, 1], "BYTES")
        tensor.set_data_from_numpy(np.array([[image]], dtype=np.object_))
        outputs = [triton.InferRequestedOutput(name) for name in (PIXELS, "status")]
        return bytes(client.infer(PREPROCESSOR, [tensor], outputs=outputs).as_numpy(PIXELS))


def main() -> int:
    """Print what differs; 0 if nothing does."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks compare_checkouts", description=__doc__)
    parser.add_argument("old", type=Path, help="a checkout with its .venv")
    parser.add_argument("new", type=Path, help="another")
    parser.add_argument("--model", default=str(TINY_CLIP), help="open_clip name or config file (default: a small one)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        photos = Path(folder, "photos")
        write_with_copies(photos)
        old, new = (
            measure(root, Path(folder, name), photos, arguments.model)
            for name, root in (("old", arguments.old), ("new", arguments.new))
        )
    found = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    for name in found:
        print(f"{name}: differs")
    print(f"{len(old)} results compared, {len(found)} differ")
    return int(bool(found))
