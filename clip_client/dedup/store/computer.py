"""The computer that moved a photo: its name, and an id that stays when it is renamed. Several may use one store."""

from __future__ import annotations

import functools
import hashlib
import hmac
import platform
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

_MACHINE_ID: Final = Path("/etc/machine-id")
"""Id of a Linux system; see machine-id(5). A container has none, or shares that of its image."""


def this_computer() -> str:
    return f"{platform.node()} {_hashed_id()}".rstrip()


def is_this_computer(computer: str) -> bool:
    """Tell whether :func:`this_computer` returned ``computer`` here. Earlier versions recorded the name or nothing."""
    return computer in ("", platform.node()) or computer.rpartition(" ")[2] == _hashed_id()


def name_of(computer: str) -> str:
    return computer.rpartition(" ")[0] or computer


@functools.cache
def _hashed_id() -> str:
    """Return an id that only this program knows, because others use the system's id as a secret; empty without one."""
    with suppress(OSError):
        if found := _system_id():
            return hmac.new(found.encode(), b"clip-client", hashlib.sha256).hexdigest()[:32]
    return ""


def _system_id() -> str:
    if sys.platform == "win32":
        import winreg

        rights = winreg.KEY_READ | winreg.KEY_WOW64_64KEY
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, r"SOFTWARE\Microsoft\Cryptography", 0, rights) as key:
            return str(winreg.QueryValueEx(key, "MachineGuid")[0])
    if sys.platform == "darwin":
        command = ["/usr/sbin/ioreg", "-rd1", "-c", "IOPlatformExpertDevice"]
        lines = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False).stdout
        found = re.search(r'"IOPlatformUUID" = "([^"]+)"', lines)
    else:
        found = re.fullmatch(r"([0-9a-f]{32})\n?", _MACHINE_ID.read_text(errors="replace"))
    return found[1] if found else ""
