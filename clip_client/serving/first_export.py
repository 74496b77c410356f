"""The export of ``clip-serve --model`` before Triton starts, if the repository does not have the model yet."""

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

from clip_client.serving.config import ServeConfig
from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.model_repository.config import installed_passport
from preprocess_ensemble.tritonserver.launcher import with_package

logger = logging.getLogger(__name__)
# Log progress, although it is not a warning.
logger.setLevel(logging.INFO)

_EXPORT: Final = (sys.executable, "-m", "preprocess_ensemble.export.command")


class Stopped(Exception):
    """A signal asked to stop before the model was complete. What has been downloaded is kept."""


def export_if_missing(config: ServeConfig) -> None:
    """Run ``clip-export`` for ``--model``, unless that is absent or the repository has this model already.

    With ``--log-json`` its lines go to the log. Raises ReportedError if the export fails, or if the repository has
    another model: to replace it would make all vectors of its clients useless. Raises Stopped on a signal.
    """
    model, pretrained, repository = config.model, config.pretrained, config.repository
    if model is None:
        return
    if (installed := installed_passport(repository)) is not None:
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
    weights = ("--pretrained", pretrained) if pretrained else ()
    command = (*_EXPORT, "--repository", str(repository), "--model", model, *weights)
    stderr = subprocess.PIPE if config.log_json else None
    # A process of its own: the export needs gigabytes for seconds, the supervisor little memory for months. A session
    # of its own: Ctrl-C in a terminal reaches only this process, which passes it on.
    with (
        _raising_stopped(),
        subprocess.Popen(
            command, stderr=stderr, text=True, env=with_package(os.environ), start_new_session=True
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


def stop_signals() -> list[signal.Signals]:
    """Return the signals that stop ``clip-serve``: SIGINT, SIGTERM, and SIGHUP unless nohup ignores it."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if ignored else [signal.SIGHUP])]


@contextlib.contextmanager
def _raising_stopped() -> Iterator[None]:
    """Raise Stopped on the stop signals. As process 1 of a container, Python would ignore SIGTERM."""

    def stop(*_: object) -> NoReturn:
        raise Stopped

    before = {number: signal.signal(number, stop) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
