"""``clip-client decide``: records a person's decisions about photos."""

from __future__ import annotations

import argparse
import os
import shlex
import time
from collections.abc import Mapping
from typing import Any

from clip_client._files import FailedFile, printable
from clip_client.cli.errors import CommandFailed, CommandMisused
from clip_client.cli.options.paths import add_store_option, opened_store
from clip_client.cli.output import add_output_options, write_json
from clip_client.dedup import Store
from clip_client.dedup.files.reading import hash_file
from clip_client.dedup.store.choices import KEEP, UNDONE, Choice, ChosenPhoto
from clip_client.dedup.store.decisions import DIFFERENT, KEEP_ALL, Decision
from clip_client.dedup.store.store import store_option
from clip_client.dedup.text import counted, date_and_time


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "decide",
        usage="%(prog)s [options] {keep,different,keep-all,forget,list} [PHOTO ...]",
        help="record that photos are different, that all are wanted, or which of them stays",
        description="Record that photos are different pictures, or that you want to keep all of them. They are never "
        "grouped with each other again, wherever you move them. New copies of any of them are still found. With keep, "
        "the first photo stays and the others move: clip-client review shows this choice, and clip-client dedup PATH "
        "--apply --act-on chosen moves the photos if it finds them in one group.",
    )
    parser.add_argument(
        "what",
        choices=(KEEP, DIFFERENT, KEEP_ALL, "forget", "list"),
        help="the decision; forget removes every decision and choice about the photos, list shows all of them",
    )
    # Set a default: without it, the message about a missing decision would also demand a PHOTO.
    parser.add_argument(
        "paths", nargs="*", default=[], metavar="PHOTO", help="two or more photos (forget: one or more)"
    )
    add_output_options(parser, json="the result")
    add_store_option(parser)


def run(arguments: argparse.Namespace) -> int:
    if bool(arguments.paths) == (arguments.what == "list"):
        arguments.parser.error("list takes no PHOTO, forget takes one or more, and the other decisions two or more")
    hashes = {}
    for path in map(os.path.abspath, map(os.path.expanduser, arguments.paths)):
        found = hash_file(path)
        if isinstance(found, FailedFile):
            raise CommandFailed(f"{path}: {found.message}")
        hashes[path] = found[1]
    # A link does not count as a second file.
    contents = {os.path.realpath(path): sha256 for path, sha256 in hashes.items()}.values()
    result: dict[str, Any]
    with opened_store(arguments.store) as store:
        if arguments.what == "list":
            result = _decided(store)
            said = _in_words(result)
        elif arguments.what == "forget":
            forgotten = store.decisions.forget(contents) + store.choices.forget(hashes)
            said, result = f"{counted(forgotten, 'decision')} forgotten", {"forgotten": forgotten}
        elif arguments.what == KEEP:
            kept, *others = (ChosenPhoto(path, sha256) for path, sha256 in hashes.items())
            if not others:
                raise CommandMisused("name the photo that stays, and then one or more that move")
            _refuse_if_never_grouped(store, hashes)
            store.choices.add([(KEEP, [kept, *(photo._replace(moves=True) for photo in others)])])
            them = "it" if len(others) == 1 else "them"
            command = "clip-client dedup PATH --apply --act-on chosen"
            said = f"chosen: {counted(len(others), 'photo')} to move; {command} moves {them}"
            result = {"chosen": len(others)}
        else:
            try:
                decision = store.decisions.add(arguments.what, contents)
            except ValueError as error:
                raise CommandMisused(str(error)) from None
            said, result = f"recorded: {counted(len(contents), 'photo')}, {decision.what}", {"id": decision.id}
    if not write_json(arguments.json, result):
        print(said)
    return 0


def _refuse_if_never_grouped(store: Store, hashes: Mapping[str, str]) -> None:
    for decision in store.decisions.all():
        left = dict(decision.files)
        apart = []
        for path, sha256 in hashes.items():
            if left.get(sha256):
                left[sha256] -= 1
                apart.append(path)
        if len(apart) > 1:
            them = " and ".join(map(printable, apart))
            raise CommandFailed(
                f"you decided {decision.what} about {them}, so no search finds them in one group; take that back "
                f"first: clip-client decide forget {shlex.quote(apart[0])}{store_option(store.directory)}"
            )


def _decided(store: Store) -> dict[str, list[dict[str, Any]]]:
    decisions = store.decisions.all()
    paths_of = store.files.paths_of(frozenset[str]().union(*(decision.contents for decision in decisions)))

    def listed(one: Decision | Choice, photos: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(one.at_ns / 1e9))
        return {"id": one.id, "what": one.what, "at": at, **more, "photos": photos}

    found: dict[str, list[dict[str, Any]]] = {"decisions": [], "choices": []}
    for decision in decisions:
        files = sorted(decision.files.items())
        photos = [{"sha256": sha256, "files": number, "seen_at": paths_of[sha256]} for sha256, number in files]
        found["decisions"].append(listed(decision, photos, choice=decision.choice))
    for choice in store.choices.all():
        photos = [photo._asdict() for photo in choice.photos]
        found["choices"].append(listed(choice, photos, run=choice.run or None, state=choice.state))
    return found


def _in_words(decided: dict[str, Any]) -> str:
    lines = []
    runs = {choice["id"]: choice["run"] for choice in decided["choices"] if choice["run"]}
    carried_out = {decision["choice"] for decision in decided["decisions"]}
    for decision in decided["decisions"]:
        run = f", run {runs[decision['choice']]}" if decision["choice"] in runs else ""
        lines.append(f"{date_and_time(decision['at'])}  {decision['what']}{run}")
        for photo in decision["photos"]:
            seen = ", ".join(map(printable, photo["seen_at"])) or f"SHA-256 {photo['sha256']}, not seen by a search"
            lines.append(f"   {seen}")
    for choice in decided["choices"]:
        if choice["id"] in carried_out:
            continue
        run = f", run {choice['run']}" if choice["run"] else ""
        undone = ", undone" if choice["state"] == UNDONE else ""
        lines.append(f"{date_and_time(choice['at'])}  {choice['what']}{run}{undone}")
        lines += [f"   {printable(photo['path'])}{'  moves' if photo['moves'] else ''}" for photo in choice["photos"]]
    return "\n".join(lines) or "nothing was decided"
