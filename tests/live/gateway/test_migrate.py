"""The code of docs/migrate.md does what it says, in front of a real Triton with both towers."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from tests.fixtures.gateways import gateway
from tests.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.fixtures.server import Server

PAGE: Final = (ROOT / "docs" / "migrate.md").read_text(encoding="utf-8")
BLOCKS: Final = re.findall(r"^## ([^\n]+)\n|^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_every_service_has_code() -> None:
    code = "".join("#" if heading else "." for heading, _ in BLOCKS)
    assert re.fullmatch(r"(#\.+){5}", code), "a heading without code"


async def test_the_code_of_the_page_runs(two_models: Server, photos: Path, tmp_path: Path) -> None:
    for name, photo in (("a.jpg", "astronaut.jpg"), ("b.jpg", "coffee.jpg")):
        shutil.copyfile(photos / photo, tmp_path / name)
    async with gateway(two_models.grpc_url) as url:
        for _, code in BLOCKS:
            code = code.replace("http://localhost:8080", url).replace("localhost:8001", two_models.grpc_url)
            if code:
                command = (sys.executable, "-c", code)
                done = await asyncio.to_thread(subprocess.run, command, cwd=tmp_path, capture_output=True, check=False)
                assert done.returncode == 0, f"{code}\n{done.stderr.decode()}"
                assert done.stdout.strip()
