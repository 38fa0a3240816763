"""The metric tracker's parts: slow-down, routine, restarts, proposals, the command."""

from __future__ import annotations

import dataclasses
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from typer.testing import CliRunner

from schedmate.cli.app import app
from schedmate.schemas.events import Phase
from schedmate.services.log_monitor.metrics import proposal
from schedmate.services.log_monitor.metrics.command import hints_of
from schedmate.services.log_monitor.metrics.far import Hints, Snapshot, snapshot
from schedmate.services.log_monitor.metrics.follow import CACHE_MAX, Follower
from schedmate.services.log_monitor.metrics.library import library
from schedmate.services.log_monitor.metrics.numbers import clock, number, stamp
from schedmate.services.log_monitor.metrics.state import COUNTERS_MAX, ROUTINES_MAX, TEMPLATES_MAX, Metrics
from schedmate.services.log_monitor.metrics.whole import progress_of

FOLLOWER = Follower(library())


def far(lines, hints=Hints()) -> Snapshot:  # noqa: B008 - frozen
    metrics = Metrics()
    for line in lines:
        FOLLOWER.follow(metrics, line)
    return snapshot(FOLLOWER.view(metrics), hints)


def at(seconds: float) -> str:
    return f"2025-03-04 {9 + int(seconds) // 3600:02d}:{int(seconds) // 60 % 60:02d}:{int(seconds) % 60:02d}"


def paced(*stretches: tuple[int, float]):
    """Lines of a counter: for each stretch so many steps at so many seconds."""
    step, now = 0, 0.0
    for steps, seconds in stretches:
        for _ in range(steps):
            step, now = step + 1, now + seconds
            yield f"{at(now)} step {step}/4000 loss 0.5"


def test_a_run_that_becomes_slower_than_it_was_is_said_to_be_with_size_and_onset():
    slowed = far(paced((160, 2.0), (140, 4.0))).slowed
    assert slowed.size == pytest.approx(2.0, rel=0.1)
    assert slowed.since_step == pytest.approx(160, abs=17)
    assert slowed.slow_for_s == pytest.approx(560, rel=0.2)


@pytest.mark.parametrize(
    "stretches",
    [
        [(200, 2.0)],
        [(120, 2.0), (1, 60.0), (60, 2.0)],
        [(60, 4.0), (120, 2.0)],
        [(10, 2.0), (10, 4.0)],
        [(100, 2.0), (40, 2.2)],
    ],
)
def test_a_pause_a_speed_up_or_too_short_a_past_are_no_slow_down(stretches):
    assert far(paced(*stretches)).slowed is None


def test_without_a_pace_nothing_is_claimed_about_slowness():
    assert far(f"step {n}/900 loss 0.1" for n in range(200)).slowed is None


def test_a_resumed_run_has_its_own_rate_and_remaining_time():
    lines = [
        *(f"{at(n)} step {n}/1000 loss 0.5" for n in range(1, 60)),
        f"{at(300)} resuming from step 40",
        *(f"{at(300 + 10 * n)} step {40 + n}/1000 loss 0.5" for n in range(1, 30)),
    ]
    told = far(lines)
    assert told.step == 69
    assert told.steps_per_sec == pytest.approx(0.1)
    assert told.eta_s == pytest.approx(9310)
    assert told.eta_low_s <= told.eta_s <= told.eta_high_s


def test_the_rate_of_a_bar_that_jumps_at_a_resume_is_that_of_the_steps_really_done():
    bars = [
        f" 80%|####| {800 + n}/1000 [{n * 5 // 60:02d}:{n * 5 % 60:02d}<00:10, {(800 + n) / (n * 5):.2f}it/s]"
        for n in range(1, 30)
    ]
    told = far(bars)
    assert told.steps_per_sec == pytest.approx(0.2, rel=0.05)


def test_a_pause_for_a_checkpoint_does_not_move_the_rate():
    assert far(paced((60, 2.0), (1, 300.0), (20, 2.0))).steps_per_sec == pytest.approx(0.5, rel=0.1)


def test_ranks_that_print_the_same_counter_a_little_apart_are_one_run():
    lines = [f"[{rank}] {at(n * 4)} iter {n - rank % 2}/500 loss 0.3" for n in range(2, 40) for rank in range(4)]
    told = far(lines)
    assert told.step == pytest.approx(39, abs=1)
    assert told.total_steps == 500
    assert told.steps_per_sec == pytest.approx(0.25, rel=0.1)


