"""What do the pages look like? Makes the pictures of the README and the documentation.

Searches the sample photos with ``clip-client dedup`` and ``clip-client review``, as you would, and opens their pages in
Chromium. With random weights the pages say so.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from PIL import Image

from benchmarks.fixtures.sample_photos import write_with_copies

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page

MOST_BYTES: Final = 300_000
CLIENT: Final = (sys.executable, "-m", "clip_client.cli.main")


def main() -> None:
    """Make all pictures."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--repository", type=Path, default=Path("triton_models"), help="(default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path("docs/images"), help="folder (default: %(default)s)")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        write_with_copies(Path(folder, "Pictures"))
        own = {"CLIP_STORE": f"{folder}/store", "HOME": folder}
        # The commands on the page are those of a person who has installed the package.
        path = os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)))
        environment = {**os.environ, "PATH": path, "CLIP_URL": f"local:{arguments.repository.resolve()}", **own}
        search = (*CLIENT, "dedup", "Pictures", "--report", "report.html")
        subprocess.run(search, cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=True)
        review = (*CLIENT, "review", "Pictures", "--no-browser")
        with subprocess.Popen(review, cwd=folder, env=environment, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None, "it is a pipe"
            try:
                address = process.stdout.readline().decode().split()[-1]
                photograph(Path(folder), address.rstrip("/"), arguments.output)
            finally:
                process.send_signal(signal.SIGINT)


def photograph(folder: Path, review: str, output: Path) -> None:
    """Take the pictures of the report in ``folder``, and of the review of its photos at this address."""
    from playwright.sync_api import sync_playwright

    executable = shutil.which("chromium") or shutil.which("google-chrome")
    if executable is None:
        raise SystemExit("there is no Chromium: apt-get install chromium")
    page = (folder / "report.html").as_uri()
    # Words would show nothing with random weights.
    query = next(path for path in sorted((folder / "Pictures").rglob("*.*")) if "chelsea" in path.name)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, chromium_sandbox=os.geteuid() != 0)

        def shoot(address: str, name: str, height: int, act: Callable[[Page], None]) -> None:
            """Take one picture of the screen after ``act``, with at most 256 colours, which keeps it small."""
            view = browser.new_page(viewport={"width": 1280, "height": height}, color_scheme="light")
            view.goto(address)
            act(view)
            view.wait_for_load_state("networkidle")
            with Image.open(io.BytesIO(view.screenshot())) as picture:
                for colors in (256, 128, 64, 32):
                    few = picture.convert("RGB").quantize(colors, dither=Image.Dither.NONE)
                    few.save(output / name, optimize=True)
                    if (output / name).stat().st_size < MOST_BYTES:
                        break
            view.close()

        def search_by_photo(view: Page) -> None:
            view.locator("input[type=file]").set_input_files(query)
            view.wait_for_url("**photo=**")

        shoot(page, "report.png", 1000, lambda view: view.click(".chip:has-text('Re-encoded')"))
        shoot(page, "compare.png", 800, lambda view: view.click("figure:has-text('astronaut, sent by') a.mat"))
        shoot(review, "review.png", 1000, lambda view: view.click(".list a:has-text('2 copies') >> nth=0"))
        shoot(f"{review}/search", "search.png", 800, search_by_photo)
        browser.close()
