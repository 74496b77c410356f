"""Do two checkouts give the same pixels, vectors and groups?: ``python -m benchmarks compare_checkouts OLD NEW``.

Use it for a change that must not change results, such as a restructuring. Each checkout is used through its own
``.venv`` and its commands alone (``clip-export``, ``clip-serve``, ``clip-client``), so the two may differ inside.

Compared bit for bit, on the sample photos: the pixels that ``clip_preprocess`` returns, the vectors through a server
and through ``local:``, and the JSON of ``clip-client dedup``. Prints what differs; exit code 0 if nothing does.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tritonclient.grpc as triton

from preprocess_ensemble.contract import IMAGE, PIXELS, PREPROCESSOR, STATUS
from preprocess_ensemble.testing.sample_photos import write_with_copies
from preprocess_ensemble.testing.server import free_port
from preprocess_ensemble.testing.tiny_model import TINY_CLIP

if TYPE_CHECKING:
    from numpy.typing import NDArray

Results = dict[str, "NDArray[np.generic] | str"]


class Checkout:
    """One working copy with its environment, used through its console scripts."""

    def __init__(self, root: Path, scratch: Path) -> None:
        self.root = root.resolve()
        self.scratch = scratch
        self.repository = scratch / "triton_models"
        scratch.mkdir(parents=True)

    def command(self, name: str, *arguments: str) -> str:
        """Run a console script in a folder of its own and return its output."""
        script = self.root / ".venv" / "bin" / name
        done = subprocess.run([script, *arguments], cwd=self.scratch, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{script} {' '.join(arguments)}: exit code {done.returncode}\n{done.stderr}")
        return done.stdout

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Run this checkout's ``clip-serve`` for the length of a block; yields its gRPC address."""
        port = free_port()
        script = self.root / ".venv" / "bin" / "clip-serve"
        options = ("--repository", self.repository, "--grpc-port", str(port), "--metrics-port", str(free_port()))
        process = subprocess.Popen([script, *options], stdout=subprocess.PIPE, text=True, cwd=self.scratch)
        assert process.stdout is not None
        try:
            if not any(line.startswith("ready:") for line in process.stdout):
                raise SystemExit(f"{script} ended before it was ready")
            yield f"127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)

    def measure(self, photos: Path, model: str) -> Results:
        """Everything that must be equal, by name."""
        self.command("clip-export", "--model", model, "--pretrained", "random:0", "--repository", str(self.repository))
        local = f"local:{self.repository}"
        results: Results = {}
        with self.serving() as url:
            for path in sorted(photos.iterdir()):
                results[f"pixels of {path.name}"] = pixels(url, path.read_bytes())
            for transfer in ("thumbnail", "original"):
                results[f"vectors through the server, {transfer}"] = self._vectors(photos, url, transfer)
                results[f"vectors in process, {transfer}"] = self._vectors(photos, local, transfer)
            for name, where in (("the server", url), ("local:", local)):
                results[f"groups through {name}"] = self._groups(photos, where)
        return results

    def _vectors(self, photos: Path, url: str, transfer: str) -> NDArray[np.generic]:
        output = self.scratch / "vectors.npz"
        output.unlink(missing_ok=True)
        self.command("clip-client", "embed", str(photos), "--url", url, "--transfer", transfer, "--output", str(output))
        with np.load(output, allow_pickle=False) as kept:
            names = next(key for key in ("paths", "path") if key in kept)
            vectors = next(key for key in ("vectors", "vector") if key in kept)
            order = np.argsort([os.path.basename(os.fsdecode(path)) for path in kept[names]])
            return np.asarray(kept[vectors])[order]

    def _groups(self, photos: Path, url: str) -> str:
        output, store = self.scratch / "groups.json", self.scratch / "store"
        self.command("clip-client", "dedup", str(photos), "--url", url, "--json", str(output), "--store", str(store))
        # Times differ from run to run; everything else must be equal.
        return re.sub(r'"seconds": [0-9.]+', '"seconds": 0', output.read_text())


def pixels(url: str, image: bytes) -> NDArray[np.generic]:
    """Return what the preprocessing step makes of one file: (1, H, W, 3) uint8."""
    with triton.InferenceServerClient(url) as client:
        tensor = triton.InferInput(IMAGE, [1, 1], "BYTES")
        tensor.set_data_from_numpy(np.array([[image]], dtype=np.object_))
        outputs = [triton.InferRequestedOutput(name) for name in (PIXELS, STATUS)]
        return np.asarray(client.infer(PREPROCESSOR, [tensor], outputs=outputs).as_numpy(PIXELS))


def differences(old: Results, new: Results) -> list[str]:
    """Name the results that differ or exist on one side only."""

    def is_same(first: NDArray[np.generic] | str, second: NDArray[np.generic] | str) -> bool:
        if isinstance(first, str) or isinstance(second, str):
            return first == second
        return first.dtype == second.dtype and np.array_equal(first, second, equal_nan=first.dtype.kind == "f")

    one_sided = [f"{name}: only on one side" for name in sorted(old.keys() ^ new.keys())]
    both = sorted(old.keys() & new.keys())
    return one_sided + [f"{name}: differs" for name in both if not is_same(old[name], new[name])]


def main() -> int:
    """Compare; 0 if both give the same, bit for bit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks compare_checkouts", description=__doc__)
    parser.add_argument("old", type=Path, help="a checkout with its .venv")
    parser.add_argument("new", type=Path, help="another")
    parser.add_argument("--model", default=str(TINY_CLIP), help="open_clip name or config file (default: a small one)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        photos = Path(folder, "photos")
        write_with_copies(photos)
        sides = {name: Checkout(getattr(arguments, name), Path(folder, name)) for name in ("old", "new")}
        results = {name: side.measure(photos, arguments.model) for name, side in sides.items()}
        found = differences(results["old"], results["new"])
    for line in found:
        print(line)
    print(f"{len(results['old'])} results compared, {len(found)} differ")
    return int(bool(found))
