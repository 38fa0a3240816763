"""The real servers as tests see them: the shared ones by address, and own ones to stop, restart and kill.

    kafka = KafkaServer(tmp_path / "kafka", OWN_KAFKA).start()      # about 2 s; kafka.address, kafka.bootstrap
    await asyncio.to_thread(kafka.kill)                             # SIGKILL, as a crash would
    await asyncio.to_thread(kafka.restart)                          # the same data, the same port

Each is a context manager too, which stops the server whatever happened.
"""

from __future__ import annotations

import os

from schedmate.infra.servers.kafka import KafkaServer
from schedmate.infra.servers.mongo import MongoServer
from schedmate.infra.servers.ollama import OllamaServer
from schedmate.infra.servers.tracing import TracingServer

__all__ = ["OWN_KAFKA", "OWN_MONGO", "KafkaServer", "MongoServer", "OllamaServer", "TracingServer", "shared"]

#: ports for a test's own servers: free ones, chosen at the first start and kept over restarts
OWN_KAFKA = {"client": 0, "controller": 0}
OWN_MONGO = {"client": 0}


def shared(variable: str) -> str:
    """What `make servers` wrote for e.g. SCHEDMATE_TEST_KAFKA; an error, not a skip, when it is not there."""
    value = os.environ.get(variable)
    if not value:
        message = (
            f"{variable} is not set: run `make servers` and read .servers/env into the shell (make test-servers does)"
        )
        raise LookupError(message)
    return value
