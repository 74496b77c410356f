"""The file system that holds a folder: a local one, or one of a network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Final

_NETWORK: Final = frozenset(
    {"9p", "afpfs", "afs", "beegfs", "ceph", "cifs", "davfs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4"}
    | {"smb3", "smbfs", "vboxsf", "webdav"}
    | {f"fuse.{name}" for name in ("ceph-fuse", "glusterfs", "rclone", "s3fs", "sshfs")}
)
_REMOTE_DRIVE: Final = 4  # return value of ``GetDriveTypeW`` for a network drive
_MOUNTS: Final = Path("/proc/self/mountinfo")  # mounts of Linux; see proc_pid_mountinfo(5)


def network_file_system(folder: Path) -> str:
    """Return the type of the network file system of ``folder``, such as ``"nfs4"``; empty if it is local or unknown."""
    with suppress(OSError):
        if sys.platform == "win32":
            import ctypes

            drive = os.path.splitdrive(os.path.realpath(folder))[0]
            return "network" if ctypes.windll.kernel32.GetDriveTypeW(f"{drive}\\") == _REMOTE_DRIVE else ""
        found = _type_on_a_mac(os.path.realpath(folder)) if sys.platform == "darwin" else _type_on_linux(folder)
        return found if found in _NETWORK else ""
    return ""


def _type_on_linux(folder: Path) -> str:
    device = os.stat(folder).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    # Before " - " come the numbers of the mount, of its parent and of the device; after it, the type.
    lines = (line.partition(" - ") for line in _MOUNTS.read_text(errors="replace").splitlines())
    return next((after.split()[0] for before, _, after in lines if before.split()[2] == number), "")


def _type_on_a_mac(folder: str) -> str:
    """Read lines such as ``//me@host/share on /Volumes/share (smbfs, nodev)``."""
    lines = subprocess.run(["/sbin/mount"], capture_output=True, text=True, errors="replace", check=False).stdout
    mounts = re.findall(r"^.* on (/.*) \((\w+)", lines, re.MULTILINE)
    return max(((len(top), kind) for top, kind in mounts if PurePath(folder).is_relative_to(top)), default=(0, ""))[1]
