"""Which photos of a folder are duplicates? Exports a model, starts Triton and searches.

``make demo`` runs it. It runs clip-export, clip-serve and clip-client dedup, as you would by hand.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from rich.console import Console

from benchmarks.fixtures.sample_photos import write_with_copies
from benchmarks.fixtures.server import ServerDidNotStart, serving
from clip_client._client import URL_VARIABLE
from preprocess_ensemble.model_repository.config import installed_passport

OUTPUT: Final = Path("demo")
REPOSITORY: Final = Path("triton_models")
PRETRAINED: Final = "laion2b_s34b_b79k"
WITHOUT_WEIGHTS: Final = (
    "[yellow]The trained weights are not available, so the model has seeded random ones: alignment proves copies, "
    "but crops and heavy edits may be missing. With a network or a checkpoint file: "
    "clip-export --pretrained TAG|PATH --force[/yellow]"
)

console = Console(stderr=True)


def export() -> None:
    command = (sys.executable, "-m", "preprocess_ensemble.export.command", "--repository", str(REPOSITORY))
    if subprocess.run([*command, "--pretrained", PRETRAINED], check=False).returncode == 0:
        return
    console.print(WITHOUT_WEIGHTS)
    subprocess.run([*command, "--pretrained", "random:0"], check=True)


def main() -> int:
    """Run the demo; return 0 when groups were written."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--photos", type=Path, help="folder of photos; without it, sample photos with copies are made")
    arguments = parser.parse_args()
    OUTPUT.mkdir(exist_ok=True)
    photos = arguments.photos
    if photos is None:
        photos = OUTPUT / "photos"
        if not photos.exists():
            write_with_copies(photos)
        console.print(f"photos: scikit-image's, with copies among them, in [bold]{photos}[/bold]")
    if installed_passport(REPOSITORY) is None:
        console.print("model: exporting ViT-B-32 to ONNX, once")
        export()
    if passport := installed_passport(REPOSITORY):
        console.print(f"model: [bold]{passport.id}[/bold]")
    console.print("server: starting Triton on loopback")
    try:
        with serving(REPOSITORY) as server:
            command = [sys.executable, "-m", "clip_client", "dedup", str(photos)]
            # The demo has a separate store, so that it leaves nothing in the home directory.
            for name, output in (("json", "groups.json"), ("report", "report.html"), ("store", "store")):
                command += [f"--{name}", str(OUTPUT / output)]
            # Not by --url: the page offers this command, and will be read when this server has ended.
            environment = {**os.environ, URL_VARIABLE: server.grpc_url}
            code = subprocess.run(command, check=False, env=environment).returncode
    except ServerDidNotStart:
        return 1  # clip-serve has said why
    if code == 0:
        console.print(f"open the page: {(OUTPUT / 'report.html').absolute().as_uri()}", soft_wrap=True)
    return code
