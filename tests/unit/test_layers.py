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


def who_imports(top: str, *, below: str) -> set[str]:
    return {
        item.file
        for item in IMPORTS
        if item.file.startswith(f"{below}/") and (item.module == top or item.module.startswith(f"{top}."))
    }


def test_there_is_something_to_check() -> None:
    assert len(IMPORTS) > 100


@pytest.mark.parametrize(
    ("top", "below", "allowed"),
    [
        ("grpc", "clip_client", {"clip_client/_transport.py", "clip_client/testing.py"}),
        ("tritonclient", "clip_client", {"clip_client/_transport.py", "clip_client/testing.py"}),
        ("torch", "clip_client", set()),
        ("open_clip", "clip_client", set()),
        (
            "triton_python_backend_utils",
            "preprocess_ensemble",
            {"preprocess_ensemble/triton_model.py", "preprocess_ensemble/backends/onnxruntime/model.py"},
        ),
        ("triton_python_backend_utils", "clip_client", set()),
        ("torch", "preprocess_ensemble", EXPORT),
        ("open_clip", "preprocess_ensemble", EXPORT),
        ("tritonclient", "preprocess_ensemble", {"preprocess_ensemble/repository.py"}),
        ("grpc", "preprocess_ensemble", set()),
    ],
)
def test_foreign_systems_have_one_door(top: str, below: str, allowed: set[str]) -> None:
    assert who_imports(top, below=below) <= allowed


def test_the_client_takes_only_the_preprocessing_from_the_server_and_only_when_needed() -> None:
    for item in IMPORTS:
        if item.file.startswith("clip_client/") and item.module.startswith("preprocess_ensemble"):
            assert item.module.split(".")[1] in ("decode", "preprocessor", "transform"), str(item)
            assert not item.at_import_time, f"{item} at import time"


def test_what_runs_inside_the_server_never_imports_the_client() -> None:
    inside = {
        "decode.py", "transform.py", "preprocessor.py", "triton_model.py", "passport.py", "formats.py",
        "backends/onnxruntime/model.py", "backends/onnxruntime/session.py",
    }  # fmt: skip
    assert not {f"preprocess_ensemble/{file}" for file in inside} & who_imports(
        "clip_client", below="preprocess_ensemble"
    )


@pytest.mark.parametrize("top", ["scipy", "faiss", "pyarrow", "onnxruntime", "rich", "jinja2", "PIL"])
def test_heavy_libraries_are_imported_where_they_are_used(top: str) -> None:
    # dedup/ and cli/ are loaded by those who use them; the library's own modules are loaded by everybody.
    early = [
        item
        for item in IMPORTS
        if item.at_import_time and item.module.split(".")[0] == top and item.file.count("/") == 1
        and item.file.startswith("clip_client/")
    ]  # fmt: skip
    assert early == []
