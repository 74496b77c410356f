"""Who may import what, read from the source: the boundaries that keep the client thin and the server without it."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PACKAGES = ("clip_client", "preprocess_ensemble")
EXPORT = {f"preprocess_ensemble/{name}.py" for name in ("export", "network", "class_token")}


@dataclass(frozen=True)
class Import:
    file: str
    module: str
    at_import_time: bool

    def __str__(self) -> str:
        return f"{self.file} imports {self.module}"


def imports_of(path: Path) -> Iterator[Import]:
    file = path.relative_to(ROOT).as_posix()

    def visit(node: ast.AST, *, lazy: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(file, alias.name, not lazy)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{file}: relative import"
                base = child.module or ""
                yield Import(file, base, not lazy)
                for alias in child.names:
                    yield Import(file, f"{base}.{alias.name}", not lazy)
            elif isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            else:
                inner = lazy or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                yield from visit(child, lazy=inner)

    yield from visit(ast.parse(path.read_text(encoding="utf-8")), lazy=False)


IMPORTS = [item for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")) for item in imports_of(path)]

FILES = {
    file.removesuffix(".py").removesuffix("/__init__").replace("/", "."): file
    for package in PACKAGES
    for file in (path.relative_to(ROOT).as_posix() for path in (ROOT / package).rglob("*.py"))
}
"""Module -> its file."""


def who_imports(top: str, *, below: str) -> set[str]:
    return {
        item.file
        for item in IMPORTS
        if item.file.startswith(f"{below}/") and (item.module == top or item.module.startswith(f"{top}."))
    }


def reached_from(*modules: str, at_import_time: bool = False) -> set[str]:
    """The files of these modules, and all files of both packages that they import, directly or not."""
    waiting, reached = [FILES[module] for module in modules], set[str]()
    while waiting:
        file = waiting.pop()
        if file not in reached:
            reached.add(file)
            waiting += [
                FILES[item.module]
                for item in IMPORTS
                if item.file == file and item.module in FILES and (item.at_import_time or not at_import_time)
            ]
    return reached


def test_there_is_something_to_check() -> None:
    assert len(IMPORTS) > 100


@pytest.mark.parametrize(
    ("top", "below", "allowed"),
    [
        ("grpc", "clip_client", {"clip_client/_transports/grpc.py", "clip_client/testing.py"}),
        ("tritonclient", "clip_client", {"clip_client/_transports/grpc.py", "clip_client/testing.py"}),
        ("torch", "clip_client", set()),
        ("open_clip", "clip_client", set()),
        (
            "triton_python_backend_utils",
            "preprocess_ensemble",
            {"preprocess_ensemble/triton_model.py", "preprocess_ensemble/backends/onnxruntime/model.py"},
        ),
        ("triton_python_backend_utils", "clip_client", set()),
        ("torch", "preprocess_ensemble", EXPORT),
        ("open_clip", "preprocess_ensemble", EXPORT - {"preprocess_ensemble/export/exporter.py"}),
        ("tritonclient", "preprocess_ensemble", {"preprocess_ensemble/model_repository/config.py"}),
        ("grpc", "preprocess_ensemble", set()),
    ],
)
def test_foreign_systems_have_one_door(top: str, below: str, allowed: set[str]) -> None:
    # Equal, not only a part: a file that was renamed would otherwise keep a permission that nothing checks.
    assert who_imports(top, below=below) == allowed


def test_the_client_takes_only_the_preprocessing_from_the_server_and_only_when_needed() -> None:
    for item in IMPORTS:
        if item.file.startswith("clip_client/") and item.module.startswith("preprocess_ensemble"):
            assert item.module.split(".")[1] in ("decode", "preprocessor", "transform"), str(item)
            assert not item.at_import_time, f"{item} at import time"


def test_what_runs_inside_the_server_never_imports_the_client() -> None:
    inside = reached_from("preprocess_ensemble.triton_model", "preprocess_ensemble.backends.onnxruntime.model")
    assert len(inside) > 10
    assert not inside & who_imports("clip_client", below="preprocess_ensemble")


@pytest.mark.parametrize("top", ["scipy", "faiss", "pyarrow", "onnxruntime", "rich", "jinja2", "PIL"])
def test_heavy_libraries_are_imported_where_they_are_used(top: str) -> None:
    # dedup/ and cli/ are loaded by those who use them; what `import clip_client` loads is loaded by everybody.
    loaded = reached_from("clip_client", at_import_time=True)
    assert len(loaded) > 10
    assert not any(file.startswith(("clip_client/dedup/", "clip_client/cli/")) for file in loaded)
    early = {item.file for item in IMPORTS if item.at_import_time and item.module.split(".")[0] == top}
    assert not loaded & early
