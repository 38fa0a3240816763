"""`schedmate up` does not wait for ever for a bus that does not answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from schedmate.embedded import UpSettings, run_up
from schedmate.infra.health import StartError

if TYPE_CHECKING:
    from pathlib import Path


async def test_up_gives_up_on_a_bus_that_accepts_and_never_answers(
    tmp_path: Path, unused_tcp_port: int, socket_enabled: None
) -> None:
    async def silent(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)

    held: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(silent, "127.0.0.1", unused_tcp_port)
    settings = UpSettings(
        state_dir=tmp_path, bus=f"kafka://127.0.0.1:{unused_tcp_port}", health_port=0, api_port=0, start_timeout_s=0.5
    )
    try:
        async with asyncio.timeout(20):
            with pytest.raises(StartError, match=r"within 0\.5 s"):
                await run_up(settings, handle_signals=False)
    finally:
        for writer in held:
            writer.close()
        server.close()
        await server.wait_closed()
