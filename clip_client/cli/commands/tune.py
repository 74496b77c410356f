"""``clip-client tune``: thresholds for a model from what a person decided about photos."""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from clip_client.cli.errors import CommandFailed
from clip_client.cli.options.connection import add_model_options, client_config, connected
from clip_client.cli.options.paths import add_store_option, opened_store
from clip_client.dedup import thresholds_for
from clip_client.dedup.compare.thresholds import (
    LEAST_DIFFERENT,
    NEEDED_LABELS,
    SIMILAR_PRECISION,
    Tuning,
    labels_for,
    tune,
)
from clip_client.dedup.text import counted

if TYPE_CHECKING:
    from clip_client import ClientConfig, ModelInfo
    from clip_client.dedup import Thresholds


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's options."""
    parser = commands.add_parser(
        "tune",
        usage="%(prog)s [options]",
        help="derive the thresholds of a model from your decisions",
        description="Derive the thresholds of a model from your decisions: photos that you called different, and "
        "copies that you chose and moved. Later searches with this store use them.",
    )
    parser.add_argument("--dry-run", action="store_true", help="show the thresholds, and store nothing")
    parser.add_argument("--reset", action="store_true", help="use the model's own thresholds again")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_store_option(parser)
    add_model_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Tune, store and print."""
    config = client_config(arguments)
    with opened_store(arguments.store) as store:
        model = asyncio.run(_model(config, quiet=arguments.json))
        if model.is_random:
            raise CommandFailed(
                f"the weights of {model.id} are random, so no decision says anything about them; export a model with "
                "trained weights"
            )
        tuning = None
        if arguments.reset:
            store.settings.set_tuned(model.vector_id, None)
        present = thresholds = thresholds_for(model.id, tuned=store.settings.tuned(model.vector_id))
        if not arguments.reset:
            labels, unusable = labels_for(store, model.vector_id, model.dimension)
            tuning = tune(labels, unusable=unusable)
            thresholds = tuning.thresholds(present) or present
            if thresholds is not present and not arguments.dry_run:
                store.settings.set_tuned(model.vector_id, thresholds)
    if arguments.json:
        of_model = {"model": model.id, "vectors": model.vector_id}
        print(json.dumps({**of_model, "thresholds": asdict(thresholds), "tuning": _as_json(tuning)}, indent=2))
    else:
        print(f"again: {present.source}" if tuning is None else _in_words(model, present, tuning))
    if tuning is not None and thresholds is present:
        raise CommandFailed(_too_few(tuning))
    return 0


async def _model(config: ClientConfig, *, quiet: bool) -> ModelInfo:
    async with connected(config, quiet=quiet) as clip:
        return await clip.model()


def _in_words(model: ModelInfo, present: Thresholds, tuning: Tuning) -> str:
    lines = [f"{model.id}: {counted(tuning.labels, 'label')}, {tuning.different} of them different"]
    if tuning.unusable:
        lines.append(
            f"{counted(tuning.unusable, 'decision')} without vectors of this model, or without a search before: search "
            "these photos with this model, then decide"
        )
    found = tuning.similar
    none = f"no threshold is certain to reach a precision of {SIMILAR_PRECISION}"
    lines.append(f"similar: was {present.similar:g}; {f'{found.threshold:g}: {found}' if found else none}")
    return "\n".join(lines)


def _too_few(tuning: Tuning) -> str:
    if tuning.different < LEAST_DIFFERENT:
        return (
            f"too few labels: {tuning.different} of {LEAST_DIFFERENT} that say what is different; record more with "
            "clip-client review or decide different"
        )
    return (
        f"too few labels: at least {NEEDED_LABELS} pairs that are the same are needed, and more for "
        "each different pair among them; the thresholds stay as they are"
    )


def _as_json(tuning: Tuning | None) -> dict[str, Any] | None:
    if tuning is None:
        return None
    counts = {name: getattr(tuning, name) for name in ("labels", "different", "unusable")}
    found = tuning.similar
    similar = found and {**asdict(found), "precision": found.value, "interval_95": found.interval}
    return {**counts, "similar": similar}
