"""Progress read from lines of known formats."""

from __future__ import annotations

import pytest

from schedmate.schemas.events import Phase
from schedmate.services.log_monitor.metrics.far import Hints, Snapshot, snapshot
from schedmate.services.log_monitor.metrics.follow import Follower
from schedmate.services.log_monitor.metrics.library import library
from schedmate.services.log_monitor.metrics.numbers import stamp
from schedmate.services.log_monitor.metrics.state import Metrics

FOLLOWER = Follower(library())


def follow(*lines: str, every_s: float = 1.0, hints: Hints = Hints()) -> Snapshot:  # noqa: B008 - frozen
    metrics = Metrics()
    for number, line in enumerate(lines):
        FOLLOWER.follow(metrics, line, number * every_s)
    return snapshot(FOLLOWER.view(metrics), hints)


@pytest.mark.parametrize(
    ("line", "step", "total"),
    [
        ("step 12/100", 12, 100),
        ("Step: 12 / 100 loss=0.1", 12, 100),
        ("[INFO] step=12 of 100", 12, 100),
        ("iteration      110/  250000 | lm loss: 2.49E+00", 110, 250000),
        ("global_step: 240, lr: 0.1", 240, None),
        ("iter 10: loss 10.42, time 563.42ms", 10, None),
        ('{"current_steps": 760, "total_steps": 800, "loss": 1.5}', 760, 800),
        ("  2%|2| 30/1404 [01:42<1:18:19,  3.42s/it]", 30, 1404),
        ("steps:  15%|#5 | 2430/16000 [1:12:54<6:47:06,  1.80s/it, avr_loss=0.110]", 2430, 16000),
        ("Training: |          | 26/? [00:00<?,  2.66it/s, loss=2.74]", 26, None),
        ("1,200 steps", None, None),
    ],
)
def test_a_line_that_counts_steps_is_understood(line, step, total):
    far = follow(line)
    assert (far.step, far.total_steps) == (step, total)


@pytest.mark.parametrize(
    ("lines", "step", "total", "epoch"),
    [
        (["Epoch 2/5", "20/82 [==>.......] - ETA: 9s - loss: 0.7"], 102, 410, 2),
        (["Epoch [2][200/14659] lr: 0.01, loss: 1.2"], 14859, None, 2),
        (["Epoch 1:  30%|### | 72/240 [01:14<02:53, 1.03s/it, train_loss=0.9]"], 312, None, 1),
        (["Start training for 400 epochs", "Epoch: [71]  [1200/5004]  loss: 0.4"], 71 * 5004 + 1200, 400 * 5004, 71),
        (["epoch 3/10 loss=0.2"], None, None, 3),
    ],
)
def test_steps_within_an_epoch_become_steps_of_the_job(lines, step, total, epoch):
    far = follow(*lines)
    assert (far.step, far.total_steps, far.epoch) == (step, total, epoch)


def test_epoch_lines_alone_give_a_fraction_and_a_remaining_time():
    far = follow(*[f"epoch {n}/10 loss={1 / n:.3f}" for n in range(1, 6)], every_s=10)
    assert far.fraction == pytest.approx(0.5)
    assert far.eta_s == pytest.approx(50.0)
    assert far.steps_per_sec is None


def test_the_rate_is_our_own_from_the_times_of_the_lines():
    far = follow(*[f"step {n}/100" for n in range(1, 21)], every_s=2)
    assert far.steps_per_sec == pytest.approx(0.5)
    assert far.eta_s == pytest.approx(160)


def test_a_printed_rate_serves_until_there_are_three_observations():
    far = follow("step 1/100, 4.0 it/s")
    assert far.steps_per_sec == 4.0
    assert far.eta_s == pytest.approx(24.75)


@pytest.mark.parametrize(
    ("line", "loss"),
    [
        ("step 1/9 loss=0.25", 0.25),
        ("{'loss': 2.7839, 'learning_rate': 1.9e-05, 'epoch': 0.04}", 2.7839),
        ("iteration 1/9 | lm loss: 2.490000E+00 | loss scale: 1.0", 2.49),
        ("Epoch [1][47/146] loss_ins: 0.9203, loss_cate: 0.4443, loss: 1.3585", 1.3585),
        ("step 1/9 loss=nan", None),
        ("val_loss: 0.3 step 1/9", None),
    ],
)
def test_the_training_loss_is_taken_and_no_other(line, loss):
    assert follow(line).loss == loss


