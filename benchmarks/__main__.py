"""``python -m benchmarks``: list the experiments; ``python -m benchmarks NAME ...``: run one; ``report``: show results.

``python -m benchmarks all`` runs the study of serving, one experiment after another (see ``study.py``).
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.study import STEPS


def experiments() -> dict[str, str]:
    """Name -> first line of its docstring, for every module here that names its own command there."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        first = docstring.partition("\n")[0]
        command = f"python -m benchmarks.{path.stem}"
        if command in docstring and f"{command} " not in docstring:
            found[path.stem] = first.partition(": ``python")[0].rstrip(".").replace(f" ``{command}``", "")
    return found


def main() -> int:
    """Run what is asked for; return its exit code."""
    known = experiments()
    name, *arguments = sys.argv[1:] or [""]
    if name == "all":
        return _run("study", arguments)
    if name in known:
        return _run(name, arguments)
    if name not in ("", "-h", "--help"):
        print(f"There is no experiment {name!r}.", file=sys.stderr)
    table = Table("name", "question", box=None)
    for stem, question in known.items():
        table.add_row(stem, question)
    Console().print(table)
    print(
        "\npython -m benchmarks NAME --help says what each takes; 'all' runs " + ", ".join(step.name for step in STEPS)
    )
    return 0 if name in ("", "-h", "--help") else 2


def _run(name: str, arguments: list[str]) -> int:
    return subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
