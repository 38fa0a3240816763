"""What a node keeps on disk: its journal, its place in the topic, a file for each member (protocol §2).

`STATE_DIR/NODE/`: `journal.jsonl`, `node.json`, `worker.lock`, `members/RUN.MEMBER.json`, `shipped/RUN.MEMBER`. Calls block (they sync) and
are made from one thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from schedmate.infra.processes.files import AppendedLines, FileLock, LockedError, read_whole, write_whole
from schedmate.infra.processes.port import MemberKey
from schedmate.schemas.events import MemberAssigned
from schedmate.schemas.job import Frozen
from schedmate.services.worker import journal
from schedmate.services.worker.fence import NOWHERE, Place
from schedmate.services.worker.member import Member


class RecordsError(Exception):
    """The node's files cannot be used. The message says what to do."""


class NodeFile(Frozen):
    """Where the node stands: sessions, lease, fence, and the next offset of its partition of `assignments` on which bus."""

    session: int
    lease_epoch: int
    applied_seq: int = NOWHERE.seq
    applied_index: int = NOWHERE.index
    bus: str | None = None
    offset: int | None = None

    @property
    def applied(self) -> Place:
        """The fence."""
        return Place(self.applied_seq, self.applied_index)

    def with_applied(self, place: Place) -> NodeFile:
        """Return the file with another fence."""
        return self.model_copy(update={"applied_seq": place.seq, "applied_index": place.index})


@dataclass(frozen=True, slots=True)
class Kept:
    """What was found on disk; `node` is None on a node that never ran."""

    node: NodeFile | None
    history: journal.History
    members: dict[MemberKey, Member]


class Records:
    """The node's files. One worker at a time: the lock is held from `open` to `close`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = FileLock(directory / "worker.lock")
        self._journal = AppendedLines(directory / "journal.jsonl")
        self._ended: set[MemberKey] = set()  # their end is in the journal

    def open(self) -> Kept:
        """Take the lock and read everything. Raises RecordsError."""
        for name in ("members", "shipped"):
            (self._directory / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self._lock.take()
        except LockedError as error:
            raise RecordsError(
                f"another worker runs on {self._directory}: stop it, or give this one another --node or --state-dir"
            ) from error
        try:
            history = journal.fold(self._journal.open())
            self._ended = set(history.ended)
            return Kept(self._read_node(), history, self._read_members())
        except (journal.JournalError, ValidationError, ValueError) as error:
            self.close()
            raise RecordsError(
                f"{self._directory} cannot be read ({error}): move it away to start the node anew"
            ) from error

    def close(self) -> None:
        """Close the journal and let go of the lock."""
        self._journal.close()
        self._lock.release()

    def save_node(self, node: NodeFile) -> None:
        """Write where the node stands."""
        write_whole(self._directory / "node.json", node.model_dump_json().encode())

    def save_member(self, member: Member) -> None:
        """Write a member."""
        write_whole(self._member_file(member.key), member.model_dump_json().encode())

    def drop_member(self, key: MemberKey) -> None:
        """Forget a member."""
        self._member_file(key).unlink(missing_ok=True)
        (self._directory / "shipped" / str(key)).unlink(missing_ok=True)

    def journal_start(self, member: Member, at: float) -> None:
        """Journal a start, then write it to the member's file."""
        self._journal.append(journal.started_line(member, at=at))
        self.save_member(member)

    def journal_end(self, member: Member, at: float) -> None:
        """Journal an end, then write it to the member's file.

        A worker that was killed between the two finds the end again; it stands in the journal once all the same.
        """
        if member.key not in self._ended:
            self._journal.append(journal.ended_line(member, at=at))
            self._ended.add(member.key)
        self.save_member(member)

    def journal_refusal(self, assigned: MemberAssigned, at: float, session: int) -> None:
        """Journal a refusal."""
        self._journal.append(journal.refused_line(assigned, at=at, session=session))

    def save_shipped(self, key: MemberKey, offset: int) -> None:
        """Write how far a member's output is on the bus. Not synced: what is sent twice is recognised."""
        write_whole(self._directory / "shipped" / str(key), str(offset).encode(), durable=False)

    def shipped(self, key: MemberKey) -> int:
        """Return how far a member's output is on the bus, as far as anybody remembers."""
        content = read_whole(self._directory / "shipped" / str(key)) or b"0"
        return int(content) if content.isdigit() else 0

    def _read_node(self) -> NodeFile | None:
        content = read_whole(self._directory / "node.json")
        return NodeFile.model_validate_json(content) if content is not None else None

    def _read_members(self) -> dict[MemberKey, Member]:
        members = {}
        for path in sorted((self._directory / "members").glob("*.json")):
            member = Member.model_validate_json(path.read_bytes())
            members[member.key] = member
        return members

    def _member_file(self, key: MemberKey) -> Path:
        return self._directory / "members" / f"{key}.json"
