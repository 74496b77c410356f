"""Who may import what, read from the source: one declared graph of rooms, without cycles, that every import follows."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Final

import pytest

from tests.paths import ROOT

PACKAGES: Final = ("clip_client", "preprocess_ensemble", "benchmarks")

FACADES: Final = ("clip_client", "clip_client.dedup", "preprocess_ensemble", "benchmarks")
"""Packages whose modules belong to rooms of their own; the pattern holds the ``__init__`` alone."""
ROOMS: Final[dict[str, tuple[str, str]]] = {
    # room: (modules, or packages whose every module belongs to it; rooms that they may import)
    "contract": (
        ("preprocess_ensemble.contract, preprocess_ensemble.cores, preprocess_ensemble.errors, "
         "preprocess_ensemble.pem_files, preprocess_ensemble.whole_file, preprocess_ensemble"),
        "",
    ),
    "command line": ("preprocess_ensemble.command_line, preprocess_ensemble.refusals", ""),
    "tritonserver": ("preprocess_ensemble.tritonserver", "contract"),
    "imaging": ("preprocess_ensemble.imaging", "contract"),
    "text": ("preprocess_ensemble.text", "contract"),
    "model_repository": ("preprocess_ensemble.model_repository", "contract, imaging"),
    "runtimes": ("preprocess_ensemble.runtimes", "contract, imaging, text, model_repository"),
    "backends": ("preprocess_ensemble.backends", "contract, imaging, text, model_repository, runtimes"),
    "triton models": (
        "preprocess_ensemble.triton_model, preprocess_ensemble.triton_tokenizer",
        "contract, imaging, text, backends, model_repository",
    ),
    "export": ("preprocess_ensemble.export", "command line, contract, imaging, text, model_repository, runtimes"),
    "files": ("clip_client._files", ""),
    "base": (
        ("clip_client._config, clip_client._deadline, clip_client._encoding, clip_client._endpoint, "
         "clip_client._errors, clip_client._model, clip_client._results"),
        "contract, imaging, model_repository",
    ),
    "transports": ("clip_client._transports", "base, contract, imaging, text, model_repository, runtimes"),
    "balancing": ("clip_client._balancing", "base, transports"),
    "health": ("clip_client._health", "base, transports"),
    "pipeline": ("clip_client._pipeline", "base, contract, imaging, text, transports, balancing"),
    "storage": ("clip_client._storage", "base, files, contract"),
    "dedup types": (
        ("clip_client.dedup.aligned, clip_client.dedup.group, clip_client.dedup.photo, clip_client.dedup.report, "
         "clip_client.dedup.text, clip_client.dedup.types"),
        "files",
    ),
    "dedup files": ("clip_client.dedup.files", "files, contract, imaging, dedup types"),
    "dedup metadata": ("clip_client.dedup.metadata", "imaging, dedup types"),
    "dedup formats": ("clip_client.dedup.formats", "imaging, dedup types, dedup files"),
    "dedup proof": ("clip_client.dedup.proof", "imaging, dedup types, dedup formats"),
    "dedup store": ("clip_client.dedup.store", "contract, storage, dedup types"),
    "dedup features": (
        "clip_client.dedup.features",
        "base, files, contract, imaging, storage, dedup types, dedup files, dedup metadata, dedup formats, dedup store",
    ),
    "dedup describe": ("clip_client.dedup.describe", "dedup types"),
    "dedup compare": (
        "clip_client.dedup.compare",
        ("files, contract, imaging, dedup types, dedup files, dedup formats, dedup store, dedup features, dedup proof, "
         "dedup describe"),
    ),
    "dedup search": (
        "clip_client.dedup.search, clip_client.dedup",
        "base, files, storage, dedup types, dedup files, dedup store, dedup features, dedup compare, dedup judge",
    ),
    "dedup judge": (
        "clip_client.dedup.judge",
        "files, contract, dedup types, dedup files, dedup metadata, dedup formats, dedup store",
    ),
    "dedup actions": (
        "clip_client.dedup.actions",
        "files, contract, storage, dedup types, dedup files, dedup store, dedup judge",
    ),
    "dedup pages": ("clip_client.dedup.pages", "files, contract, dedup types"),
    "search": (
        "clip_client.search",
        "base, files, contract, imaging, storage, dedup types, dedup files, dedup store, dedup features, dedup pages",
    ),
    "client": (
        "clip_client._client, clip_client._sync, clip_client._zero_shot, clip_client",
        "base, contract, transports, balancing, health, pipeline, storage, dedup types, dedup search",
    ),
    "distributed": (
        "clip_client.distributed",
        ("base, files, contract, pipeline, client, storage, dedup types, dedup files, dedup store, dedup features, "
         "dedup compare, dedup search, dedup judge"),
    ),
    "client testing": ("clip_client.testing", "contract, model_repository"),
    "review": (
        "clip_client.review",
        ("files, contract, storage, dedup types, dedup files, dedup store, dedup features, dedup compare, "
         "dedup search, dedup judge, dedup actions, dedup pages, search"),
    ),
    "credentials": ("clip_client.cli.options.credentials", "command line"),
    "gateway": ("clip_client.gateway", "base, command line, contract, credentials, client"),
    "cli": (
        "clip_client.cli, clip_client.__main__",
        ("command line, credentials, base, files, contract, imaging, model_repository, runtimes, transports, "
         "balancing, health, client, storage, dedup types, dedup files, dedup store, dedup features, dedup compare, "
         "dedup search, dedup judge, dedup actions, dedup pages, review, distributed, search, tritonserver"),
    ),
    "serving": (
        "clip_client.serving",
        "command line, base, contract, imaging, model_repository, runtimes, transports, health, tritonserver",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Import:
    importer: str
    imported: str
    line: int
    at_import_time: bool

    def __str__(self) -> str:
        return f"{self.importer}, line {self.line}, imports {self.imported}"


MODULES: Final = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}


def imports_of(importer: str, path: Path) -> Iterator[Import]:
    """Every import of a module, those inside functions and under ``TYPE_CHECKING`` included."""

    def visit(node: ast.AST, *, lazy: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from (Import(importer, alias.name, child.lineno, not lazy) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path}: relative import"
                for alias in child.names:
                    whole = f"{child.module}.{alias.name}"
                    imported = whole if whole in MODULES else child.module or ""
                    yield Import(importer, imported, child.lineno, not lazy)
            else:
                is_lazy = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or (
                    isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
                )
                yield from visit(child, lazy=lazy or is_lazy)

    yield from visit(ast.parse(path.read_text(encoding="utf-8")), lazy=False)


@cache
def all_imports() -> list[Import]:
    return [item for name, path in MODULES.items() for item in imports_of(name, path)]


def internal_imports() -> list[Import]:
    return [item for item in all_imports() if item.imported in MODULES and item.imported != item.importer]


def pattern_of(module: str, patterns: Iterable[str]) -> str:
    """Return the longest pattern that holds the module."""
    matching = [one for one in patterns if module == one or (one not in FACADES and module.startswith(f"{one}."))]
    assert matching, f"{module} is in no room or layer: add it to ROOMS or BENCHMARK_LAYERS"
    return max(matching, key=len)


def room_of(module: str) -> str:
    rooms = {pattern: room for room, (patterns, _) in ROOMS.items() for pattern in patterns.split(", ")}
    return rooms[pattern_of(module, rooms)]


def test_the_graph_of_rooms_has_no_cycle() -> None:
    assert list(TopologicalSorter({room: allowed.split(", ") for room, (_, allowed) in ROOMS.items()}).static_order())


def test_files_import_each_other_without_cycles() -> None:
    graph: dict[str, set[str]] = {name: set() for name in MODULES}
    for item in internal_imports():
        graph[item.importer].add(item.imported)
    assert len(list(TopologicalSorter(graph).static_order())) == len(MODULES)


@pytest.mark.parametrize("room", ROOMS)
def test_every_import_leads_into_a_room_that_is_allowed(room: str) -> None:
    allowed = {room, *ROOMS[room][1].split(", ")}
    inside = [
        item
        for item in internal_imports()
        if not item.importer.startswith("benchmarks") and room_of(item.importer) == room
    ]
    assert [str(item) for item in inside if room_of(item.imported) not in allowed] == []


def test_every_room_has_a_module() -> None:
    # A renamed folder must not leave a rule behind that applies to no module.
    assert set(ROOMS) == {room_of(name) for name in MODULES if not name.startswith("benchmarks")}


BENCHMARK_LAYERS: Final = (
    ("benchmarks.fixtures",),
    ("benchmarks.harness",),
    ("benchmarks.load", "benchmarks.peers"),
    ("benchmarks.experiments", "benchmarks.gpu", "benchmarks.demo", "benchmarks.scripts"),
    ("benchmarks.report",),
    ("benchmarks", "benchmarks.__main__"),
)
"""Each may import those before it and its own."""


def test_benchmarks_import_in_one_direction() -> None:
    layers = {prefix: number for number, prefixes in enumerate(BENCHMARK_LAYERS) for prefix in prefixes}
    inside = [
        item
        for item in internal_imports()
        if item.importer.startswith("benchmarks") and item.imported.startswith("benchmarks.")
    ]
    number = {name: layers[pattern_of(name, layers)] for item in inside for name in (item.importer, item.imported)}
    assert [str(item) for item in inside if number[item.imported] > number[item.importer]] == []


def test_nothing_that_is_shipped_imports_benchmarks_or_test_aids() -> None:
    aids = ("benchmarks", "tests", "clip_client.testing")
    shipped = [item for item in all_imports() if not item.importer.startswith(aids)]
    assert [str(item) for item in shipped if item.imported.startswith(aids)] == []


TESTS_OF_BENCHMARKS: Final = ("tests/unit/benchmarks/", "tests/live/benchmarks/")
SHARED_WITH_TESTS: Final = {"benchmarks.fixtures.server", "benchmarks.fixtures.sample_photos"}


def test_other_tests_import_only_the_fixtures_that_benchmarks_share() -> None:
    # What only tests need lives in tests/fixtures.
    paths = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "tests").rglob("*.py"))]
    assert [rule for rule in TESTS_OF_BENCHMARKS if not any(path.startswith(rule) for path in paths)] == []
    others = [path for path in paths if not path.startswith(TESTS_OF_BENCHMARKS)]
    found = [item for path in others for item in imports_of(path, ROOT / path)]
    used = {item.imported for item in found if item.imported.split(".")[0] == "benchmarks"}
    assert used == SHARED_WITH_TESTS


@pytest.mark.parametrize(
    ("top", "adapters"),
    [
        ("grpc", {"clip_client._transports.grpc", "clip_client._transports.grpc_errors", "clip_client.testing"}),
        ("tritonclient", {"clip_client._transports", "clip_client.testing", "preprocess_ensemble.model_repository"}),
        ("openvino", {"preprocess_ensemble.runtimes.openvino_model"}),
        ("cv2", {"clip_client.dedup.describe", "clip_client.dedup.proof"}),
        ("torch", {"preprocess_ensemble.export.pytorch"}),
        ("open_clip", {"preprocess_ensemble.export.pytorch"}),
        ("tokenizers", {"preprocess_ensemble.text"}),
        (
            "triton_python_backend_utils",
            {
                "preprocess_ensemble.triton_model",
                "preprocess_ensemble.triton_tokenizer",
                "preprocess_ensemble.backends.rows",
                "preprocess_ensemble.backends.onnxruntime.model",
            },
        ),
    ],
)
def test_each_foreign_system_has_one_adapter(top: str, adapters: set[str]) -> None:
    importers = {
        item.importer
        for item in all_imports()
        if item.imported.split(".")[0] == top and not item.importer.startswith("benchmarks")
    }
    assert importers, f"nothing imports {top}: a rule without a subject"
    assert {name for name in importers if not any(name == a or name.startswith(f"{a}.") for a in adapters)} == set()


@pytest.mark.parametrize(
    "top", ["scipy", "faiss", "pyarrow", "onnxruntime", "openvino", "rich", "jinja2", "PIL", "cv2", "ray"]
)
def test_the_client_loads_heavy_libraries_only_where_they_are_used(top: str) -> None:
    early = [
        str(item)
        for item in all_imports()
        if item.at_import_time
        and item.imported.split(".")[0] == top
        and item.importer.startswith("clip_client")
        and not item.importer.startswith(("clip_client.dedup", "clip_client.cli", "clip_client.review"))
    ]
    assert early == []


def test_no_folder_is_crowded_and_no_module_is_long() -> None:
    paths = [path for path in (*MODULES.values(), *(ROOT / "tests").rglob("*.py")) if path.stem[:2] != "__"]
    folders = Counter(path.parent.relative_to(ROOT).as_posix() for path in paths)
    assert {folder: count for folder, count in folders.items() if count > 15} == {}
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in MODULES.items()}
    assert {name: count for name, count in lines.items() if count > 400} == {}


def test_every_package_says_what_lives_there() -> None:
    packages = [path for path in MODULES.values() if path.name == "__init__.py"]
    silent = [str(path) for path in packages if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))]
    assert silent == []
