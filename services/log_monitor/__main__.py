"""`python -m schedmate.services.log_monitor`."""

import sys

from schedmate.infra.service import run_service
from schedmate.services.log_monitor.settings import LogMonitorSettings
from schedmate.services.log_monitor.wiring import build

if __name__ == "__main__":
    sys.exit(run_service(LogMonitorSettings, build))
