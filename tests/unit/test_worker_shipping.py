"""Which bytes of a member's output go next: in order, bounded, gaps said."""

from __future__ import annotations

import pytest

from schedmate.services.worker.shipping import Budget, Limits, Piece, Progress, next_pieces

LIMITS = Limits(chunk_bytes=100, backlog_bytes=1000)
PLENTY = 1_000_000


def test_output_goes_in_chunks_of_the_largest_size() -> None:
    pieces, progress = next_pieces(Progress(), 250, None, LIMITS, PLENTY)
    assert pieces == [Piece(0, 100), Piece(100, 200), Piece(200, 250)]
    assert progress == Progress(250)


def test_shipping_goes_on_where_it_stood() -> None:
    pieces, _ = next_pieces(Progress(250), 260, None, LIMITS, PLENTY)
    assert pieces == [Piece(250, 260)]


def test_nothing_new_is_nothing_to_ship() -> None:
    assert next_pieces(Progress(250), 250, None, LIMITS, PLENTY) == ([], Progress(250))


@pytest.mark.parametrize(("budget", "end"), [(0, 0), (1, 1), (150, 150)])
def test_the_budget_bounds_what_goes(budget: int, end: int) -> None:
    pieces, progress = next_pieces(Progress(), 500, None, LIMITS, budget)
    assert sum(p.end - p.start for p in pieces) == budget
    assert progress.shipped == end


def test_too_much_that_waits_becomes_head_gap_and_tail() -> None:
    pieces, progress = next_pieces(Progress(), 5000, None, LIMITS, PLENTY)
    assert pieces[:3] == [Piece(0, 100), Piece(100, 200), Piece(200, 250)]
    assert pieces[3] == Piece(250, 4250, is_gap=True)
    assert (pieces[4], pieces[-1]) == (Piece(4250, 4350), Piece(4950, 5000))
    assert progress == Progress(5000)


def test_a_gap_grows_while_the_run_outruns_its_budget_and_the_head_stays() -> None:
    _, progress = next_pieces(Progress(), 5000, None, LIMITS, 100)
    assert progress == Progress(100, skip=(250, 4250))
    _, progress = next_pieces(progress, 9000, None, LIMITS, 100)
    assert progress == Progress(200, skip=(250, 8250))
    pieces, progress = next_pieces(progress, 9000, None, LIMITS, PLENTY)
    assert pieces[:2] == [Piece(200, 250), Piece(250, 8250, is_gap=True)]
    assert progress == Progress(9000)


def test_a_gap_costs_no_budget() -> None:
    pieces, _ = next_pieces(Progress(250, skip=(250, 4250)), 5000, None, LIMITS, 10)
    assert pieces == [Piece(250, 4250, is_gap=True), Piece(4250, 4260)]


def test_what_the_spool_has_lost_is_a_gap() -> None:
    pieces, _ = next_pieces(Progress(), 400, (150, 350), LIMITS, PLENTY)
    assert pieces == [Piece(0, 100), Piece(100, 150), Piece(150, 350, is_gap=True), Piece(350, 400)]


def test_a_gap_that_opened_behind_what_was_shipped_starts_there() -> None:
    pieces, _ = next_pieces(Progress(200), 400, (150, 350), LIMITS, PLENTY)
    assert pieces == [Piece(200, 350, is_gap=True), Piece(350, 400)]


def test_a_gap_that_is_behind_us_is_none() -> None:
    pieces, _ = next_pieces(Progress(380), 400, (150, 350), LIMITS, PLENTY)
    assert pieces == [Piece(380, 400)]


def test_two_gaps_that_overlap_are_passed_one_after_the_other() -> None:
    pieces, _ = next_pieces(Progress(0, skip=(50, 300)), 400, (200, 350), LIMITS, PLENTY)
    assert pieces == [Piece(0, 50), Piece(50, 300, is_gap=True), Piece(300, 350, is_gap=True), Piece(350, 400)]


@pytest.mark.parametrize("size", [1, 99, 100, 101, 999, 1000, 1001, 12345])
@pytest.mark.parametrize("budget", [7, 100, PLENTY])
def test_pieces_cover_all_output_once_and_in_order(size: int, budget: int) -> None:
    progress, covered = Progress(), 0
    for _ in range(10_000):
        pieces, progress = next_pieces(progress, size, None, LIMITS, budget)
        for piece in pieces:
            assert piece.start == covered
            assert piece.is_gap or piece.end - piece.start <= LIMITS.chunk_bytes
            covered = piece.end
        if covered == size:
            break
    assert covered == size


def test_a_budget_refills_with_time_up_to_a_second_of_it() -> None:
    budget = Budget(100, now=0.0)
    assert budget.available(0.0) == 100
    budget.spend(100)
    assert budget.available(0.5) == 50
    assert budget.available(10.0) == 100


def test_a_budget_that_was_overdrawn_waits_longer() -> None:
    budget = Budget(100, now=0.0)
    budget.spend(250)
    assert budget.available(1.0) < 0
    assert budget.available(2.5) == 100