@pytest.mark.parametrize("lines", [2, 40, 49, 50, 63, 64, 65, 500])
def test_lines_that_are_passed_over_are_not_lost_to_the_view(lines):
    told = far(f"{at(n)} step {n}/9000 loss {1 / n:.4f}" for n in range(1, lines + 1))
    assert told.step == lines
    assert told.loss == pytest.approx(1 / lines, abs=1e-4)


def test_a_view_changes_nothing():
    metrics = Metrics()
    for n in range(1, 60):
        FOLLOWER.follow(metrics, f"step {n}/100 loss 0.1")
    before = dataclasses.asdict(metrics)
    FOLLOWER.view(metrics, ["step 60/100 loss 0.1"])
    assert dataclasses.asdict(metrics) == before


def test_an_evaluation_between_routine_lines_is_noticed_at_once_and_training_again():
    lines = [f"{at(n)} step {n}/9000 loss 0.5" for n in range(1, 200)]
    assert far([*lines, "Evaluating:  40%|#### | 4/10 [00:01<00:02, 3.0it/s]"]).phase is Phase.EVAL
    assert (
        far([*lines, "Evaluating:  40%|#### | 4/10 [00:01<00:02, 3.0it/s]", f"{at(201)} step 200/9000 loss 0.5"]).phase
        is Phase.TRAIN
    )


def test_the_shape_of_an_unknown_line_is_learned_and_learned_anew_when_it_changes():
    old = [f"<{n * 5}> q {1 / (n + 1):.3f}" for n in range(20)]
    new = [f"now at {100 + n * 5} ; {1 / (n + 1):.3f}" for n in range(20)]
    assert far(old).step == 95
    assert far([*old, *new]).step == 195
    assert far(f"<{(n * n * 31 + 7 * n) % 101}> q" for n in range(60)).step is None


@given(
    st.lists(
        st.text(max_size=80)
        | st.sampled_from(
            ["step 3/9", "Epoch 2/5", "12%|# | 1/9 [00:01<00:02, 1it/s]", "resume from step 2", "val 3/4"]
        ),
        max_size=80,
    )
)
def test_whatever_comes_the_state_is_bounded_json_and_comes_back_the_same(lines):
    metrics = Metrics()
    for line in lines:
        FOLLOWER.follow(metrics, line, 1.0)
    adapter = TypeAdapter(Metrics)
    assert dataclasses.asdict(adapter.validate_json(adapter.dump_json(metrics))) == dataclasses.asdict(metrics)
    assert len(metrics.counters) <= COUNTERS_MAX
    assert len(metrics.routine) <= ROUTINES_MAX
    assert len(metrics.learning) <= TEMPLATES_MAX
    told = snapshot(FOLLOWER.view(metrics), Hints())
    assert told.fraction is None or 0 <= told.fraction <= 1
    assert told.eta_s is None or told.eta_s >= 0


def test_a_process_keeps_no_more_shapes_than_its_bound():
    follower, metrics = Follower(library()), Metrics()
    for n in range(CACHE_MAX + 50):
        follower.follow(metrics, f"{'x' * (n % 90)} {chr(97 + n % 26) * (n // 90 + 1)} 1")
    assert len(follower._known) <= CACHE_MAX
    assert len(follower._plans) <= CACHE_MAX


