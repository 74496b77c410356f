"""The wheel of ``make dist``, installed by pip, works without the tree."""

import re
import subprocess
import sys
import zipfile
from email.parser import HeaderParser
from pathlib import Path

from benchmarks.fixtures.server import free_port
from tests.fixtures.packaging.installed_wheel import user_environment
from tests.live.bare import launched, wait_until_live
from tests.live.raw import infer


def test_the_package_page_is_complete_and_has_no_broken_links(distributions: tuple[Path, Path]) -> None:
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, distributions)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
    with zipfile.ZipFile(distributions[0]) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = HeaderParser().parsestr(wheel.read(name).decode())
    assert metadata["Author"]
    assert metadata["Keywords"]
    page = str(metadata.get_payload())
    links = re.findall(r"\]\(([^)]+)\)|(?:src|href)=[\"']([^\"']+)", page)
    assert [link for link in map("".join, links) if not link.startswith(("https://", "#"))] == []


def test_the_environment_has_the_code_of_the_wheel_and_not_of_the_tree(installed: Path, tmp_path: Path) -> None:
    program = "import clip_client, preprocess_ensemble; print(clip_client.__file__, preprocess_ensemble.__file__)"
    command = [str(installed / "python"), "-c", program]
    shown = subprocess.check_output(command, cwd=tmp_path, env=user_environment(installed, tmp_path), text=True)
    assert all(path.startswith(f"{installed.parent}/lib/") for path in shown.split())


def test_pip_installs_a_tritonserver_that_works_in_an_empty_folder(
    installed: Path, tiny_repository: Path, photos: Path, tmp_path: Path
) -> None:
    grpc, http = free_port(), free_port()
    variables = [f"{name}={value}" for name, value in user_environment(installed, tmp_path).items()]
    options = [f"--grpc-port={grpc}", f"--http-port={http}", "--grpc-address=127.0.0.1", "--http-address=127.0.0.1"]
    command = ["env", "-i", f"--chdir={tmp_path}", *variables, "tritonserver", "--model-repository", tiny_repository]
    log = tmp_path / "log"
    with launched([*map(str, command), *options, "--allow-metrics=false"], log) as server:
        wait_until_live(server, http, log)
        image = next(photos.glob("astronaut.*")).read_bytes()
        answer = infer(f"127.0.0.1:{grpc}", "clip_image", [image], outputs=["embedding", "status"])
    assert answer["status"].item() == 0
    assert answer["embedding"].shape == (1, 512)
