"""A run without an end of its own: it goes on until it is told to stop, and then stops in order.

python endless.py
"""

import signal
import sys
import time
from types import FrameType


def stop(number: int, frame: FrameType | None) -> None:
    print(f"signal {number}: saving and leaving", flush=True)
    sys.exit(0)


def main() -> None:
    signal.signal(signal.SIGTERM, stop)
    step = 0
    while True:
        step += 1
        print(f"iteration {step}", flush=True)
        time.sleep(0.2)


if __name__ == "__main__":
    main()
