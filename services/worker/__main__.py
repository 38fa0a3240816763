"""`python -m schedmate.services.worker`."""

from __future__ import annotations

import sys

from schedmate.infra.service import run_service
from schedmate.services.worker.settings import WorkerSettings
from schedmate.services.worker.wiring import build

if __name__ == "__main__":
    sys.exit(run_service(WorkerSettings, build))
