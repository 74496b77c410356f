"""What do the report page and the terminal look like? Makes the pictures of the README and the documentation.

Searches the sample photos with ``clip-client dedup``, as you would, and opens the page in Chromium. With random weights
the page and the terminal say so.
"""

from __future__ import annotations

import argparse
import io
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.text import Text

from preprocess_ensemble.testing.sample_photos import write_with_copies

if TYPE_CHECKING:
    from playwright.sync_api import Browser

IMAGES: Final = Path("docs/images")
MOST_BYTES: Final = 300_000
COLUMNS: Final = 100
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
        printed = search(folder, arguments.repository.resolve())
        (arguments.output / "terminal.svg").write_text(as_svg(printed), encoding="utf-8")
        photograph(folder / "report.html", arguments.output)
    for path in sorted(arguments.output.iterdir()):
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")
    return 0


def search(folder: Path, repository: Path) -> str:
    """Search ``Pictures`` in ``folder`` on a pseudo-terminal; return what was printed, with colours."""
    environment = {
        **os.environ,
        "CLIP_URL": f"local:{repository}",
        "CLIP_STORE": str(folder / "store"),
        "COLUMNS": str(COLUMNS),
        "HOME": str(folder),
        "TERM": "xterm-256color",
    }
    ours, terminal = pty.openpty()
    command = [sys.executable, "-m", "clip_client.cli.main", *SEARCH]
    # Progress goes to standard error; it would draw over the lines.
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=terminal, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    os.close(terminal)
    printed = b""
    with open(ours, "rb", buffering=0) as lines:
        while True:
            try:
                piece = lines.read(65_536)
            except OSError:  # the other end of a pseudo-terminal is closed
                break
            if not piece:
                break
            printed += piece
    _, errors = process.communicate()
    if process.returncode:
        raise SystemExit(errors.decode(errors="replace"))
    return printed.decode().replace("\r\n", "\n")


def as_svg(printed: str) -> str:
    """Draw what a terminal showed."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text(f"$ clip-client {' '.join(SEARCH)}", style="bold"))
    console.print(Text.from_ansi(printed.rstrip()))
    # The fonts that rich names would be fetched from the internet.
    return re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title="clip-client"), flags=re.DOTALL)


def photograph(page: Path, output: Path) -> None:
    """Take the pictures of the report page."""
    from playwright.sync_api import sync_playwright

    executable = shutil.which("chromium") or shutil.which("google-chrome")
    if executable is None:
        raise SystemExit("there is no Chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, chromium_sandbox=os.geteuid() != 0)
        shoot(browser, page, output / "report.png", (1280, 1000), click=".chip:has-text('Near-identical')")
        shoot(browser, page, output / "compare.png", (1280, 800), click="figure:has-text('astronaut, sent by') a.mat")
        browser.close()


def shoot(browser: Browser, page: Path, output: Path, size: tuple[int, int], *, click: str) -> None:
    """Take one picture of the screen, with at most 256 colours, which keeps it small."""
    from PIL import Image

    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme="light")
    view = context.new_page()
    view.goto(page.as_uri())
    view.locator(click).click()
    view.wait_for_load_state("networkidle")
    with Image.open(io.BytesIO(view.screenshot())) as picture:
        for colors in (256, 128, 64, 32):
            picture.convert("RGB").quantize(colors, dither=Image.Dither.NONE).save(output, optimize=True)
            if output.stat().st_size < MOST_BYTES:
                break
    context.close()


if __name__ == "__main__":
    sys.exit(main())
