"""The judge and what it rests on: signs and survival, whose memory, which node, busy or hung, done or not, which checkpoint."""

from __future__ import annotations

import random  # noqa: TID251 - seeded
import time

import pytest

from schedmate.schemas.events import Action, Culpable, ExitCause
from schedmate.services.log_monitor.failures.categories import UNKNOWN, advice_on, load_categories
from schedmate.services.log_monitor.failures.compression import shape_of
from schedmate.services.log_monitor.failures.digest import Digest, Hit, rank_of, speaker_of
from schedmate.services.log_monitor.failures.judge import Facts, Judgement, Source, judge
from schedmate.services.log_monitor.failures.learned import (
    NEGATIVES_MIN,
    POSITIVES_MIN,
    RULES_MAX,
    TENANTS_MIN,
    Learned,
)
from schedmate.services.log_monitor.failures.rules import TEXT_MAX, Rules, digits_masked, load_rules, read_rule
from schedmate.services.log_monitor.failures.similar import Library, Memory, load_library

RULES = load_rules()
TIMEOUT = "[E ProcessGroupNCCL.cpp:607] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2)"
OOM = "torch.OutOfMemoryError: CUDA out of memory. "


def digest_of(text: str, kind: str = "log") -> Digest:
    digest = Digest()
    for number, line in enumerate(text.splitlines(), 1):
        digest.take(line, number, RULES, kind)
    return digest


def judged(text: str, *others: Source, similar=None, **facts) -> Judgement:
    source = Source("stdout.log", "log", digest_of(text))
    return judge([source, *others], Facts(**({"exit_code": 1} | facts)), RULES, similar)


def file(name: str, kind: str, text: str, node: str | None = None) -> Source:
    return Source(name, kind, digest_of(text, kind), node)


def steps(count: int, start: int = 0) -> str:
    return "".join(f"step {n}/900 loss=0.5\n" for n in range(start, start + count))


# --- root causes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log", "category"),
    [
        ("KeyError: 'a'\nDuring handling of the above exception, another exception occurred:\nTypeError: b\n", "CODE_ERROR"),
        (f"[rank5]: {OOM}\n[rank2]: DistBackendError: NCCL error in: a.cpp:1\nChildFailedError:\n", "GPU_OOM"),
        (f"ValueError: cannot reshape\n{TIMEOUT}\n", "CODE_ERROR"),
        ("slurmstepd: error: *** JOB 1 ON n CANCELLED AT 1 DUE TO TIME LIMIT ***\nRuntimeError: NCCL error\nKeyError: 'x'\n", "TIME_LIMIT"),
        ("KeyError: 'x'\nslurmstepd: error: *** STEP 1.0 ON n CANCELLED AT 2024 ***\n", "CODE_ERROR"),
        ("slurmstepd: error: *** STEP 1.0 ON n CANCELLED AT 2024 ***\nKeyboardInterrupt\n", "CANCELLED"),
        ("MPI_ABORT was invoked on rank 0\n", UNKNOWN),
        ("failed (exitcode: -9) local_rank: 2 (pid: 3) of binary: python\n", "HOST_OOM"),
    ],
)  # fmt: skip
def test_the_root_cause_is_the_earliest_event_and_not_what_follows_from_it(log, category):
    assert judged(steps(5) + log).category == category


def test_an_error_that_signs_of_life_follow_was_survived():
    assert judged(f"{steps(3)}{OOM}retrying with half\n{steps(9, 3)}KeyError: 'x'\n").category == "CODE_ERROR"
    assert judged(f"{steps(3)}{OOM}\n{steps(2, 3)}KeyError: 'x'\n").category == "GPU_OOM"


def test_a_program_whose_words_nobody_knows_lives_as_long_as_its_lines_keep_coming():
    routine = "".join(f"zyx{'q'} {n} of the flow at {n * 3}\n" for n in range(6))
    later = "".join(f"zyx{'q'} {n} of the flow at {n * 3}\n" for n in range(6, 14))
    digest = digest_of(f"{routine}{OOM}\n{later}")
    assert digest.fresh(RULES.by_id["gpu-oom"]) is None


