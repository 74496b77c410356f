"""The command line of a running process, as others see it in ``ps``."""

from __future__ import annotations

from pathlib import Path

__all__ = ("hide_argument",)


def hide_argument(pid: int, secret: bytes, *, program: str) -> bool:
    """Overwrite ``secret`` in the command line of a child process with ``x``; returns whether that was done.

    tritonserver takes secrets on its command line only, and that is open to every user of the machine. The kernel shows
    what stands in the process's memory, and a parent may write there. The answer is False where it may not, or where
    the process does not execute ``program`` yet, or has ended.
    """
    process = Path("/proc", str(pid))
    try:
        if (process / "exe").readlink().name != program:
            return False
        # Fields 48 and 49 of proc(5): where the arguments begin and end. Those behind the command in parentheses are
        # counted from the 3rd.
        fields = (process / "stat").read_bytes().rpartition(b") ")[2].split()
        begin, end = int(fields[45]), int(fields[46])
        with (process / "mem").open("r+b", buffering=0) as memory:
            memory.seek(begin)
            arguments = memory.read(end - begin)
            found = arguments.find(secret)
            while found >= 0:
                memory.seek(begin + found)
                memory.write(b"x" * len(secret))
                found = arguments.find(secret, found + len(secret))
    except OSError:
        return False
    return True
