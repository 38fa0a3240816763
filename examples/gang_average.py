"""A gang that averages numbers over TCP: member 0 listens at MASTER_ADDR:MASTER_PORT, all others connect.

Started once a node with torchrun's variables in its environment (MASTER_ADDR, MASTER_PORT, NODE_RANK, NNODES, WORLD_SIZE).

    python gang_average.py --rounds 20
"""

import argparse
import os
import socket
import time


def connect(address: tuple[str, int], patience_s: float) -> socket.socket:
    """The other members may start a little earlier than member 0."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return socket.create_connection(address, timeout=30)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--round-time", type=float, default=0.15)
    args = parser.parse_args()
    rank, nodes = int(os.environ["NODE_RANK"]), int(os.environ["NNODES"])
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    print(
        f"member {rank} of {nodes}, world size {os.environ['WORLD_SIZE']}, GPUs {os.environ['CUDA_VISIBLE_DEVICES']}",
        flush=True,
    )
    value = float(rank + 1)
    if rank == 0:
        with socket.create_server(address) as server:
            server.settimeout(30)
            peers = [server.accept()[0].makefile("rw") for _ in range(nodes - 1)]
            for step in range(1, args.rounds + 1):
                values = [value] + [float(peer.readline()) for peer in peers]
                value = sum(values) / len(values)
                for peer in peers:
                    peer.write(f"{value}\n")
                    peer.flush()
                print(f"step {step}/{args.rounds} loss={abs(value - (nodes + 1) / 2):.4f}", flush=True)
                time.sleep(args.round_time)
    else:
        with connect(address, 30).makefile("rw") as master:
            for step in range(1, args.rounds + 1):
                master.write(f"{value}\n")
                master.flush()
                value = float(master.readline())
                print(f"step {step}/{args.rounds}", flush=True)
    print(f"member {rank}: all agree on {value}", flush=True)


if __name__ == "__main__":
    main()