def test_hooks_that_run_after_a_failure_are_no_signs_of_life():
    hooks = "".join(f"hook {n}: ok\n" for n in range(12))
    assert judged(f"{steps(3)}KeyError: 'x'\n{hooks}").category == "CODE_ERROR"


def test_an_exception_that_the_interpreter_ignored_is_no_cause():
    log = "Exception ignored in: <function P.__del__ at 0x7f>\nTraceback (most recent call last):\n  File 'a'\nTypeError: x\n"
    assert judged(log).category == UNKNOWN
    assert judged(log + "KeyError: 'real'\n").line == 5


def test_the_same_words_from_every_rank_are_cited_from_rank_0():
    found = judged("[rank5]: ValueError: bad 1\n[rank0]: ValueError: bad 1\n[rank2]: ValueError: bad 1\n")
    assert found.line == 2


def test_the_first_member_that_failed_is_the_cause():
    later = Source("member-0.log", "log", digest_of("KeyError: 'late'\n"), "n1", 0, ended_at=9.0)
    first = Source("member-1.log", "log", digest_of("IndexError: early\n"), "n2", 1, ended_at=5.0)
    found = judge([later, first], Facts(nodes=("n1", "n2"), exit_code=1), RULES)
    assert (found.file, found.node) == ("member-1.log", "n2")


# --- the node's own side ---------------------------------------------------------------------------------------------


def test_a_kernel_line_beats_the_applications_log_and_names_its_node():
    kernel = file("kernel_n2.log", "kernel", "NVRM: Xid (PCI:0000:81:00): 79, GPU has fallen off the bus.\n", "n2")
    found = judged(f"{TIMEOUT}\nCUDA error: unknown error\n", kernel, nodes=("n1", "n2"))
    assert (found.category, found.node, found.node_evidence, found.action) == (
        "GPU_LOST", "n2", True, Action.RETRY_ELSEWHERE_CORDON,
    )  # fmt: skip


def test_a_healthy_kernel_log_says_nothing():
    kernel = file("kernel_n1.log", "kernel", "docker0: port 1(veth) entered forwarding state\nnfs: server s OK\n", "n1")
    assert judged(f"{TIMEOUT}\n", kernel, nodes=("n1",)).category == "NCCL_TIMEOUT"


def test_the_orchestrators_word_beats_what_the_container_prints():
    events = file("k8s_events.log", "events", "Warning Evicted pod/a The node was low on resource: memory.\n")
    assert judged("KeyError: 'x'\n", events).category == "EVICTED"


@pytest.mark.parametrize(
    ("line", "external"),
    [
        ("Tried to allocate 32.00 MiB. GPU 0 has a total capacty of 79.15 GiB of which 12.50 MiB is free. Process 1 has 78.42 GiB memory in use. Process 2 has 724.00 MiB memory in use. Of the allocated memory 209.00 MiB is allocated by PyTorch", True),
        ("Tried to allocate 2 GiB. GPU 0 has a total capacity of 79.11 GiB of which 3.98 GiB is free. Process 1 has 75.11 GiB memory in use. Of the allocated memory 71.60 GiB is allocated by PyTorch", False),
        ("Tried to allocate 1.33 GiB (GPU 6; 31.75 GiB total capacity; 29.41 GiB already allocated; 910.50 MiB free)", False),
        ("Tried to allocate 1.33 GiB (GPU 6; 31.75 GiB total capacity; 0.50 GiB already allocated; 10.50 MiB free)", True),
        ("Tried to allocate 2 GiB", False),
        ("GPU 0 has a total capacity of 80 GiB of which 1 GiB is free. Process 1 has 78 GiB memory in use. Process 2 has 1 GiB memory in use.", True),
    ],
)  # fmt: skip
def test_memory_that_others_hold_is_told_from_the_jobs_own(line, external):
    assert judged(OOM + line + "\n", nodes=("n1",)).category == ("GPU_BUSY_EXTERNAL" if external else "GPU_OOM")


