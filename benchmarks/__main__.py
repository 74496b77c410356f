"""``python -m benchmarks`` lists the experiments; ``python -m benchmarks NAME`` runs one."""

from __future__ import annotations

import ast
import importlib
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from benchmarks.harness.results import show
from benchmarks.run_all import STEPS

_SERVING: Final = "benchmarks.experiments.serving"
_CLIENT: Final = "benchmarks.experiments.client"
_IMAGING: Final = "benchmarks.experiments.imaging"
_DEDUP: Final = "benchmarks.experiments.dedup"
_ROBUSTNESS: Final = "benchmarks.experiments.robustness"

MODULES: Final = {
    "all": "benchmarks.run_all",
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
    """Return the question that an experiment answers: the first line of its docstring."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    docstring = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0].partition("``")[0].rstrip(" .:,")


def main() -> int:
    """Run the experiment that the first argument names, or list all of them; return the exit code."""
    name, *arguments = sys.argv[1:] or [""]
    if name in MODULES:
        module = importlib.import_module(MODULES[name])
        if hasattr(module, "EXPERIMENT"):
            return int(module.EXPERIMENT.main(arguments))
        sys.argv = [f"python -m benchmarks {name}", *arguments]
        return int(module.main() or 0)
    is_help = name in ("", "-h", "--help")
    if not is_help:
        print(f"There is no experiment {name!r}.", file=sys.stderr)
    show("", ("name", "question"), [(known, question(module)) for known, module in MODULES.items()])
    print("python -m benchmarks NAME --help lists the options of each. 'all' runs " + ", ".join(s.name for s in STEPS))
    return 0 if is_help else 2


if __name__ == "__main__":
    sys.exit(main())
