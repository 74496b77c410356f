"""A slow line to a port of this machine, as a process: ``python -m benchmarks.load.slow_link PORT BITS_PER_S DELAY_S``.

It prints its own address, and ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from clip_client.testing import Relay


@contextmanager
def slow_link(url: str, *, megabits_per_s: float, round_trip_ms: float) -> Iterator[str]:
    """Run the line in another process until the end of the block; gives the host and port to connect to."""
    port = url.rpartition(":")[2]
    command = [sys.executable, "-m", "benchmarks.load.slow_link", port]
    command += [str(1e6 * megabits_per_s), str(round_trip_ms / 2e3)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        # At its end, Popen's own block closes standard input, which ends the process, and waits for it.


async def _run(port: int, bits_per_s: float, delay_s: float) -> None:
    async with Relay(port, bits_per_s=bits_per_s, delay_s=delay_s) as relay:
        print(relay.url.removeprefix("grpc://"), flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_run(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])))