def test_a_file_that_only_one_node_misses_is_that_nodes_fault():
    said = "".join(f"n{n}: reading index part {k} ok\n" for n in (1, 2, 3) for k in range(4))
    missing = "n3: FileNotFoundError: [Errno 2] No such file or directory: '/mnt/corpus/a.idx'\n"
    nodes = ("n1", "n2", "n3")
    found = judged(said + missing, nodes=nodes)
    assert (found.category, found.action, found.node, found.node_evidence) == (
        "STORAGE_IO", Action.RETRY_ELSEWHERE_CORDON, "n3", False,
    )  # fmt: skip
    everywhere = said + "".join(missing.replace("n3:", f"n{n}:") for n in (1, 2, 3))
    assert judged(everywhere, nodes=nodes).category == "FILE_NOT_FOUND"
    assert judged(missing, nodes=nodes).category == "FILE_NOT_FOUND"


# --- context ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log", "category"),
    [
        (f"Running tokenizer on dataset:   9%|# | 28000/296952 [29:55<4:49:11]\n{TIMEOUT}\n", "SLOW_RANK_TIMEOUT"),
        (f"{TIMEOUT}\nRunning tokenizer on dataset:   9%|# | 28000/296952 [29:55<4:49:11]\n", "NCCL_TIMEOUT"),
        (f"Running tokenizer on dataset:   9%|# | 28000/296952\n{steps(6)}{TIMEOUT}\n", "NCCL_TIMEOUT"),
        (f"{steps(6)}{TIMEOUT}\n", "NCCL_TIMEOUT"),
    ],
)
def test_a_timeout_while_a_rank_was_busy_is_told_from_one_that_nothing_explains(log, category):
    assert judged(log).category == category


def test_a_busy_rank_of_another_member_explains_the_timeout():
    busy = Source("member-0.log", "log", digest_of("Saving consolidated weights ... 12%\n"), "n1", 0, bad=False)
    waiting = Source("member-1.log", "log", digest_of(f"{TIMEOUT}\n"), "n2", 1)
    assert judge([busy, waiting], Facts(exit_code=1), RULES).category == "SLOW_RANK_TIMEOUT"


@pytest.mark.parametrize(
    ("after", "complete"),
    [
        ("Segmentation fault (core dumped)\n", True),
        ("terminate called after throwing an instance of 'c10::Error'\n", True),
        ("wandb.errors.CommError: flush timed out\n", True),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/gt'\n", False),
        (f"{steps(3)}KeyError: 'x'\n", False),
    ],
)
def test_work_that_was_done_before_the_crash_of_the_shutdown_is_complete(after, complete):
    found = judged(f"{steps(6)}Training finished: all results written.\n{after}")
    assert found.work_was_complete is complete
    assert (found.category == "TEARDOWN_ERROR") is complete


def test_an_error_before_the_word_that_all_is_done_is_no_teardown():
    assert not judged("KeyError: 'x'\nRun finished\nAborted\n").work_was_complete


def test_the_clock_explains_an_end_that_nothing_else_does():
    assert judged("bye\n", elapsed_s=3600.0, time_limit_s=3600.0).category == "TIME_LIMIT"
    assert judged("bye\n", elapsed_s=1800.0, time_limit_s=3600.0).category == UNKNOWN
    assert judged("SystemError: interrupted\n", elapsed_s=3600.0, time_limit_s=3600.0).category == "TIME_LIMIT"
    assert judged(f"{OOM}\n", elapsed_s=3600.0, time_limit_s=3600.0).category == "GPU_OOM"


@pytest.mark.parametrize(
    ("attempt", "log", "action"),
    [
        (3, "Fatal Python error: Segmentation fault\n", Action.DO_NOT_RETRY),
        (1, "Fatal Python error: Segmentation fault\n", Action.RETRY_FROM_CHECKPOINT),
        (3, steps(9) + "Fatal Python error: Segmentation fault\n", Action.RETRY_FROM_CHECKPOINT),
    ],
)
def test_a_crash_at_the_start_again_and_again_is_not_tried_again(attempt, log, action):
    assert judged(log, attempt=attempt).action is action


