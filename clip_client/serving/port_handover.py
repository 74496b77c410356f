"""Hand a TCP port from one tritonserver to another while clients use it.

Both servers listen on the port with ``SO_REUSEPORT``, and the kernel asks a program (classic BPF) which socket gets a
new connection. Before the switch it is a socket of the old server, except for connections with the mark of the canary;
after the switch it is a socket of the new server.

The program names a socket by its position in the order in which the sockets began to listen. When a socket closes, the
last socket takes its position. This process therefore listens, too: one socket attaches the program, and as many as the
old server has take the positions that it leaves. These sockets drop every packet. If the first packet of a client
reaches one of these sockets while positions change, TCP repeats the packet, and it reaches a server.

A server may have several addresses, as for a name with several. Each address has its own order and program.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from collections import Counter
from collections.abc import Sequence
from typing import Final

from preprocess_ensemble.errors import ReportedError

CANARY_DSCP: Final = 45
"""Marks a connection to the new server before the switch, in the IP header; IANA has not assigned the value."""

_SO_ATTACH_REUSEPORT_CBPF: Final = getattr(socket, "SO_ATTACH_REUSEPORT_CBPF", 51)
_SO_ATTACH_FILTER: Final = getattr(socket, "SO_ATTACH_FILTER", 26)
_IP_HEADER, _RANDOM = 0xFFF00000, 0xFFFFF000 + 56
"""Addresses that a program may load from: SKF_NET_OFF, and SKF_AD_OFF + SKF_AD_RANDOM."""
_LOAD_BYTE, _LOAD_HALF, _LOAD_WORD, _AND, _MODULO, _ADD, _SHIFT_RIGHT = 0x30, 0x28, 0x20, 0x54, 0x94, 0x04, 0x74
_IF_EQUAL, _RETURN, _RETURN_RESULT = 0x15, 0x06, 0x16

_Address = tuple[socket.AddressFamily, str]
_Instruction = tuple[int, int, int, int]  # code, instructions to skip if true and if false, operand
_DROP: Final[list[_Instruction]] = [(_RETURN, 0, 0, 0)]


class PortHandover:
    """Decides which of two servers has the port. Create it before the new server starts; close it after one ends."""

    def __init__(self, addresses: Sequence[_Address], port: int) -> None:
        """Let the old server keep the port until the switch. Raises ReportedError if the kernel does not allow it."""
        if not addresses:
            raise ReportedError(f"the sockets of port {port} are not visible")
        self._addresses = Counter(addresses)
        self._port = port
        self._sockets: list[socket.socket] = []
        try:
            for address, count in self._addresses.items():
                _steer(self._listen(address), count, others=0)
        except OSError as error:
            self.close()
            raise ReportedError(f"the kernel refuses it ({error.strerror})") from None

    def switch(self) -> None:
        for address, count in self._addresses.items():
            listener, *_ = [self._listen(address) for _ in range(count)]
            _steer(listener, count, others=count + 1)

    def close(self) -> None:
        """Leave the port to the server that still listens."""
        while self._sockets:
            self._sockets.pop().close()

    def _listen(self, address: _Address) -> socket.socket:
        family, host = address
        listener = socket.socket(family, socket.SOCK_STREAM)
        self._sockets.append(listener)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # as gRPC's
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        _attach(listener, _SO_ATTACH_FILTER, _DROP)
        listener.bind((host, self._port))
        listener.listen(1)
        return listener


def _steer(listener: socket.socket, count: int, *, others: int) -> None:
    program: list[_Instruction] = [
        (_LOAD_BYTE, 0, 0, _IP_HEADER),
        (_SHIFT_RIGHT, 0, 0, 4),
        (_IF_EQUAL, 0, 4, 6),
        (_LOAD_HALF, 0, 0, _IP_HEADER),  # IPv6: version, six bits of DSCP, ...
        (_AND, 0, 0, 0x0FC0),
        (_IF_EQUAL, 4, 0, CANARY_DSCP << 6),
        (_IF_EQUAL, 7, 7, 0),  # skips to the others
        (_LOAD_BYTE, 0, 0, _IP_HEADER + 1),  # IPv4: six bits of DSCP, ...
        (_AND, 0, 0, 0xFC),
        (_IF_EQUAL, 0, 4, CANARY_DSCP << 2),
        (_LOAD_WORD, 0, 0, _RANDOM),
        (_MODULO, 0, 0, count),
        (_ADD, 0, 0, count + 1),
        (_RETURN_RESULT, 0, 0, 0),
        (_LOAD_WORD, 0, 0, _RANDOM),
        (_MODULO, 0, 0, count),
        (_ADD, 0, 0, others),
        (_RETURN_RESULT, 0, 0, 0),
    ]
    _attach(listener, _SO_ATTACH_REUSEPORT_CBPF, program)


def _attach(listener: socket.socket, option: int, program: list[_Instruction]) -> None:
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in program))
    listener.setsockopt(socket.SOL_SOCKET, option, struct.pack("HP", len(program), ctypes.addressof(code)))
