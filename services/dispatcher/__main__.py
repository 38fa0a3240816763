"""`python -m schedmate.services.dispatcher`: one dispatcher."""

from __future__ import annotations

import sys

from schedmate.infra.service import run_service
from schedmate.services.dispatcher.settings import DispatcherSettings
from schedmate.services.dispatcher.wiring import build

if __name__ == "__main__":
    sys.exit(run_service(DispatcherSettings, build))
