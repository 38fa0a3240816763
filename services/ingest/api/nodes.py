"""Nodes and pools, and what operators may ask of a node."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Final

from fastapi import APIRouter, Path, Request

from schedmate.infra.store.port import scan_all
from schedmate.schemas.job import IDENTIFIER_PATTERN
from schedmate.services.ingest import commands, models, presentation
from schedmate.services.ingest.access import Principal
from schedmate.services.ingest.api import bodies
from schedmate.services.ingest.api.context import Context, Ctx
from schedmate.services.ingest.api.documentation import BODY, WHY_BODY, problems
from schedmate.services.ingest.api.jobs import tenants_of
from schedmate.services.ingest.api.security import Anyone, Reader, operating, publish_audited
from schedmate.services.ingest.commands import NodeCommand
from schedmate.services.ingest.problems import Kind, not_found
from schedmate.services.ingest.projection import View
from schedmate.services.ingest.read_model import JOBS, LAST_ID, NODE_VIEWS, VIEWS

router: Final = APIRouter(tags=["nodes"])

POOL_CONFIG: Final = "pool_config"
_OPEN_JOBS_MAX: Final = 10_000
_NAME: Final = re.compile(IDENTIFIER_PATTERN)


@router.get("/v1/nodes", operation_id="list_nodes", summary="List nodes", responses=problems())
async def list_nodes(context: Ctx, principal: Reader) -> models.NodeList:
    """Return all nodes with their GPUs. Which job runs on a GPU is told of the token's own tenant only."""
    return models.NodeList(nodes=await _nodes(context, principal, await _node_documents(context)))


async def _node_documents(context: Context) -> list[View]:
    return [d.body async for d in scan_all(context.store, NODE_VIEWS, low="", high=LAST_ID)]


async def _nodes(context: Context, principal: Principal, documents: Sequence[View]) -> list[models.NodeView]:
    jobs = sorted(presentation.jobs_on(documents))
    tenants = tenants_of(await context.store.get_many(JOBS, jobs)) if jobs else {}
    sees = {job_id: principal.sees(tenant) for job_id, tenant in tenants.items()}
    now = context.clock.now()
    return [presentation.node_view(document, now, sees) for document in documents]


@router.get(
    "/v1/pools/{pool}", operation_id="get_pool", summary="A pool at a glance", responses=problems(Kind.NOT_FOUND)
)
async def get_pool(pool: str, context: Ctx, principal: Reader) -> models.PoolView:
    """Return who leads a pool, its nodes and GPUs in numbers, and its unfinished jobs by state."""
    if not _NAME.fullmatch(pool):
        raise not_found("pool of this name")
    documents = [d for d in await _node_documents(context) if d.get("pool") == pool]
    nodes = await _nodes(context, principal, documents)
    unfinished = await context.store.find(VIEWS, "open_key", low="", high=LAST_ID, limit=_OPEN_JOBS_MAX, reverse=True)
    states = [str(d.body["state"]) for d in unfinished if d.body["pool"] == pool]
    config = await context.store.get(POOL_CONFIG, pool)
    lease = await context.leaders.lease(pool)
    if not nodes and not states and config is None and lease is None and pool != context.settings.default_pool:
        raise not_found("pool of this name")
    return presentation.pool_view(pool, nodes, states, lease, config.body if config is not None else None)


@router.post(
    "/v1/nodes/{node}/{command}",
    operation_id="command_node",
    status_code=202,
    summary="Drain, undrain or cordon a node, or declare it dead",
    responses=problems(*BODY, Kind.NOT_FOUND),
    openapi_extra=WHY_BODY,
)
async def command_node(
    node: str,
    command: Annotated[
        NodeCommand,
        Path(
            description="drain: start nothing more; cordon: the same until checked; undrain lifts both; "
            "declare-dead: vouch that nothing runs there any more."
        ),
    ],
    request: Request,
    context: Ctx,
    principal: Anyone,
) -> models.CommandAnswer:
    """Put an operator's call about a node on the bus. Needs the scope operate; every call is audited."""
    body = await bodies.json_body(request, models.CommandRequest)
    target = f"node/{node}" if _NAME.fullmatch(node) else "node/?"
    await operating(context, principal, command.value, target)
    document = await context.store.get(NODE_VIEWS, node) if _NAME.fullmatch(node) else None
    if document is None or document.body.get("pool") is None:
        raise not_found("node of this name")
    pool = str(document.body["pool"])
    at = context.clock.now()
    asked = commands.node_command(command, node, pool, principal, body.why, event_id=context.ids.new(), at=at)
    await publish_audited(context, principal, [asked], command.value, target, at=at)
    return models.CommandAnswer(node=node, pool=pool, command=command.value)
