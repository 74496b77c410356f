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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from preprocess_ensemble.testing.sample_photos import write_with_copies

if TYPE_CHECKING:
    from playwright.sync_api import Browser

IMAGES: Final = Path("docs/images")
MOST_BYTES: Final = 300_000
SEARCH: Final = ("dedup", "Pictures", "--report", "report.html")


def main() -> int:
    """Make all pictures; return the exit code."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--repository", type=Path, default=Path("triton_models"), help="(default: %(default)s)")
    parser.add_argument("--output", type=Path, default=IMAGES, help="folder (default: %(default)s)")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_with_copies(folder / "Pictures")
        search(folder, arguments.repository.resolve())
        with reviewed(folder, arguments.repository.resolve()) as address:
            photograph(folder / "report.html", address, arguments.output)
    for path in sorted(arguments.output.iterdir()):
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")
    return 0


def environment(folder: Path, repository: Path) -> dict[str, str]:
    """Return the environment of a command whose home and store are in ``folder``."""
    return {
        **os.environ,
        "CLIP_URL": f"local:{repository}",
        "CLIP_STORE": str(folder / "store"),
        "HOME": str(folder),
        # The commands on the page are those of a person who has installed the package.
        "PATH": os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath))),
    }


@contextmanager
def reviewed(folder: Path, repository: Path) -> Iterator[str]:
    """Run ``clip-client review``; yield the address that it prints."""
    command = [sys.executable, "-m", "clip_client.cli.main", "review", "Pictures", "--no-browser"]
    with subprocess.Popen(command, cwd=folder, env=environment(folder, repository), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None, "it is a pipe"
        try:
            yield process.stdout.readline().decode().split()[-1]
        finally:
            process.send_signal(signal.SIGINT)


def search(folder: Path, repository: Path) -> None:
    """Search ``Pictures`` in ``folder``, and write the report page beside it."""
    command = [sys.executable, "-m", "clip_client.cli.main", *SEARCH]
    subprocess.run(command, cwd=folder, env=environment(folder, repository), stdout=subprocess.DEVNULL, check=True)


def photograph(page: Path, review: str, output: Path) -> None:
    """Take the pictures of the report page, and of the review at this address."""
    from playwright.sync_api import sync_playwright

    executable = shutil.which("chromium") or shutil.which("google-chrome")
    if executable is None:
        raise SystemExit("there is no Chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, chromium_sandbox=os.geteuid() != 0)
        shoot(browser, page.as_uri(), output / "report.png", (1280, 1000), click=".chip:has-text('Re-encoded')")
        photo = "figure:has-text('astronaut, sent by') a.mat"
        shoot(browser, page.as_uri(), output / "compare.png", (1280, 800), click=photo)
        shoot(browser, review, output / "review.png", (1280, 1000), click=".list a:has-text('2 copies') >> nth=0")
        browser.close()


def shoot(browser: Browser, address: str, output: Path, size: tuple[int, int], *, click: str) -> None:
    """Take one picture of the screen, with at most 256 colours, which keeps it small."""
    from PIL import Image

    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme="light")
    view = context.new_page()
    view.goto(address)
    view.locator(click).click()
    view.wait_for_load_state("networkidle")
    with Image.open(io.BytesIO(view.screenshot())) as picture:
        for colors in (256, 128, 64, 32):
            picture.convert("RGB").quantize(colors, dither=Image.Dither.NONE).save(output, optimize=True)
            if output.stat().st_size < MOST_BYTES:
                break
    context.close()
