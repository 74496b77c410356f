"""The kernel's choice between servers that share a port, with sockets in the place of the servers."""

import select
import socket
from contextlib import ExitStack

import pytest

from clip_client.serving.port_handover import CANARY_DSCP, PortHandover
from preprocess_ensemble.errors import ReportedError

ADDRESSES = {"127.0.0.1": (socket.AF_INET, socket.IPPROTO_IP, socket.IP_TOS), "::1": (
    socket.AF_INET6, socket.IPPROTO_IPV6, socket.IPV6_TCLASS,
)}  # fmt: skip


class SharedPort:
    """A port on which some servers listen, each with two sockets, as gRPC does."""

    def __init__(self, host: str, stack: ExitStack) -> None:
        self.address, self.port = (ADDRESSES[host][0], host), 0
        self._mark = ADDRESSES[host][1:]
        self._stack = stack

    def server(self) -> list[socket.socket]:
        sockets = [self._stack.enter_context(socket.socket(self.address[0])) for _ in range(2)]
        for one in sockets:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            one.bind((self.address[1], self.port))
            one.listen()
            self.port = one.getsockname()[1]
        return sockets

    def reaches(self, server: list[socket.socket], *, is_canary: bool = False) -> bool:
        for _ in range(16):
            with socket.socket(self.address[0]) as client:
                client.settimeout(10)
                if is_canary:
                    client.setsockopt(*self._mark, CANARY_DSCP << 2)
                client.connect((self.address[1], self.port))
                waiting = select.select(server, [], [], 0)[0]
                if not waiting:
                    return False
                waiting[0].accept()[0].close()
        return True


@pytest.mark.parametrize("host", ADDRESSES)
def test_the_port_goes_from_one_server_to_the_next(host: str) -> None:
    with ExitStack() as stack:
        port = SharedPort(host, stack)
        old = port.server()
        for _ in range(2):  # the second time, the kernel still has the program of the first
            handover = PortHandover([port.address] * 2, port.port)
            assert port.reaches(old)
            for one in port.server():  # a new server that is not taken changes nothing
                one.close()
            assert port.reaches(old)
            handover.close()
            assert port.reaches(old)
            handover = PortHandover([port.address] * 2, port.port)
            new = port.server()
            assert port.reaches(old)
            assert port.reaches(new, is_canary=True)
            handover.switch()
            assert port.reaches(new)
            for one in old:
                one.close()
            assert port.reaches(new), "positions have changed"
            handover.close()
            assert port.reaches(new)
            old = new


def test_each_address_of_a_server_is_handed_over() -> None:
    with ExitStack() as stack:
        ports = [SharedPort(host, stack) for host in ADDRESSES]
        old = [ports[0].server()]
        ports[1].port = ports[0].port
        old.append(ports[1].server())
        handover = PortHandover([port.address for port in ports for _ in range(2)], ports[0].port)
        stack.callback(handover.close)
        new = [port.server() for port in ports]
        assert all(port.reaches(server) for port, server in zip(ports, old, strict=True))
        assert all(port.reaches(server, is_canary=True) for port, server in zip(ports, new, strict=True))
        handover.switch()
        assert all(port.reaches(server) for port, server in zip(ports, new, strict=True))


def test_a_port_that_is_not_shared_is_not_handed_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as alone:
        address, port = alone.getsockname()
        with pytest.raises(ReportedError, match="Address already in use"):
            PortHandover([(socket.AF_INET, address)], port)
    with pytest.raises(ReportedError, match="not visible"):
        PortHandover([], port)
