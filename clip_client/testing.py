"""A Triton for tests: real gRPC on a loopback port, without a model, which fails as a script says.

::

    async with FakeTriton() as server, ClipClient(server.url) as clip:
        server.script(Reply(status=grpc.StatusCode.UNAVAILABLE, details="Socket closed"))
        batch = await clip.embed([b"any bytes"])        # the first request fails, the retry is answered
        assert np.allclose(batch.vectors[0], server.vector(b"any bytes"))
        assert len(server.requests) == 2

:class:`Relay` stands between a client and any server and breaks the network. :class:`InMemoryTransports` leaves the
network out: ``ClipClient("anywhere", transport_factory=InMemoryTransports({"anywhere": FakeTriton()}))`` calls the fake
directly, which also works in an event loop with simulated time. :class:`LoopWatch` measures whether something blocked
the event loop.
"""

from clip_client._testing.fake_triton import PNG_1X1, FakeTriton, ReceivedRequest, Reply, fake_vector
from clip_client._testing.in_memory import InMemoryChannel, InMemoryTransports
from clip_client._testing.loop_monitor import LoopWatch
from clip_client._testing.relay import Relay

__all__ = (
    "PNG_1X1",
    "FakeTriton",
    "InMemoryChannel",
    "InMemoryTransports",
    "LoopWatch",
    "ReceivedRequest",
    "Relay",
    "Reply",
    "fake_vector",
)

for _name in __all__:
    # Tracebacks and reprs then show the path that users import from.
    if isinstance(_object := globals()[_name], type):
        _object.__module__ = __name__
del _name, _object
