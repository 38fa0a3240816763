"""`python -m schedmate.services.code_analyzer`."""

import sys

from schedmate.infra.service import run_service
from schedmate.services.code_analyzer.settings import CodeAnalyzerSettings
from schedmate.services.code_analyzer.wiring import build

if __name__ == "__main__":
    sys.exit(run_service(CodeAnalyzerSettings, build))
