"""A slow line to a port of this machine, as a process: ``python -m benchmarks slow_link PORT``.

It prints its own port, and ends when its standard input does.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from clip_client.testing import Relay

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def slow_link(port: int, *, megabits_per_s: float, round_trip_ms: float) -> Iterator[str]:
    """Run the line beside this process for the length of the block; gives the address to connect to."""
    command = [sys.executable, "-m", "benchmarks.load.slow_link", str(port)]
    command += ["--megabits-per-s", str(megabits_per_s), "--round-trip-ms", str(round_trip_ms)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        # Leaving Popen's own block closes standard input, which ends the process, and waits for it.


async def _run(port: int, megabits_per_s: float, round_trip_ms: float) -> None:
    async with Relay(port, bits_per_s=1e6 * megabits_per_s, delay_s=round_trip_ms / 2e3) as relay:
        print(relay.url.removeprefix("grpc://"), flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--megabits-per-s", type=float, required=True)
    parser.add_argument("--round-trip-ms", type=float, required=True)
    arguments = parser.parse_args()
    asyncio.run(_run(arguments.port, arguments.megabits_per_s, arguments.round_trip_ms))
