"""Which partition a key belongs to: Kafka's own murmur2, so that every adapter and every client agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from schedmate.infra.bus.port import Partition

_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of `key` among `partitions`, as Kafka's default partitioner does for a key that is not null."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(key: bytes) -> int:
    """Return the 32-bit MurmurHash2 of `key` as an unsigned number.

    Source: A. Appleby, MurmurHash2 (public domain), with the seed of org.apache.kafka.common.utils.Utils.murmur2.
    """
    length = len(key)
    whole = length & ~3
    state = _SEED ^ length
    for at in range(0, whole, 4):
        word = int.from_bytes(key[at : at + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MULTIPLIER & _MASK
        state = (state * _MULTIPLIER & _MASK) ^ word
    if whole < length:
        state = (state ^ int.from_bytes(key[whole:], "little")) * _MULTIPLIER & _MASK
    state = (state ^ state >> 13) * _MULTIPLIER & _MASK
    return state ^ state >> 15


def ranges(members: Mapping[str, Sequence[str]], partitions: Mapping[str, int]) -> dict[Partition, str]:
    """Share topics among a group's members (name → topics it reads), as Kafka's range assignor does.

    Topics of equal partition counts are shared alike: partition n of each goes to the same member, so that a key is one
    member's business on all of them.
    """
    shares: dict[Partition, str] = {}
    for topic in sorted({topic for topics in members.values() for topic in topics}):
        readers = sorted(name for name, topics in members.items() if topic in topics)
        each, more = divmod(partitions[topic], len(readers))
        number = 0
        for place, reader in enumerate(readers):
            for _ in range(each + (1 if place < more else 0)):
                shares[Partition(topic, number)] = reader
                number += 1
    return shares
