"""The read model of nodes and of dead letters (pure); the rules are those of `projection`."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Mapping
from typing import Final

from schedmate.infra.store.port import Json
from schedmate.schemas.events import (
    CallAudited,
    DeadLettered,
    Event,
    MemberAssigned,
    MemberReleased,
    MemberStopOrdered,
    NodeCordoned,
    NodeDecision,
    NodeDrained,
    NodeFaultObserved,
    NodeJoined,
    NodeLost,
    NodeReported,
    NodeReserved,
    NodeUncordoned,
    NodeUnreachable,
    NodeUnreserved,
)
from schedmate.schemas.wire import HEADER_TOKEN, Envelope
from schedmate.services.ingest.projection import View, with_call

FAULTS_KEPT: Final = 20

_WORDS: Final[dict[type[NodeDecision], tuple[str, str | None]]] = {
    NodeCordoned: ("mark", "cordoned"),
    NodeDrained: ("mark", "drained"),
    NodeUncordoned: ("mark", None),
    NodeLost: ("away", "lost"),
    NodeUnreachable: ("away", "silent"),
    NodeJoined: ("away", None),
    NodeReserved: ("reservation", "reserved"),
    NodeUnreserved: ("reservation", None),
}
"""What a decision says a word about (may it be used, is it there, is it in maintenance), and the word."""

_ORDERS: Final = (MemberAssigned, MemberStopOrdered, MemberReleased)


def node_of(event: Event) -> str | None:
    """Return the node that an event is about, as far as the read model of nodes goes."""
    if isinstance(event, CallAudited):
        return event.target.removeprefix("node/") if event.target.startswith("node/") else None
    if isinstance(
        event, NodeReported | NodeDecision | NodeFaultObserved | MemberAssigned | MemberStopOrdered | MemberReleased
    ):
        return event.node
    return None


def fold_node(view: View | None, node: str, envelope: Envelope[Event]) -> View:
    """Return the node's document after an event; the very same object when the event adds nothing."""
    before: View = view if view is not None else {"node": node}
    event = envelope.event
    if isinstance(event, NodeReported):
        return _reported(before, event)
    if isinstance(event, NodeDecision):
        return _decided(before, event)
    if isinstance(event, NodeFaultObserved):
        return _fault(before, event)
    if isinstance(event, CallAudited):
        calls = with_call(before.get("calls", []), event)
        return before if calls is None else {**before, "calls": calls}
    if isinstance(event, _ORDERS):
        ordered = [event.seq, event.index]
        return (
            before if ordered <= before.get("ordered", [-1, -1]) else {**before, "ordered": ordered, "pool": event.pool}
        )
    return before


def _reported(view: View, event: NodeReported) -> View:
    known = view.get("report")
    if known is not None and (event.session, event.report_no) <= (known["session"], known["report_no"]):
        return view
    report = event.model_dump(mode="json", exclude={"node"})
    return {**view, "pool": event.pool, "report": report}


def _decided(view: View, event: NodeDecision) -> View:
    """Keep the newest word on each of what `_WORDS` tells apart, by its place."""
    if type(event) not in _WORDS:
        return view
    name, state = _WORDS[type(event)]
    place = [event.seq, event.index]
    known = view.get(name)
    if known is not None and known["pool"] == event.pool and place <= list(known["place"]):
        return view
    word = {"state": state, "why": event.why, "at": event.decided_at, "pool": event.pool, "place": place}
    return {**view, "pool": view.get("pool", event.pool), name: word}


def _fault(view: View, event: NodeFaultObserved) -> View:
    fault = event.model_dump(mode="json", exclude={"node", "pool"}, exclude_none=True)
    faults: list[Json] = view.get("faults", [])
    if fault in faults:
        return view
    kept = sorted([*faults, fault], key=lambda f: (f["at"], f["text"]))[-FAULTS_KEPT:]
    return view if fault not in kept else {**view, "faults": kept}


def dead_letter_id(envelope: Envelope[DeadLettered]) -> str:
    """Return the id of a dead letter's document: newest last."""
    return f"{int(envelope.event.at * 1000):015d}-{envelope.id}"


def dead_letter(envelope: Envelope[DeadLettered]) -> dict[str, Json]:
    """Return the document of a dead letter. A token in its headers is dropped: it is verified, never forwarded."""
    event = envelope.event
    body = event.model_dump(mode="json", exclude={"original_value", "original_headers"})
    body["original_headers"] = [[name, value] for name, value in event.original_headers if name != HEADER_TOKEN]
    body["original_value"] = urlsafe_b64encode(event.original_value).decode()
    body["event_id"] = envelope.id
    return body


def resends(body: Mapping[str, Json]) -> int:
    """Return how often the dead letter was sent back through this read model."""
    return int(body.get("resends", 0))
