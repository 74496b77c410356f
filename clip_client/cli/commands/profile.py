"""``clip-client profile``: where a request spends its time, by the server's counters and as the client measures it."""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
import uuid
from collections.abc import Mapping
from typing import Any, Final

from clip_client import Unauthorized
from clip_client._endpoint import EndpointKind
from clip_client.cli.errors import CommandFailed, CommandMisused
from clip_client.cli.options.connection import add_server_options, add_timeout_option, client_config
from clip_client.cli.parser import count

_STAGES: Final = {
    "queue": "waiting in the queue",
    "compute_input": "reading inputs",
    "compute_infer": "computing",
    "compute_output": "writing outputs",
}


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's options."""
    parser = commands.add_parser(
        "profile",
        usage="%(prog)s [options]",
        help="show where a request spends its time",
        description="Send the test image of the model repeatedly and show where the time goes: decoding, queues, the "
        "model and the network. The server must allow reading its statistics: clip-serve --open-statistics. The "
        "counters include the requests of other clients during the measurement.",
    )
    add_server_options(parser, takes_local=False)
    add_timeout_option(parser, default_s=60.0, meaning="time limit for one request")
    for name, default, meaning in (
        ("--requests", 100, "number of requests"),
        ("--rows", 1, "images per request"),
        ("--concurrency", 1, "requests in flight at the same time"),
    ):
        parser.add_argument(name, type=count, default=default, metavar="N", help=f"{meaning} (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a tree")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print."""
    profile = asyncio.run(_measure(arguments))
    print(json.dumps(profile, indent=1) if arguments.json else "\n".join(tree(profile)))
    return 0


def tree(profile: Mapping[str, Any]) -> list[str]:
    """Return the lines of the tree; milliseconds are means per request, except for the client's median and p95."""
    seen = profile["client_ms"]
    asked = f"{profile['requests']} requests of {profile['rows']}, {profile['concurrency']} at a time"
    lines = [
        f"{profile['rate']:.1f} images/s: {asked}, to {profile['url']} ({profile['model']})",
        f"request as seen here {seen['mean']:9.2f} ms   median {seen['p50']:.2f}, p95 {seen['p95']:.2f}",
        f"├─ network, client  {profile['outside_ms']:9.2f} ms",
    ]
    for number, (name, model) in enumerate(profile["models"].items(), 1):
        last = number == len(profile["models"])
        lines.append(
            f"{'└' if last else '├'}─ {name:<16} {model['mean_ms']['total']:9.2f} ms   {model['runs']} runs, "
            f"{model['rows'] / model['runs']:.1f} images each, {model['share_batched']:.0%} batched"
        )
        stages = [(stage, ms) for stage, ms in model["mean_ms"].items() if stage in _STAGES]
        for place, (stage, ms) in enumerate(stages, 1):
            branch = "└" if place == len(stages) else "├"
            lines.append(f"{' ' if last else '│'}  {branch}─ {_STAGES[stage]:<18} {ms:6.2f} ms")
    return lines


async def _measure(arguments: argparse.Namespace) -> dict[str, Any]:
    from clip_client._transports.grpc import transport_factory

    config = client_config(arguments, timeout_s=arguments.timeout_s)
    endpoint = config.endpoints[0]
    if endpoint.kind is not EndpointKind.GRPC:
        raise CommandMisused(
            f"profile reads the counters of a Triton server over gRPC, and {endpoint} is not one; give host:port"
        )
    transport = transport_factory(config)(endpoint, None)
    try:
        model = await transport.model(timeout_s=arguments.timeout_s)
        if arguments.rows > model.max_batch_size:
            raise CommandMisused(f"--rows {arguments.rows} is more than the {model.max_batch_size} of this server")
        try:
            before = await transport.statistics(timeout_s=arguments.timeout_s)
        except Unauthorized:
            raise CommandFailed(
                f"{endpoint} does not allow reading its statistics; start it with: clip-serve --open-statistics"
            ) from None
        images = [model.canary_image] * arguments.rows
        times_ms: list[float] = []
        left = iter(range(arguments.requests))

        async def caller() -> None:
            for _ in left:
                then = time.perf_counter()
                await transport.infer(images, request_id=uuid.uuid4().hex, timeout_s=arguments.timeout_s)
                times_ms.append(1e3 * (time.perf_counter() - then))

        start = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(arguments.concurrency)))
        elapsed_s = time.perf_counter() - start
        after = await transport.statistics(timeout_s=arguments.timeout_s)
    finally:
        await transport.close()
    names = endpoint.names
    passed = {name: after[name].since(before.get(name)) for name in names.of_images}
    mean_ms, inside_ms = statistics.fmean(times_ms), passed.pop(names.image).mean_ms()["total"]
    p95 = sorted(times_ms)[min(len(times_ms) - 1, int(0.95 * len(times_ms)))]
    return {
        "url": str(endpoint),
        "model": model.id,
        "requests": arguments.requests,
        "rows": arguments.rows,
        "concurrency": arguments.concurrency,
        "rate": arguments.requests * arguments.rows / elapsed_s,
        "client_ms": {"mean": mean_ms, "p50": statistics.median(times_ms), "p95": p95},
        "server_ms": inside_ms,
        "outside_ms": max(0.0, mean_ms - inside_ms),
        "models": {name: counts.to_mapping() for name, counts in passed.items()},
    }
