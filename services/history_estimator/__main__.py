"""`python -m schedmate.services.history_estimator`."""

import sys

from schedmate.infra.service import run_service
from schedmate.services.history_estimator.settings import HistoryEstimatorSettings
from schedmate.services.history_estimator.wiring import build

if __name__ == "__main__":
    sys.exit(run_service(HistoryEstimatorSettings, build))