@pytest.mark.parametrize(
    "piece",
    [
        "1/2 ",
        "step ",
        "2025-03-04 09:15:00",
        "(1.2.3.4",
        "█",
        "1 day, ",
        "[[",
        "saved model ",
        "9" * 40,
        "e1",
        '"GET /',
    ],
)
def test_no_line_takes_long_whatever_it_holds(piece):
    line = piece * (4096 // len(piece))
    took = []
    for _ in range(3):
        follower, metrics = Follower(library()), Metrics()
        begun = time.thread_time()
        follower.follow(metrics, line)
        took.append(time.thread_time() - begun)
    assert min(took) < 0.05


@pytest.mark.parametrize(
    ("command", "hints"),
    [
        ("train.py --max_steps 2000 --warmup_steps 100", Hints(total_steps=2000)),
        ("train.py --epochs=3 --batch-size 32", Hints(total_epochs=3.0, batch_size=32)),
        ("x -n 2000000", Hints(weak_total=2000000)),
        ("x --epoch 4 --step-per-epoch 500", Hints(total_epochs=4.0, inner=500)),
        ("x --train-num-samples 5_000", Hints(samples=5000)),
        ("x --save_steps 10 --lr 1e-4 --seed 7", Hints()),
    ],
)
def test_a_command_names_lengths(command, hints):
    assert hints_of(command) == hints


def test_numbers_clocks_and_stamps_are_read_or_refused():
    assert (number("1,234"), number("1e999") != number("1e999"), number("x"), number("9" * 30)) == (
        1234.0,
        True,
        None,
        None,
    )
    assert [clock(t) for t in ("01:02", "1 day, 1:00:00", "2h 3m", "12 hours, 46 minutes and 2.5 seconds", "1:2:3:x")] == [
        62.0, 90000.0, 7380.0, 45962.5, None,
    ]  # fmt: skip
    texts = (
        "2025-03-04 09:15:00,500",
        "04.03.2025 09:15:00",
        "03/13/25 09:15:00",
        "I0304 09:15:00.5",
        "Mar 4 09:15:00 2025",
        "03-04 09:15:00",
        "99/99 00:00:00",
    )
    assert [stamp(t) is not None for t in texts] == [True] * 6 + [False]


LINES = [f"<<{k * 7}~900~{1 / (k + 1):.3f}>>" for k in range(30)]
GOOD = r"<<(?P<step>\d+)~(?P<total>\d+)~(?P<loss>[\d.]+)>>"


def test_a_proposed_pattern_is_adopted_only_if_lines_it_was_not_made_from_bear_it_out():
    found = proposal.adopted({"pattern": GOOD}, LINES)
    told = proposal.told(Snapshot(), found, LINES)
    assert (told.step, told.total_steps, told.loss) == (203, 900, 0.033)
    for pattern in (
        "(",
        "",
        "x" * 400,
        r"(?P<step>\d+)>>",
        r"(?P<other>\d+)",
        r"(?P<step>zzz)",
        None,
        r"(?P<step>\d+)(?P<cmd>.)",
    ):
        assert proposal.adopted({"pattern": pattern}, LINES) is None
    assert proposal.adopted({}, LINES) is None
    assert proposal.adopted({"pattern": GOOD}, LINES[:14]) is None
    assert proposal.adopted({"pattern": GOOD}, []) is None
    assert proposal.adopted({"pattern": GOOD}, [*LINES[:12], *reversed(LINES[12:])]) is None


def test_a_model_is_asked_only_when_nothing_counts_and_there_are_lines_to_check_on():
    assert proposal.wanted(Snapshot())
    assert not proposal.wanted(Snapshot(step=1))
    assert not proposal.wanted(Snapshot(phase=Phase.SERVING))
    assert proposal.question(LINES[:10], str, timeout_s=1) is None
    asked = proposal.question(LINES, lambda text: text.replace("900", "***"), timeout_s=1)
    assert "900" not in asked.prompt
    assert LINES[20] not in asked.prompt
    assert proposal.samples(["\n".join(LINES).encode() + b"\nno number\n"]) == LINES
    assert proposal.told(Snapshot(), proposal.Proposal(GOOD), ["nothing"]) == Snapshot()


def test_the_command_prints_the_fields_and_reads_so_many_bytes_only(tmp_path):
    log, job = tmp_path / "log", tmp_path / "job.json"
    content = "".join(f"{at(n * 2)} step {n} loss 0.5\n" for n in range(1, 80)).encode()
    log.write_bytes(content)
    job.write_text(json.dumps({"command": ["train.py", "--max_steps", "400"], "gpus": 1, "nodes": 1}))
    ran = CliRunner().invoke(
        app, ["progress", str(log), "--job", str(job), "--bytes", str(len(content) // 2), "--json"]
    )
    told = json.loads(ran.stdout)
    assert (told["total_steps"], told["phase"], told["epoch"]) == (400, "train", None)
    assert told["step"] == pytest.approx(40, abs=2)
    assert told["steps_per_sec"] == pytest.approx(0.5)
    assert "step: 79" in CliRunner().invoke(app, ["progress", str(log)]).stdout
    job.write_text("{")
    assert CliRunner().invoke(app, ["progress", str(log), "--job", str(job)]).exit_code == 2


def test_a_log_read_in_any_pieces_says_the_same():
    content = "".join(f"\r{n}%|#| {n}/100 [{n // 60:02d}:{n % 60:02d}<01:00, 1.00it/s]" for n in range(1, 90)).encode()
    whole = progress_of([content], Hints())
    assert progress_of((content[i : i + 7] for i in range(0, len(content), 7)), Hints()) == whole
    assert whole.step == 89
