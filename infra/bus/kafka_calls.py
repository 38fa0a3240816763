"""What every call to Kafka shares: a limit on its time, retries of what passes, and errors in the port's words."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import Any, Final, TypeVar

from aiokafka import errors
from aiokafka.structs import TopicPartition

from schedmate.infra.bus.port import (
    BusError,
    BusUnavailableError,
    MissingTopicError,
    Partition,
    RecordTooLargeError,
)

T = TypeVar("T")

_RETRY_EVERY_S: Final = 0.2
_REFUSED: Final = (
    errors.TopicAuthorizationFailedError,
    errors.GroupAuthorizationFailedError,
    errors.ClusterAuthorizationFailedError,
    errors.AuthenticationFailedError,
    errors.SaslAuthenticationFailed,
    errors.UnsupportedSaslMechanismError,
    errors.PolicyViolationError,
    errors.InvalidConfigurationError,
    errors.InvalidTopicError,
    errors.InvalidReplicationFactorError,
)


@dataclass(frozen=True, slots=True)
class Access:
    """Where Kafka is, who we are, and how to know that it is Kafka."""

    servers: str
    client_id: str
    security_protocol: str = "PLAINTEXT"
    ssl_context: SSLContext | None = None
    sasl_mechanism: str = "PLAIN"
    sasl_plain_username: str | None = None
    sasl_plain_password: str | None = field(default=None, repr=False)
    request_timeout_s: float = 10.0

    def arguments(self) -> Mapping[str, Any]:
        """Return the arguments that all of aiokafka's clients take."""
        return {
            "bootstrap_servers": self.servers,
            "client_id": self.client_id,
            "security_protocol": self.security_protocol,
            "ssl_context": self.ssl_context,
            "sasl_mechanism": self.sasl_mechanism,
            "sasl_plain_username": self.sasl_plain_username,
            "sasl_plain_password": self.sasl_plain_password,
            "request_timeout_ms": int(self.request_timeout_s * 1000),
            "retry_backoff_ms": 100,
            "metadata_max_age_ms": 60_000,
        }


async def bounded(what: str, timeout_s: float, call: Callable[[], Awaitable[T]], *, retry: bool = True) -> T:
    """Return what `call` gives, calling again for as long as the error is one that passes.

    Raises:
        BusUnavailableError: nothing came within `timeout_s`.
        BusError: or one of its kinds, for what a retry does not mend.
    """
    last: Exception | None = None
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    return await call()
                except errors.KafkaError as error:
                    mapped = translated(error, what)
                    if not retry or not isinstance(mapped, BusUnavailableError):
                        raise mapped from error
                    last = error
                await asyncio.sleep(_RETRY_EVERY_S)
    except TimeoutError as error:
        told = f"; the last error was {last!r}" if last is not None else ""
        raise BusUnavailableError(f"{what}: Kafka did not answer within {timeout_s:g} s{told}") from (last or error)


def translated(error: Exception, what: str) -> BusError:
    """Return the port's error for one of aiokafka's."""
    text = f"{what}: {type(error).__name__}: {error}"
    if isinstance(error, errors.MessageSizeTooLargeError | errors.RecordListTooLargeError):
        return RecordTooLargeError(text)
    if isinstance(error, errors.UnknownTopicOrPartitionError):
        return MissingTopicError(text)
    if isinstance(error, _REFUSED):
        return BusError(text)
    return BusUnavailableError(text)


def theirs(partition: Partition) -> TopicPartition:
    """Return aiokafka's name of a partition."""
    return TopicPartition(partition.topic, partition.number)


def ours(partition: TopicPartition) -> Partition:
    """Return the port's name of a partition."""
    return Partition(partition.topic, partition.partition)
