"""The command line's root: all commands, one way to fail."""

from __future__ import annotations

import sys

import typer

from schedmate.cli import (
    analyze_commands,
    cluster_commands,
    diagnose_command,
    embedding_commands,
    event_commands,
    history_commands,
    job_commands,
    order_commands,
    pool_commands,
    progress_command,
    service_commands,
    simulate_commands,
    token_commands,
    trace_commands,
)
from schedmate.client import ApiError, ClientError
from schedmate.infra.blobs.port import BlobError
from schedmate.infra.bus.port import BusError
from schedmate.infra.health import StartError
from schedmate.infra.settings import SettingsError
from schedmate.infra.store.port import StoreError
from schedmate.infra.telemetry.logs import setup_logging
from schedmate.infra.telemetry.redaction import redact
from schedmate.simulator.engine import SimulationError
from schedmate.simulator.trace import TraceError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_STOPPED = 130
_WrongUse: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")
"""Base of the parser's errors; typer bears its own copy of click and names it nowhere public."""
_USAGE_STATUS = frozenset({400, 401, 403, 404, 409, 411, 413, 415, 422})

app = typer.Typer(
    name="schedmate",
    help="GPU-cluster scheduling that understands the jobs it schedules.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

for module in (
    job_commands,
    cluster_commands,
    analyze_commands,
    diagnose_command,
    history_commands,
    progress_command,
    service_commands,
    simulate_commands,
):
    module.register(app)
app.add_typer(embedding_commands.app, name="embeddings")
app.add_typer(event_commands.app, name="events")
app.add_typer(history_commands.app, name="history")
app.add_typer(token_commands.app, name="tokens")
app.add_typer(trace_commands.app, name="traces")
app.add_typer(order_commands.app, name="job")
app.add_typer(pool_commands.app, name="pool")


def main() -> None:
    """Run the command line; every expected failure is one clear line on standard error."""
    setup_logging(
        "error", "console"
    )  # a command's own output is standard output's; services set theirs when they start
    try:
        outcome = app(standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        _fail("stopped", EXIT_STOPPED)
    except _WrongUse as error:
        said = error.format_message() if hasattr(error, "format_message") else str(error)
        _fail(said or "see --help", EXIT_USAGE)
    except ApiError as error:
        fields = "; ".join(f"{e.field}: {e.message}" if e.field else e.message for e in error.problem.errors or [])
        _fail(
            f"{error}{f' ({fields})' if fields else ''}", EXIT_USAGE if error.status in _USAGE_STATUS else EXIT_FAILED
        )
    except SettingsError as error:
        _fail(str(error), EXIT_USAGE)
    except (ClientError, BusError, StoreError, BlobError, StartError, TraceError, SimulationError) as error:
        _fail(str(error), EXIT_FAILED)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(EXIT_FAILED)
    else:
        sys.exit(outcome if isinstance(outcome, int) else 0)


def _fail(message: str, code: int) -> None:
    sys.stderr.write(f"schedmate: {redact(' '.join(message.split()))}\n")
    sys.exit(code)
