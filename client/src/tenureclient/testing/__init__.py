"""A reservation service for the tests of your own code.

``FakeServer`` is a real HTTP server on a free port of this machine. Behind it is Tenure itself, on a
simulated cloud, with a clock that only your test moves:

    from datetime import timedelta
    from tenureclient import NOW, ReservationRequest
    from tenureclient.testing import FakeServer

    def test_my_code():
        with FakeServer() as server:
            server.add_host("compute-1", vcpus=16, properties={"gpu": "v100"})
            client = server.client()
            lease = client.leases.create(
                "bio-42",
                start=NOW,
                end=server.now + timedelta(days=1),
                reservations=[ReservationRequest.hosts(1, conditions=["gpu=v100"])],
            )
            assert client.leases.wait(lease.id).status == "ACTIVE"   # no test sleeps
            server.advance(timedelta(days=1))
            assert client.leases.get(lease.id).status == "TERMINATED"

A separate program reaches the server with the environment of ``server.environment()``.
``FakeServer(versions=("1.0",))`` behaves like Blazar, which knows API 1.0 only.

It needs the server's distribution: ``pip install 'tenure-client[testing]'``.
"""

try:
    import tenure.simulation  # noqa: F401 - the client does not depend on it
except ModuleNotFoundError as error:
    raise ImportError("tenureclient.testing needs the Tenure server: pip install 'tenure-client[testing]'") from error

from tenureclient.testing.front import SeenRequest
from tenureclient.testing.server import FakeServer

__all__ = ["FakeServer", "SeenRequest"]
