"""`python -m schedmate.infra.servers`: see command.py."""

import sys

from schedmate.infra.servers.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
