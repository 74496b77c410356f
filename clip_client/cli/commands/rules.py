"""``clip-client rules``: saves keep rules under a name."""

from __future__ import annotations

import argparse
from typing import Any

from clip_client.cli.errors import CommandFailed, CommandMisused
from clip_client.cli.options.dedup import check_keep_rules, saved_or_plain
from clip_client.cli.options.paths import add_store_option, opened_store
from clip_client.cli.output import add_output_options, write_json


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "rules",
        usage="%(prog)s [options] {save NAME RULE ...,list,delete NAME}",
        help="save keep rules under a name",
        description="Save the rules that choose the photo to keep under a name, and use them with --keep @NAME. "
        "clip-client dedup --help lists the rules.",
    )
    parser.add_argument("what", choices=("save", "list", "delete"))
    parser.add_argument("name", nargs="?", metavar="NAME", help="letters, digits, spaces and . _ -")
    # Set a default: without it, the message about a missing action would also demand a RULE.
    parser.add_argument("rules", nargs="*", default=[], metavar="RULE", help="in the order in which they decide")
    add_output_options(parser, json="the result")
    add_store_option(parser)


def run(arguments: argparse.Namespace) -> int:
    result: dict[str, Any]
    what, name, rules = arguments.what, arguments.name, arguments.rules
    if (bool(name), bool(rules)) != (what != "list", what == "save"):
        arguments.parser.error("save takes a NAME and rules, delete takes a NAME, and list takes neither")
    with opened_store(arguments.store) as store:
        if what == "save":
            wanted = [one for rule in rules for one in saved_or_plain(rule, store)]
            check_keep_rules(wanted)
            try:
                saved_rules = store.settings.save_keep_rules(name, wanted)
            except ValueError as error:
                raise CommandMisused(str(error)) from None
            said, result = f"saved; use them with: --keep '@{name}'", {"rules": {name: saved_rules}}
        elif what == "delete":
            if not store.settings.delete_keep_rules(name):
                raise CommandFailed(f"no rules are saved as {name}; clip-client rules list shows what is saved")
            said, result = "deleted", {"deleted": name}
        else:
            saved = store.settings.keep_rules()
            said = "\n".join(f"@{name}: {', '.join(rules)}" for name, rules in saved.items()) or "no rules are saved"
            result = {"rules": saved}
    if not write_json(arguments.json, result):
        print(said)
    return 0
