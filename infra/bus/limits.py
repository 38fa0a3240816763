"""How large a record is: one measure for all adapters, so that what passes on one passes on all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from schedmate.infra.bus.port import RecordTooLargeError
from schedmate.schemas.wire import Record

_RECORD_OVERHEAD_BYTES: Final = 128  # Kafka's batch header (61) and a record's own lengths, rounded up
_HEADER_OVERHEAD_BYTES: Final = 10  # two lengths of at most five bytes


def record_bytes(record: Record) -> int:
    """Return an upper bound of what Kafka's log takes for this record alone in a batch, which is what its limit counts."""
    headers = sum(len(name.encode()) + len(value) + _HEADER_OVERHEAD_BYTES for name, value in record.headers)
    return len(record.key) + len(record.value) + headers + _RECORD_OVERHEAD_BYTES


def check_sizes(records: Sequence[Record], limits: Mapping[str, int]) -> None:
    """Raise RecordTooLargeError for the first record that is larger than its topic's limit (bytes)."""
    for record in records:
        size, limit = record_bytes(record), limits[record.topic]
        if size > limit:
            raise RecordTooLargeError(
                f"a record of {size} bytes for {record.topic} (limit {limit}, headers and overhead included) was refused"
            )
