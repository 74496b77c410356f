"""``python -m benchmarks`` lists the experiments; ``python -m benchmarks NAME`` runs one."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path
from typing import Final

MODULES: Final = {
    "three_way": "experiments.serving.three_way",
    "ensemble": "experiments.serving.ensemble",
    "transfer": "experiments.serving.transfer",
    "serialisation": "experiments.serving.serialisation",
    "client_cost": "experiments.serving.client_cost",
    "operators": "experiments.serving.operators",
    "perf_analyzer": "experiments.serving.perf_analyzer",
    "scaling": "experiments.serving.scaling",
    "runtimes": "experiments.serving.runtimes",
    "towers": "experiments.serving.towers",
    "trained": "experiments.serving.trained",
    "faults": "experiments.serving.faults",
    "gateway": "experiments.serving.gateway",
    "soak": "experiments.serving.soak",
    "preprocess": "experiments.imaging.preprocess",
    "fidelity": "experiments.imaging.fidelity",
    "accuracy": "experiments.dedup.accuracy",
    "others": "experiments.dedup.others",
    "first_scan": "experiments.dedup.first_scan",
    "scale": "experiments.dedup.scale",
    "search": "experiments.search",
    "gpu": "gpu.command",
    "gpu_kit": "gpu.kit",
    "in_process": "gpu.in_process",
    "report": "report.command",
    "demo": "demo",
    "originals": "scripts.originals",
    "install_size": "scripts.install_size",
}
"""Name on the command line -> module in ``benchmarks`` that runs it."""
OWN: Final = ("benchmarks", "clip_client", "preprocess_ensemble")
"""Packages of this repository: if a module of theirs is missing, that is a mistake here."""
ALL: Final = ("three_way", "ensemble", "transfer", "preprocess", "fidelity")
WITH_TABLES: Final = ("three_way", "transfer", "accuracy", "others", "first_scan", "search", "install_size")
"""Experiments that print the tables that the report writes into the documents."""


def print_tables(result: Path) -> None:
    from benchmarks.report.command import tables_of  # its experiments need what a kit lacks

    print(tables_of(result))


def question(module: str) -> str:
    """Return the question that a module answers: the start of its docstring, read without an import."""
    path = Path(__file__).parent / f"{module.replace('.', '/')}.py"
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.partition("?")[0] + "?"


def run_all(arguments: list[str]) -> int:
    """Run the serving and imaging experiments and the report; an experiment that fails does not stop the others."""
    commands = {name: [sys.executable, "-m", "benchmarks", name, *arguments] for name in ALL}
    commands["report"] = [sys.executable, "-m", "benchmarks", "report"]
    failed = [name for name, command in commands.items() if subprocess.run(command, check=False).returncode]
    if failed:
        print(f"failed: {', '.join(failed)}; a failed experiment continues at its last measurement", file=sys.stderr)
    return int(bool(failed))


def run(name: str, arguments: list[str]) -> int:
    """Run one of :data:`MODULES`; if a package is missing, say what installs it."""
    try:
        module = importlib.import_module(f"benchmarks.{MODULES[name]}")
        if hasattr(module, "measure"):
            return int(module.measure(arguments, print_tables if name in WITH_TABLES else None))
        sys.argv = [f"python -m benchmarks {name}", *arguments]
        return int(module.main() or 0)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in OWN:
            raise
        print(
            f"{name} needs {error.name}, which this Python lacks: run `make install`, then `.venv/bin/python -m "
            f"benchmarks {name}`",
            file=sys.stderr,
        )
        return 1


def main() -> int:
    """Run what the first argument names, or list all of it; return the exit code."""
    name, *arguments = sys.argv[1:] or [""]
    if name == "all":
        return run_all(arguments)
    if name in MODULES:
        return run(name, arguments)
    is_help = name in ("", "-h", "--help")
    if not is_help:
        print(f"There is no experiment {name!r}.", file=sys.stderr)
    for known, module_name in MODULES.items():
        print(f"{known:<17}  {question(module_name)}")
    print(f"\npython -m benchmarks NAME --help lists the options of each. 'all' runs: {' '.join(ALL)} report")
    return 0 if is_help else 2


if __name__ == "__main__":
    sys.exit(main())
