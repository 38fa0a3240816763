"""Reasons: every one has a sentence and a rank."""

from __future__ import annotations

from schedmate.schemas.reasons import EXPLANATIONS, RANK, Reason


def test_every_reason_is_explained_in_words_of_its_own():
    assert set(EXPLANATIONS) == set(Reason)
    assert len(set(EXPLANATIONS.values())) == len(Reason)
    assert all(text.strip() == text != "" and not text.endswith(".") for text in EXPLANATIONS.values())


def test_every_reason_has_a_rank_of_its_own():
    assert set(RANK) == set(Reason)
    assert len(set(RANK.values())) == len(Reason)


def test_what_never_fits_is_told_before_what_only_waits():
    order = [
        Reason.EXCEEDS_POOL_LIMITS,
        Reason.NO_LIVE_NODE,
        Reason.NO_SUCH_GPU_TYPE,
        Reason.NEVER_FITS,
        Reason.HELD_BY_CORDON,
        Reason.TENANT_GPU_LIMIT,
        Reason.BACKING_OFF,
        Reason.GPUS_QUARANTINED,
        Reason.INSUFFICIENT_GPUS,
        Reason.FRAGMENTED,
        Reason.BEHIND_EARLIER_JOBS,
        Reason.NOT_YET_CONSIDERED,
    ]
    assert sorted(order, key=RANK.__getitem__) == order


def test_a_reasons_value_is_its_name():
    assert all(reason.value == reason.name for reason in Reason)
