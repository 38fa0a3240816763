"""What peer simulators came to on the same traces: the tables that ship beside the traces, row by row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from schedmate.simulator.results.grid import NOISE_OF_OCTOBER, Case

EQUAL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Peer:
    """One figure of a peer. `within`: the share that ours may differ by and be called near; None: rules differ, it stands beside."""

    peer: str
    case: Case
    avg_jct_s: float
    within: float | None
    cpu_s: float | None = None
    note: str = ""

    def verdict(self, avg_jct_s: float) -> str:
        """Say how ours stands to it."""
        if abs(avg_jct_s - self.avg_jct_s) <= EQUAL_S:
            return "equal"
        off = f"{100 * (avg_jct_s / self.avg_jct_s - 1):+.1f} %"
        if self.within is None:
            return off
        return f"{off}, {'within' if abs(avg_jct_s / self.avg_jct_s - 1) <= self.within else '**not within**'} {100 * self.within:g} %"


_LUCID = "Lucid's simulator"
_CHECK = "re-check by HeliosArtifact's rules"
_EXACT = 0.0
_WEEK_NOISE = "column:pred_noise_s"

PEERS: Final = (
    Peer(_LUCID, Case("week-54", "fifo", "none"), 66_675.7, _EXACT, 307),
    Peer(_LUCID, Case("week-54", "sjf", "oracle"), 12_991.0, _EXACT, 185),
    Peer(_LUCID, Case("week-54", "qssf", _WEEK_NOISE), 15_401.2, None, 277, "the peer sorts by GPU count until a queue exists; ours always by the expected GPU time, for which a re-check gives 17,063.8"),
    Peer("re-check, always sorted", Case("week-54", "qssf", _WEEK_NOISE), 17_063.8, _EXACT),
    Peer("re-check, always sorted", Case("week-54", "qssf", "column:pred_causal_s"), 14_135.7, None, None, "a third re-check gave 14,022.0; the cause of the difference is not known"),
    Peer(_LUCID, Case("week-54", "tiresias", "none"), 10_436.2, 0.02, 152),
    Peer("re-check", Case("week-72", "fifo", "none"), 16_500.4, _EXACT, 0.1, "the CPU time is a bare event loop's"),
    Peer("re-check", Case("week-72", "sjf", "oracle"), 8_718.0, _EXACT, 0.1, "the CPU time is a bare event loop's"),
    Peer(_LUCID, Case("week-72", "qssf", _WEEK_NOISE), 8_896.6, None, 153, "as above"),
    Peer(_LUCID, Case("week-72", "srtf", "oracle"), 8_075.6, None, 494, "decided every second there, at every event here"),
    Peer(_LUCID, Case("week-72", "tiresias", "none"), 8_082.1, 0.02, 170),
    Peer(_LUCID, Case("week-72", "lucid", "oracle"), 8_007.2, None, 250, "[the peer's profiles are drawn at random, and so are ours](policies/lucid.md): no target"),
    Peer(_LUCID, Case("week-72", "lucid", "none"), 8_007.2, None, 250, "the same without estimates"),
    Peer(_CHECK, Case("october-1.0", "fifo", "none"), 25_622.1, _EXACT),
    Peer(_CHECK, Case("october-1.0", "sjf", "oracle"), 24_817.7, _EXACT),
    Peer(_CHECK, Case("october-1.0", "qssf", NOISE_OF_OCTOBER), 25_152.0, _EXACT),
    Peer(_CHECK, Case("october-0.75", "fifo", "none"), 49_538.3, _EXACT),
    Peer(_CHECK, Case("october-0.75", "sjf", "oracle"), 28_469.5, _EXACT),
    Peer(_CHECK, Case("october-0.75", "qssf", NOISE_OF_OCTOBER), 32_583.1, _EXACT),
    Peer(_CHECK, Case("october-0.5", "fifo", "none"), 362_524.2, _EXACT),
    Peer(_CHECK, Case("october-0.5", "sjf", "oracle"), 44_153.3, _EXACT),
    Peer(_CHECK, Case("october-0.5", "qssf", NOISE_OF_OCTOBER), 51_904.5, _EXACT),
    Peer("Tiresias' simulator", Case("tiresias-60", "fifo", "none"), 219.18, None, None, "the peer takes the first node that fits, ours the one that fits best; by the peer's rule ours is 219.18 ([first fit](simulator.md#your-own-policy))"),
    Peer("Tiresias' simulator", Case("tiresias-60", "tiresias", "none"), 190.68, None, None, "jobs of two minutes: ours decides every 60 s, the peer at every event"),
    *(
        Peer("Pollux' simulator", Case(f"pollux-{n}", "tiresias", "none"), jct_s, 0.02, cpu_s, "[how the profiles are read](pollux.md)")
        for n, jct_s, cpu_s in (
            (1, 2_473.65, None), (2, 5_144.96, None), (3, 3_876.26, None), (4, 3_280.26, None), (5, 3_501.01, None), (6, 3_469.69, 49),
        )
    ),
    Peer("Muri's simulator", Case("muri-3", "srtf", "oracle"), 193_082, None, 2.6, "other rules of placement and restart"),
    Peer("Muri's simulator", Case("muri-3", "tiresias", "none"), 347_213, None, 3.1, "other queues, rules of placement and restart; overload"),
    Peer("Muri's simulator", Case("muri-1", "srtf", "oracle"), 1_370_603, None, 8, "as above; twice the load that the GPUs can bear"),
    Peer("Muri's simulator", Case("muri-1", "tiresias", "none"), 3_330_371, None, 12, "as above: 54 % of its jobs come to the second queue, where ours is first in, first out"),
)  # fmt: skip