def test_an_evaluation_bar_changes_the_phase_and_not_the_progress():
    far = follow("step 50/100 loss=0.5", "Evaluating:  40%|#### | 4/10 [00:01<00:02, 3.0it/s]")
    assert (far.step, far.phase) == (50, Phase.EVAL)


def test_preparation_is_a_phase_of_its_own():
    assert follow(
        "Tokenizing Prompts (num_proc=64):  30%|###| 108000/359152 [00:45<01:44, 2401.00 examples/s]"
    ) == Snapshot(phase=Phase.DATA_PREP)


def test_the_end_is_recognised():
    far = follow("step 99/100 loss=0.1", "Training complete.")
    assert (far.phase, far.fraction, far.eta_s) == (Phase.DONE, 1.0, 0.0)


def test_the_jobs_source_gives_the_total_that_the_log_does_not():
    far = follow("iter 10: loss 1.0", hints=Hints(total_steps=1000))
    assert (far.total_steps, far.fraction) == (1000, 0.01)


@pytest.mark.parametrize(
    "text", ["", "hello", "1/2", "100%", "Epoch", "|", "step", "[1/2]", "9" * 400 + "/" + "9" * 400]
)
def test_a_line_that_shows_nothing_gives_nothing_odd(text):
    far = follow(text)
    assert far.step is None or far.step >= 0


@pytest.mark.parametrize(
    ("line", "rate"),
    [
        ("step 1/9, 2.5 s/it", 0.4),
        ("step 1/9 (250 ms/step)", 4.0),
        ("step 1/9 3.0 steps/sec", 3.0),
        ("iteration 1/9 | elapsed time per iteration (ms): 500.0", 2.0),
        ("iter 10: loss 1.0, time 500.00ms", 2.0),
        ("Epoch [1][10/90] time: 0.500, loss: 1.0", 2.0),
        (" 10%|#| 1/9 [00:01<00:08, 2.00s/it]", 0.5),
        ("step 1/9 lr 1e-3", None),
        ("step 1/9, 0 it/s", None),
    ],
)
def test_a_printed_rate_is_in_steps_a_second(line, rate):
    assert follow(line).steps_per_sec == (pytest.approx(rate) if rate is not None else None)


def test_timestamps_of_the_lines_give_the_rate_whatever_the_time_of_arrival():
    lines = [f"2024-01-01 10:00:{4 * n:02d},000 INFO step {n}/100 loss: 1.0" for n in range(1, 9)]
    assert follow(*lines, every_s=0).steps_per_sec == pytest.approx(0.25)
    assert stamp("2024-13-41 99:00:00") is None


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        ("Loading checkpoint shards: 50%|#| 1/2 [00:01<00:01, 1.0s/it]", Phase.LOAD),
        ("Saving model checkpoint to out/checkpoint-5", Phase.SAVE),
        ("***** Running training *****", Phase.TRAIN),
        ("loading the model weights", Phase.LOAD),
        ("Epoch(val) [3][10/20] loss: 1", Phase.EVAL),
        ("train_runtime: 12.3", Phase.DONE),
    ],
)
def test_a_line_shows_the_phase(line, phase):
    assert follow(line).phase is phase


def test_a_bar_over_epochs_counts_epochs_and_a_restart_begins_its_rate_anew():
    bars = [f"Epochs: 10%|#| {n}/10 [00:{10 * n:02d}<01:00, 10.0s/it]" for n in range(1, 5)]
    far = follow(*bars)
    assert (far.step, far.epoch, far.total_epochs) == (None, 4, 10)
    again = follow("step 50/100", "step 51/100", "step 10/100", "step 11/100", "step 12/100", every_s=2)
    assert (again.step, again.steps_per_sec) == (12, pytest.approx(0.5))
    assert follow("Epoch 0.50 loss: 1", "Epoch 0.75 loss: 1").epoch == 0.75
    assert follow("[1,0]<stdout>:100/1252 [==>......] - ETA: 357s - loss: 4.85").total_steps == 1252