@pytest.mark.parametrize(
    ("given", "category", "action"),
    [
        ({"exit_code": 137}, "HOST_OOM", Action.RETRY_FROM_CHECKPOINT),
        ({"exit_code": -9}, "HOST_OOM", Action.RETRY_FROM_CHECKPOINT),
        ({"exit_code": None, "signal": 11}, "SEGFAULT", Action.RETRY_FROM_CHECKPOINT),
        ({"exit_code": 126}, "PERMISSION", Action.DO_NOT_RETRY),
        ({"exit_code": None, "cause": ExitCause.LOST}, "NODE_FAILURE", Action.RETRY_FROM_CHECKPOINT),
        ({"exit_code": None}, UNKNOWN, Action.RETRY_FROM_CHECKPOINT),
    ],
)
def test_where_no_line_tells_the_exit_does(given, category, action):
    found = judged("bye\n", **given)
    assert (found.category, found.action) == (category, action)


def test_low_confidence_means_the_safe_action():
    for log in (
        "RuntimeError: NCCL error: remote process exited\n",
        "Connection reset by peer\n",
        "[ERROR] it is out of cheese\n",
    ):
        found = judged(log)
        assert found.confidence < 0.5
        assert (found.action, found.node_evidence) == (Action.RETRY_FROM_CHECKPOINT, False)


def test_where_no_line_is_a_sign_the_earliest_suspect_that_was_not_outlived_is_shown():
    early = "".join(f"the {name} is broken\n" for name in "abcdefghijkl")
    found = judged(f"{early}{steps(9)}the manifold is broken\nthe valve is broken\n")
    assert (found.category, found.text) == (UNKNOWN, "the manifold is broken")


def test_every_category_has_advice_and_an_unknown_one_too():
    assert all(advice_on(name) for name in (*load_categories(), UNKNOWN, "NO_SUCH_CAUSE"))


# --- checkpoints -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log", "path"),
    [
        ("saved checkpoint to /ck/1.pt\nsaved checkpoint to /ck/2.pt\nKeyError: 1\n", "/ck/2.pt"),
        ("Saving model checkpoint to out/checkpoint-500\nstep 501/900 loss=0.1\nKeyError: 1\n", "out/checkpoint-500"),
        ("saved /ck/a.pt\nSaving checkpoint to /ck/b.pt\nOSError: [Errno 28] No space left on device\n", "/ck/a.pt"),
        ("  successfully saved checkpoint from iteration   41500 to /lus/7b [ t 0/8 ]\nKeyError: 1\n", "/lus/7b/iter_0041500"),
        ("Resuming from /ck/step-400\nKeyError: 1\n", "/ck/step-400"),
        ("saved /ck/a.pt\nsaved /ck/b.pt\nRestoring from /ck/b.pt\nRuntimeError: PytorchStreamReader failed reading zip archive\n", "/ck/a.pt"),
        ("uploaded checkpoint to s3://bucket/run/ck-7\nKeyError: 1\n", "s3://bucket/run/ck-7"),
        ("snapshot written: e3.ckpt\nKeyError: 1\n", "/ck/e3.ckpt"),
        ("loaded config from /etc/a.yaml\nwriting /out/log.txt\nKeyError: 1\n", None),
        ("saving is disabled\nKeyError: 1\n", None),
        ("saving checkpoint to ck\nstep 3/9 loss=1\nKeyError: 1\n", "/ck"),
        ("saving checkpoint to out\nstep 3/9 loss=1\nKeyError: 1\n", "/ck/out"),
        ("saving model to memory\nstep 3/9 loss=1\nKeyError: 1\n", None),
    ],
)  # fmt: skip
def test_the_newest_checkpoint_that_nothing_speaks_against_is_resumed_from(log, path):
    assert judged(log, checkpoint_dir="/ck").resume_from == path


def test_of_listed_checkpoints_the_damaged_and_the_short_ones_are_left_out():
    log = (
        "-rw-r--r-- 1 u g 851443712 Jul 13 21:10 epoch_33.pth\n-rw-r--r-- 1 u g 851443712 Jul 13 23:41 epoch_34.pth\n"
        "-rw-r--r-- 1 u g   4194304 Jul 14 02:12 epoch_35.pth\nlrwxrwxrwx 1 u g 12 Jul 14 02:12 latest.pth -> epoch_35.pth\n"
        "load checkpoint from local path: /r/ck/latest.pth\nRuntimeError: PytorchStreamReader failed reading zip archive\n"
    )
    assert judged(log, checkpoint_dir="/r/ck").resume_from == "/r/ck/epoch_34.pth"


