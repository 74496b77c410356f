"""The public names are complete and documented, and importing them is cheap."""

import inspect
import json
import subprocess
import sys
from importlib.metadata import version
from types import ModuleType

import pytest

import clip_client
import clip_client.dedup
import clip_client.search
import clip_client.testing

HEAVY = "torch onnxruntime scipy faiss pyarrow grpc tritonclient PIL pandas sklearn"
HELP = """from clip_client.cli.main import main
try: main(["dedup", "--help"])
except SystemExit: pass"""


@pytest.mark.parametrize("module", [clip_client, clip_client.testing], ids=lambda module: module.__name__)
def test_all_names_what_is_there_and_each_name_once(module: ModuleType) -> None:
    assert isinstance(module.__all__, tuple)
    assert len(set(module.__all__)) == len(module.__all__)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_what_is_public_is_in_all_and_in_dir() -> None:
    names = [name for name, one in vars(clip_client).items() if name[0] != "_" and not inspect.ismodule(one)]
    assert set(names) == set(clip_client.__all__)
    assert dir(clip_client) == sorted([*clip_client.__all__, "__version__"])


def test_the_version_is_that_of_the_package() -> None:
    assert clip_client.__version__ == version("clip-triton")
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = clip_client.nothing


def test_public_classes_have_docstrings_and_say_where_users_import_them_from() -> None:
    classes = [one for name in clip_client.__all__ if inspect.isclass(one := getattr(clip_client, name))]
    assert [one for one in classes if one.__module__ != "clip_client" or not inspect.getdoc(one)] == []
    for kind in (clip_client.ClipClient, clip_client.SyncClipClient):
        methods = inspect.getmembers(kind, inspect.isfunction)
        assert [name for name, method in methods if name[0] != "_" and not inspect.getdoc(method)] == []
    exported = [getattr(module, name) for module in (clip_client.dedup, clip_client.search) for name in module.__all__]
    assert [one for one in exported if callable(one) and not inspect.getdoc(one)] == []


def test_the_blocking_client_has_the_same_surface() -> None:
    def surface(kind: type) -> dict[str, list[inspect.Parameter] | None]:
        return {
            name: list(inspect.signature(member).parameters.values()) if inspect.isfunction(member) else None
            for name, member in inspect.getmembers(kind)
            if name[0] != "_" and name not in ("open", "close", "aclose")
        }

    assert surface(clip_client.SyncClipClient) == surface(clip_client.ClipClient)
    assert hasattr(clip_client.SyncClipClient, "open")
    assert hasattr(clip_client.SyncClipClient, "close")


@pytest.mark.parametrize(
    ("code", "heavy", "most"),
    [
        ("import clip_client", HEAVY, 500),  # most of them NumPy's and asyncio's
        ("import clip_client.distributed", "ray pyarrow fsspec faiss", 1000),
        ("import preprocess_ensemble.export.command", "torch", 1000),
        (HELP, "grpc rich pyarrow jinja2 PIL torch clip_client.distributed", 1000),
    ],
    ids=["client", "distributed", "export", "help"],
)
def test_what_must_be_quick_loads_nothing_heavy(code: str, heavy: str, most: int) -> None:
    code = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    modules = json.loads(printed.splitlines()[-1])
    assert [name for name in heavy.split() if name in modules] == []
    assert len(modules) < most


def test_importing_reads_no_environment_and_configures_no_logging() -> None:
    code = (
        "import os, logging\n"
        "asked = []\n"
        "class Watched(type(os.environ)):\n"
        "    def __getitem__(self, key):\n"
        "        asked.append(key)\n"
        "        return super().__getitem__(key)\n"
        "os.environ.__class__ = Watched\n"
        "os.environ.get('CLIP_A'), os.getenv('CLIP_B'), 'CLIP_C' in os.environ\n"
        "assert asked == ['CLIP_A', 'CLIP_B', 'CLIP_C'], 'nothing is missed'\n"
        "asked.clear()\n"
        "import clip_client\n"
        "print([key for key in asked if key.startswith('CLIP_')], logging.getLogger().handlers)\n"
    )
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert printed == "[] []\n"
