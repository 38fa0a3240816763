"""Bytes to lines: any cutting, repeats, overlaps and losses."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from schedmate.services.log_monitor.lines import LINE_BYTES_MAX, Feed, clean, flush, push


def read(feed: Feed, content: bytes, start: int = 0) -> list[str]:
    return [line.text for line in push(feed, start, start + len(content), content, gap=False)]


def test_bars_that_overwrite_themselves_are_lines_of_their_own():
    feed = Feed()
    assert read(feed, b"\r 10%|# | 1/10\r 20%|## | 2/10\r\nepoch done\n") == [
        " 10%|# | 1/10",
        " 20%|## | 2/10",
        "epoch done",
    ]
    assert feed.newlines == 2


def test_lines_are_numbered_by_newlines_alone():
    feed = Feed()
    content = b"one\na\rb\nthree\n"
    assert [(x.text, x.number) for x in push(feed, 0, len(content), content, gap=False)] == [
        ("one", 1), ("a", 2), ("b", 2), ("three", 3),
    ]  # fmt: skip


def test_a_character_split_over_two_chunks_is_joined():
    feed = Feed()
    raw = "loss ▏ 训练 🚀\n".encode()
    assert read(feed, raw[:6]) == []
    assert read(feed, raw[6:], 6) == ["loss ▏ 训练 🚀"]


def test_invalid_bytes_are_replaced_and_control_characters_dropped():
    assert clean(b"a\xe2\x96b\x80c\x00d") == "a\ufffdb\ufffdcd"
    assert clean(b"\x1b[34m\x1b[1mtitle\x1b[0m \x1b]0;window\x07ok") == "title ok"
    assert clean(b"12%\b\b\b34%") == "34%"


def test_a_chunk_that_came_before_changes_nothing():
    feed = Feed()
    read(feed, b"one\ntwo\nthr")
    before = feed.model_copy(deep=True)
    assert read(feed, b"one\ntwo\n") == []
    assert feed == before
    assert read(feed, b"two\nthree\n", 4) == ["three"]


def test_after_a_gap_reading_goes_on_at_the_next_line_without_numbers():
    feed = Feed()
    read(feed, b"one\nhal")
    assert list(push(feed, 7, 100, b"", gap=True)) == []
    assert feed.offset == 100
    lines = list(push(feed, 100, 118, b"f a line\nwhole one\n", gap=False))
    assert [(x.text, x.number) for x in lines] == [("whole one", None)]


def test_a_chunk_past_the_offset_is_a_gap_too():
    feed = Feed()
    read(feed, b"one\n")
    assert read(feed, b"tail of lost\nnext\n", 50) == ["next"]


def test_a_line_without_end_is_bounded():
    feed = Feed()
    for start in range(0, 10 * LINE_BYTES_MAX, 1000):
        read(feed, b"x" * 1000, start)
    assert len(feed.carry) == LINE_BYTES_MAX
    assert len(read(feed, b"\n", feed.offset)[0]) == LINE_BYTES_MAX


def test_the_end_gives_the_unfinished_line_once():
    feed = Feed()
    read(feed, b"one\nlast words")
    assert [x.text for x in flush(feed)] == ["last words"]
    assert [x.text for x in flush(feed)] == []


PIECES = st.lists(
    st.sampled_from(
        [b"\n", b"\r", b"\r\n", b"step 1/9", b" \xe2\x96\x8f", b"\x80", b"\x1b[31m", b"x" * 50, "é".encode()]
    ),
    max_size=40,
).map(b"".join)


@given(content=PIECES, data=st.data())
def test_any_cutting_with_repeats_and_overlaps_gives_the_same_state_and_lines(content, data):
    whole, cut = Feed(), Feed()
    expected = read(whole, content)
    got: list[str] = []
    position = 0
    while position < len(content):
        start = data.draw(st.integers(0, position))
        end = data.draw(st.integers(position + 1, len(content)))
        got += read(cut, content[start:end], start)
        position = end
        if data.draw(st.booleans()):
            got += read(cut, content[:end])
    assert got == expected
    assert cut == whole