# --- lines of any content --------------------------------------------------------------------------------------------

PIECES = ["a", "0", " ", "(", "[", ":", "/", ".", "-", "_", "=", "'", '"', "|", "\\", "█", "é", "\t", "Error", "nan", "loss", "Xid", "step", "rank",
          "out of memory", "failed", "checkpoint", "saved", "/a/b.pt", "No such file", "process 1", "[rank0]: ", "error: ", "1/2", "GiB", "CUDA"]  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_no_line_of_any_content_costs_more_than_50_ms(seed):
    """The least of three tries counts: the first may find the caches cold."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(400):
        parts = rng.sample(PIECES, rng.randrange(1, 5))
        line = "".join(rng.choice(parts) for _ in range(rng.randrange(1, 1500)))[: TEXT_MAX * 2]
        assert min(_cost(line) for _ in range(3)) < 0.05, line[:200]


def _cost(line: str) -> float:
    digest = Digest()
    start = time.thread_time()
    digest.take(line, 1, RULES)
    return time.thread_time() - start


def test_a_digest_stays_small_whatever_comes():
    rng = random.Random(7)
    digest = Digest()
    texts = [text for rule in RULES.rules for text in rule.examples]
    for number in range(3000):
        digest.take(f"n{number}: {rng.choice(texts)} {number} " + "x" * 500, number, RULES)
        digest.take(f"w{number}| odd thing number {number} happened, error {number}", number, RULES)
    assert len(digest.model_dump_json()) < 96 * 1024
    assert Digest.model_validate_json(digest.model_dump_json()) == digest


@pytest.mark.parametrize(
    ("line", "speaker"),
    [
        ("n1: hello", "n1"), ("[n-1.a] hello", "n-1.a"), ("n1:22:33 [0] NCCL", "n1"), ("hello", None), ("12: x", None),
        ("a b: c", None), ("", None), ("[: x", None), ("x" * 90 + ": y", None),
    ],
)  # fmt: skip
def test_the_name_before_a_line_is_its_speaker(line, speaker):
    assert speaker_of(line) == speaker


def test_ranks_and_masked_digits():
    assert [rank_of(t) for t in ("[rank5]: x", "[Rank 7] y", "11: z", "[3]<stderr>: w", "none")] == [5, 7, 11, 3, None]
    assert digits_masked("a1b22é9\ud800") == "a0b00é0?"


# --- rules as data ---------------------------------------------------------------------------------------------------

ROW = {"id": "x", "category": "CODE_ERROR", "tier": 2, "patterns": ["x"], "examples": ["x"], "counterexamples": ["y"]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"colour": "red"}, "unknown keys"),
        ({"category": "NO_SUCH"}, "no such category"),
        ({"where": ["moon"]}, "no such source"),
        ({"category": UNKNOWN}, "says whose side"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(change, words):
    with pytest.raises(ValueError, match=words):
        read_rule(ROW | change)


def test_two_rules_of_one_name_are_refused():
    with pytest.raises(ValueError, match="same id"):
        Rules([read_rule(ROW), read_rule(ROW)])


def test_what_a_rule_does_not_say_is_its_categorys():
    rule = read_rule(ROW)
    assert (rule.culpable, rule.action) == (Culpable.USER_CODE, Action.DO_NOT_RETRY)
    assert Rules([rule]).match("an x") == (rule,)


def test_a_hit_of_a_rule_that_is_gone_is_passed_over():
    digest = Digest(hits={"gone": Hit(line=1, text="x", pulses=0)})
    assert judge([Source("a.log", "log", digest)], Facts(exit_code=1), RULES).category == UNKNOWN


# --- retrieval, memory, learned rules --------------------------------------------------------------------------------


def test_retrieval_names_what_the_rules_cannot_and_only_a_clear_winner():
    library = Library(
        [("the warp drive ran dry of plasma", "DATA_ERROR"), ("flux beam misaligned in bay", "CONFIG_ERROR")]
    )
    assert library.nearest("WARNING 12: the warp drive ran dry of plasma at 9")[0] == "DATA_ERROR"
    assert library.nearest("nothing like it at all here") is None
    assert library.nearest("warp") is None
    torn = Library([("warp drive plasma leak", "DATA_ERROR"), ("warp drive plasma leak", "CONFIG_ERROR")])
    assert torn.nearest("warp drive plasma leak") is None
    found = judged("oops: the warp drive failed and ran dry of plasma\n", similar=library.nearest)
    assert (found.category, found.basis, found.node_evidence) == ("DATA_ERROR", "retrieval", False)


def test_the_library_of_the_rules_finds_a_rewording():
    assert (
        load_library().nearest("shape mismatch: checkpoint and target shapes do not match here")[0] == "CKPT_MISMATCH"
    )


def test_memory_trusts_what_two_runs_showed_with_one_cause():
    memory = Memory()
    assert memory.remember("warp 12 dry", "DATA_ERROR", "run-1")
    assert memory.trusted() == []
    assert not memory.remember("warp 13 dry", "DATA_ERROR", "run-1")
    assert memory.remember("warp 14 dry", "DATA_ERROR", "run-2")
    assert [category for _, category in memory.trusted()] == ["DATA_ERROR"]
    memory.remember("warp 15 dry", "CONFIG_ERROR", "run-3")
    assert memory.trusted() == []
    for n in range(1000):
        memory.remember(f"{'x' * (n % 300)} thing", "DATA_ERROR", f"run-{n}")
    assert len(memory.entries) <= 200


LINE = "warp drive 12 ran dry of plasma"


def learned(runs: int = POSITIVES_MIN, tenants: int = TENANTS_MIN, negatives: int = NEGATIVES_MIN) -> Learned:
    known = Learned()
    for n in range(runs):
        known.propose(LINE, "DATA_ERROR", run_id=f"r{n}", tenant=f"t{n % tenants}", known=RULES)
    for _ in range(negatives):
        known.ended_well(["something else 3"])
    return known


@pytest.mark.parametrize(
    ("given", "trusted"),
    [({}, True), ({"runs": 2}, False), ({"tenants": 1}, False), ({"negatives": NEGATIVES_MIN - 1}, False)],
)
def test_a_learned_rule_is_quarantined_until_it_survives_negatives(given, trusted):
    rule = learned(**given).trusted("warp drive 99 ran dry of plasma")
    assert (rule is not None) is trusted


def test_a_run_that_ended_well_and_shows_the_line_refutes_the_rule_for_good():
    known = learned()
    known.ended_well(["warp drive 3 ran dry of plasma"])
    assert known.trusted(LINE) is None
    assert known.propose(LINE, "DATA_ERROR", run_id="r9", tenant="t9", known=RULES) is None


@pytest.mark.parametrize(
    ("text", "category"),
    [("short", "DATA_ERROR"), (LINE, "NO_SUCH"), ("ECC mode: enabled for a while", None), (RULES.by_id["driver"].counterexamples[0], "DATA_ERROR")],
)  # fmt: skip
def test_what_can_be_no_rule_is_refused(text, category):
    assert Learned().propose(text, category or "X", run_id="r", tenant="t", known=RULES) is None


def test_a_line_that_comes_with_two_causes_is_no_rule():
    known = learned()
    assert known.propose(LINE, "CONFIG_ERROR", run_id="r8", tenant="t8", known=RULES) is None
    assert known.trusted(LINE) is None
    for n in range(RULES_MAX + 9):
        known.propose("warp drive of ship " + "abcdefghij"[n % 10] * (n + 1), "DATA_ERROR", run_id="r", tenant="t", known=RULES)  # fmt: skip
    assert len(known.rules) <= RULES_MAX
    assert Learned.model_validate_json(known.model_dump_json()) == known


def test_lines_of_one_template_have_one_shape():
    assert shape_of("step 1/10 in /a/b 0x1f") == shape_of("step 22/10 in /c/d.pt 0xffff")
