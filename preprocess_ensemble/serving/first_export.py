"""What ``clip-serve --model`` does before it starts Triton: it exports the model if the repository has none yet."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NoReturn

from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.model_repository.config import installed_passport
from preprocess_ensemble.serving.launcher import PACKAGE_ROOT

logger = logging.getLogger(__name__)
# Progress is worth a line of the log, although no warning.
logger.setLevel(logging.INFO)

_EXPORT: Final = (sys.executable, "-m", "preprocess_ensemble.export.command")


class Stopped(Exception):
    """A signal asked to stop before the model was complete. What has been downloaded is kept."""


def export_if_missing(repository: Path, model: str, pretrained: str | None, *, log_lines: bool) -> None:
    """Export ``model`` with ``clip-export`` into ``repository`` unless it is there already.

    ``pretrained`` None is the default of ``clip-export``. ``log_lines`` sends its lines to the log instead of standard
    error. Raises ReportedError if the export fails, or if ``repository`` has another model: to replace it would make
    all vectors of its clients useless. Raises Stopped on a signal.
    """
    installed = installed_passport(repository)
    if installed is not None:
        # A file counts by its name, as in the passport.
        name = Path(model).stem if model.endswith((".json", ".skeleton")) else model
        tags = (pretrained, f"file:{Path(pretrained).name}", f"{pretrained}:0") if pretrained else None
        if installed.model == name and (tags is None or installed.pretrained in tags):
            return
        asked = f"{name} with the weights {pretrained}" if pretrained else name
        raise ReportedError(
            f"{repository} has {installed.model} with the weights {installed.pretrained}, not {asked}: "
            "name another --repository, or replace the model with `clip-export`."
        )
    command = [*_EXPORT, "--repository", str(repository), "--model", model]
    if pretrained is not None:
        command += ["--pretrained", pretrained]
    # A process of its own: the export needs gigabytes for seconds, the supervisor little memory for months.
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(PACKAGE_ROOT), os.environ.get("PYTHONPATH"))))
    }
    with (
        _stop_signals(),
        subprocess.Popen(
            command,
            stderr=subprocess.PIPE if log_lines else None,
            text=True,
            env=environment,
            # Ctrl-C in a terminal reaches only this process, which passes it on.
            start_new_session=True,
        ) as process,
    ):
        try:
            for line in process.stderr or ():
                logger.info("%s", line.rstrip())
            code = process.wait()
        except Stopped:
            process.terminate()
            raise
    if code != 0:
        raise ReportedError(f"The model {model} could not be exported; see the lines above.")


@contextlib.contextmanager
def _stop_signals() -> Iterator[None]:
    """Raise Stopped for the signals that stop a server. As process 1 of a container, Python would ignore SIGTERM."""

    def stop(*_: object) -> NoReturn:
        raise Stopped

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
