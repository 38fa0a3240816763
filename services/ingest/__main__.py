"""`python -m schedmate.services.ingest`: one instance of ingest."""

from __future__ import annotations

import sys

from schedmate.infra.service import run_service
from schedmate.services.ingest.settings import IngestSettings
from schedmate.services.ingest.wiring import build

if __name__ == "__main__":
    sys.exit(run_service(IngestSettings, build))
