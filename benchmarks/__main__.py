"""``python -m benchmarks``: list the experiments; ``python -m benchmarks NAME ...``: run one; ``report``: show results.

``python -m benchmarks all`` runs the experiments on serving, one after another (see ``run_all.py``).
"""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.run_all import STEPS

_SERVING: Final = "benchmarks.experiments.serving"
_CLIENT: Final = "benchmarks.experiments.client"
_IMAGING: Final = "benchmarks.experiments.imaging"
_DEDUP: Final = "benchmarks.experiments.dedup"
_ROBUSTNESS: Final = "benchmarks.experiments.robustness"

MODULES: Final = {
    "three_way": f"{_SERVING}.three_way",
    "end_to_end": f"{_SERVING}.end_to_end",
    "latency": f"{_SERVING}.latency",
    "queue_delay": f"{_SERVING}.queue_delay",
    "scaling": f"{_SERVING}.scaling",
    "precision": f"{_SERVING}.precision",
    "operators": f"{_SERVING}.operators",
    "session_latency": f"{_SERVING}.session_latency",
    "ensemble_tax": f"{_SERVING}.ensemble_tax",
    "server_threads": f"{_SERVING}.server_threads",
    "perf_analyzer": f"{_SERVING}.perf_analyzer",
    "peak_throughput": f"{_SERVING}.peak_throughput",
    "provider_options": f"{_SERVING}.provider_options",
    "client": f"{_CLIENT}.client",
    "overload": f"{_CLIENT}.overload",
    "serialisation": f"{_CLIENT}.serialisation",
    "transfer": f"{_CLIENT}.transfer",
    "preprocess": f"{_IMAGING}.preprocess",
    "decode_threads": f"{_IMAGING}.decode_threads",
    "fidelity": f"{_IMAGING}.fidelity",
    "fuzz": f"{_IMAGING}.fuzz",
    "accuracy": f"{_DEDUP}.accuracy",
    "grouping": f"{_DEDUP}.grouping",
    "scan": f"{_DEDUP}.scan",
    "compare_checkouts": f"{_ROBUSTNESS}.compare_checkouts",
    "faults": f"{_ROBUSTNESS}.faults",
    "soak": f"{_ROBUSTNESS}.soak",
    "gpu": "benchmarks.gpu.command",
    "gpu_kit": "benchmarks.gpu.offline_bundle",
    "report": "benchmarks.report.command",
    "demo": "benchmarks.demo",
}
"""Name on the command line -> module that runs it."""


def question(module: str) -> str:
    """Return the question that an experiment answers: the first line of its docstring, without the command."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    docstring = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
    first, _, _ = docstring.partition("\n")[0].partition("``")
    return first.rstrip(" .:,")


def main() -> int:
    """Run the experiment that the first argument names, or list them; return the exit code."""
    name, *arguments = sys.argv[1:] or [""]
    if name == "all":
        return _run("benchmarks.run_all", arguments)
    if name in MODULES:
        return _run(MODULES[name], arguments)
    if name not in ("", "-h", "--help"):
        print(f"There is no experiment {name!r}.", file=sys.stderr)
    table = Table("name", "question", box=None)
    for known, module in MODULES.items():
        table.add_row(known, question(module))
    Console().print(table)
    print(
        "\npython -m benchmarks NAME --help lists the options of each; 'all' runs "
        + ", ".join(step.name for step in STEPS)
    )
    return 0 if name in ("", "-h", "--help") else 2


def _run(module: str, arguments: list[str]) -> int:
    return subprocess.run([sys.executable, "-m", module, *arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
