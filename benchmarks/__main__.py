"""``python -m benchmarks`` lists the experiments; ``python -m benchmarks NAME`` runs one."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path
from typing import Final

from benchmarks.harness.experiment import Experiment
from benchmarks.run_all import STEPS

EXPERIMENTS: Final = {
    "serving": (
        "three_way", "end_to_end", "latency", "queue_delay", "scaling", "precision", "operators", "session_latency",
        "ensemble_tax", "server_threads", "perf_analyzer", "peak_throughput", "provider_options",
    ),
    "client": ("client", "overload", "serialisation", "transfer"),
    "imaging": ("preprocess", "decode_threads", "fidelity", "fuzz"),
    "dedup": ("accuracy", "distributed", "first_scan", "grouping", "review", "scan", "verify"),
    "packaging": ("install_size",),
    "robustness": ("compare_checkouts", "faults", "soak"),
}  # fmt: skip
"""Folder of ``benchmarks/experiments`` -> its modules, which are named as on the command line."""
MODULES: Final = {
    "all": "benchmarks.run_all",
    **{name: f"benchmarks.experiments.{folder}.{name}" for folder, names in EXPERIMENTS.items() for name in names},
    "gpu": "benchmarks.gpu.command",
    "gpu_kit": "benchmarks.gpu.offline_bundle",
    "report": "benchmarks.report.command",
    "demo": "benchmarks.demo",
    "screenshots": "benchmarks.screenshots",
}
"""Name on the command line -> module that runs it."""


def question(module: str) -> str:
    """Return the question that an experiment answers: the start of its docstring, read without an import."""
    path = Path(__file__).parents[1] / f"{module.replace('.', '/')}.py"
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.partition("?")[0] + "?"


def main() -> int:
    """Run the experiment that the first argument names, or list all of them; return the exit code."""
    name, *arguments = sys.argv[1:] or [""]
    if name in MODULES:
        module = importlib.import_module(MODULES[name])
        if isinstance(getattr(module, "measure", None), Experiment):
            return int(module.measure.main(arguments))
        sys.argv = [f"python -m benchmarks {name}", *arguments]
        return int(module.main() or 0)
    is_help = name in ("", "-h", "--help")
    if not is_help:
        print(f"There is no experiment {name!r}.", file=sys.stderr)
    for known, imported in MODULES.items():
        print(f"{known:<17}  {question(imported)}")
    print("\npython -m benchmarks NAME --help lists the options of each. 'all' runs:")
    print(*(step.name for step in STEPS))
    return 0 if is_help else 2


if __name__ == "__main__":
    sys.exit(main())
