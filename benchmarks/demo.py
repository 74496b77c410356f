"""Which photos of a folder are duplicates? Exports a model, starts Triton and searches.

``make demo`` runs it. It does what a person would run by hand: clip-export, clip-serve, clip-client dedup.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Final

from rich.console import Console

from preprocess_ensemble.testing.sample_photos import write_with_copies
from preprocess_ensemble.testing.server import ServerDidNotStart, serving

OUTPUT: Final = Path("demo")
REPOSITORY: Final = Path("triton_models")
PRETRAINED: Final = "laion2b_s34b_b79k"
WITHOUT_WEIGHTS: Final = (
    "[yellow]No trained weights could be had, so the model has seeded random ones: the groups show only re-encoded and "
    "resized copies. With a network, or with a checkpoint file: clip-export --pretrained TAG|PATH --force[/yellow]"
)

console = Console(stderr=True)


def installed_model(repository: Path) -> str | None:
    """Return the id of the model that is exported already, or ``None``."""
    from preprocess_ensemble.model_repository.config import installed_passport

    passport = installed_passport(repository)
    return passport.id if passport else None


def export(repository: Path) -> None:
    """Export the default model; where its weights cannot be had, go on with seeded random ones and say so."""
    command = (sys.executable, "-m", "preprocess_ensemble.export.command", "--repository", str(repository))
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
    if installed_model(REPOSITORY) is None:
        console.print("model: exporting ViT-B-32 to ONNX, once")
        export(REPOSITORY)
    console.print(f"model: [bold]{installed_model(REPOSITORY)}[/bold]")
    console.print("server: starting Triton on loopback")
    try:
        with serving(REPOSITORY) as server:
            # A store of its own: a demo leaves nothing in the home directory.
            outputs = ["--json", str(OUTPUT / "groups.json"), "--report", str(OUTPUT / "report.html")]
            outputs += ["--store", str(OUTPUT / "store")]
            command = ("-m", "clip_client.cli.main", "dedup", str(photos), "--url", server.grpc_url, *outputs)
            found = subprocess.run([sys.executable, *command], check=False)
    except ServerDidNotStart:
        return 1  # clip-serve has said why
    return found.returncode


if __name__ == "__main__":
    sys.exit(main())
