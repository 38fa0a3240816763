"""The one archive reader: what a bundle may hold comes back as it was packed, everything else is refused in a sentence."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from schedmate.infra.bundles import BundleError, BundleLimits, open_bundle

FILES = {
    "train.py": b"print('hello')\n",
    "src/model/net.py": b"x" * 5000,
    "src/empty": b"",
    "data/ä 中.txt": b"\0\xff" * 700,
}
PROGRAM = "run.sh"
TAR_FORMS = ["tar", "tar.gz", "tar.bz2", "tar.xz"]
FORMS = [*TAR_FORMS, "zip", "zip stored"]
COMPRESS = {"tar": bytes, "tar.gz": gzip.compress, "tar.bz2": bz2.compress, "tar.xz": lzma.compress}


def tar_of(*members: tuple[tarfile.TarInfo, bytes], style: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=style) as archive:
        for info, content in members:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def member(name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, mode: int = 0o644, **fields):
    info = tarfile.TarInfo(name)
    info.type, info.mode = kind, mode
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def zip_of(*members: tuple[zipfile.ZipInfo | str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return buffer.getvalue()


def zip_member(name: str, mode: int, content: bytes = b"") -> tuple[zipfile.ZipInfo, bytes]:
    info = zipfile.ZipInfo(name)
    info.create_system = 3
    info.external_attr = mode << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    return info, content


def packed(form: str, files: dict[str, bytes], programs: tuple[str, ...] = ()) -> bytes:
    if form.startswith("zip"):
        method = zipfile.ZIP_STORED if form == "zip stored" else zipfile.ZIP_DEFLATED
        members = [
            zip_member(name, stat.S_IFREG | (0o755 if name in programs else 0o644), content)
            if name in programs
            else (name, content)
            for name, content in files.items()
        ]
        return zip_of(*members, method=method)
    plain = tar_of(
        *(member(name, content, mode=0o755 if name in programs else 0o600) for name, content in files.items())
    )
    return COMPRESS[form](plain)


def refused(content: bytes, rule: str, limits: BundleLimits | None = None) -> None:
    with pytest.raises(BundleError, match=rule), open_bundle(content, limits):
        pass


# --- what a bundle may hold -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_names_sizes_and_contents_come_back_as_they_were_packed(form):
    with open_bundle(packed(form, FILES)) as bundle:
        assert bundle.names() == tuple(sorted(FILES))
        assert {name: bundle.read(name) for name in bundle.names()} == FILES
        assert bundle.read("train.py") == FILES["train.py"]
        assert bundle.size_of("src/model/net.py") == 5000
        assert bundle.size_bytes == sum(map(len, FILES.values()))
        assert form.split()[0].removeprefix("tar.").startswith(("tar", "gz", "bz2", "xz", "zip"))


@pytest.mark.parametrize("form", FORMS)
def test_a_bundle_is_unpacked_with_plain_modes(form, tmp_path):
    old = os.umask(0o077)
    try:
        with open_bundle(packed(form, {**FILES, PROGRAM: b"#!/bin/sh\n"}, programs=(PROGRAM,))) as bundle:
            bundle.unpack_into(tmp_path / "fresh")
    finally:
        os.umask(old)
    found = {str(p.relative_to(tmp_path / "fresh")): p for p in (tmp_path / "fresh").rglob("*")}
    assert {name: p.read_bytes() for name, p in found.items() if p.is_file()} == {**FILES, PROGRAM: b"#!/bin/sh\n"}
    modes = {name: stat.S_IMODE(p.stat().st_mode) for name, p in found.items()}
    assert modes.pop(PROGRAM) == 0o755
    assert {mode for name, mode in modes.items() if found[name].is_file()} == {0o644}
    assert {mode for name, mode in modes.items() if found[name].is_dir()} == {0o755}


@pytest.mark.parametrize("form", FORMS)
def test_a_bundle_is_read_from_a_path(form, tmp_path):
    path = tmp_path / "bundle"
    path.write_bytes(packed(form, FILES))
    with open_bundle(path) as bundle:
        assert bundle.read("train.py") == FILES["train.py"]
    with open_bundle(str(path)) as bundle:
        assert bundle.names() == tuple(sorted(FILES))


@pytest.mark.parametrize("style", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("name", ["a" * 90 + "/" + "b" * 90, "x/" * 20 + "y" * 100, "plain"])
def test_long_names_of_every_style_of_tar_are_read(style, name):
    content = tar_of(member(name, b"long"), member("after", b"x"), style=style)
    with open_bundle(content) as bundle:
        assert bundle.read(name) == b"long"
        assert bundle.read("after") == b"x"


def test_leading_dots_folders_and_a_global_comment_are_fine():
    buffer = io.BytesIO()
    with tarfile.open(
        fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "a commit"}
    ) as archive:
        for info, content in (
            member("./", kind=tarfile.DIRTYPE),
            member("./a/", kind=tarfile.DIRTYPE),
            member("./a/b", b"1"),
            member("a", kind=tarfile.DIRTYPE),
        ):
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    with open_bundle(buffer.getvalue()) as bundle:
        assert bundle.names() == ("a/b",)


def test_empty_folders_are_kept(tmp_path):
    for content in (tar_of(member("out/deep", kind=tarfile.DIRTYPE)), zip_of(("out/deep/", b""))):
        with open_bundle(content) as bundle:
            assert bundle.names() == ()
            bundle.unpack_into(tmp_path / "fresh")
        assert (tmp_path / "fresh" / "out" / "deep").is_dir()
        (tmp_path / "fresh" / "out" / "deep").rmdir()
        (tmp_path / "fresh" / "out").rmdir()


def test_an_archive_written_to_a_pipe_is_read(tmp_path):
    class Pipe(io.RawIOBase):
        written = b""

        def writable(self):
            return True

        def write(self, content):
            Pipe.written += bytes(content)
            return len(content)

    with zipfile.ZipFile(Pipe(), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", b"x" * 100)
        with archive.open("b", "w", force_zip64=True) as opened:
            opened.write(b"y")
    with open_bundle(Pipe.written) as bundle:
        assert (bundle.read("a"), bundle.read("b")) == (b"x" * 100, b"y")


def test_compressed_streams_in_a_row_are_one(tmp_path):
    plain = tar_of(member("a", os.urandom(3000)), member("b", b"x"))
    for compress in (gzip.compress, bz2.compress, lzma.compress):
        with open_bundle(compress(plain[:1000]) + compress(plain[1000:]) + b"\0" * 512) as bundle:
            assert bundle.names() == ("a", "b")


def test_a_content_is_read_within_the_callers_bound(tmp_path):
    with open_bundle(packed("zip", FILES)) as bundle:
        assert len(bundle.read("src/model/net.py", 5000)) == 5000
        with pytest.raises(BundleError, match="5000 bytes; at most 4999"):
            bundle.read("src/model/net.py", max_bytes=4999)
        with pytest.raises(KeyError):
            bundle.read("none")


# --- names ------------------------------------------------------------------------------------------------------------

BAD_NAMES = {
    "../up": "leads elsewhere",
    "a/../../up": "leads elsewhere",
    "a/..": "leads elsewhere",
    "..": "leads elsewhere",
    "a//b": "leads elsewhere",
    "a/./b": "leads elsewhere",
    "/etc/passwd": "absolute",
    "//a": "absolute",
    "C:/windows": "absolute",
    "a\\b": "backslash",
    "..\\up": "backslash",
    "a\nb": "control character",
    "a\x7fb": "control character",
    "a\x85b": "control character",
    "d/" * 32 + "e": "more than 32 parts",
    "n" * 256: "longer than 255 bytes",
    "ä" * 128: "longer than 255 bytes",
    "l" * 200 + "/" + "l" * 200 + "/" + "l" * 200 + "/" + "l" * 200 + "/" + "l" * 230: "longer than 1024 bytes",
}


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_leads_elsewhere_or_cannot_be_written_is_refused(name):
    refused(tar_of(member(name, b"x")), BAD_NAMES[name])
    refused(zip_of((zipfile.ZipInfo(name), b"x")), BAD_NAMES[name])


@pytest.mark.parametrize("name", ["../up/", "/abs/", "a/../b/"])
def test_a_folders_name_is_held_to_the_same_rules(name):
    refused(tar_of(member(name, kind=tarfile.DIRTYPE)), "leads elsewhere|absolute")
    refused(zip_of((name, b"")), "leads elsewhere|absolute")


def test_percent_signs_are_letters_and_are_never_decoded(tmp_path):
    with open_bundle(tar_of(member("%2e%2e%2fup", b"x"), member("a%00", b"y"))) as bundle:
        bundle.unpack_into(tmp_path / "fresh")
    assert sorted(p.name for p in (tmp_path / "fresh").iterdir()) == ["%2e%2e%2fup", "a%00"]


def test_a_name_with_a_nul_byte_is_refused():
    whole = zip_of(("a.txt_b", b"x"))
    refused(whole.replace(b"a.txt_b", b"a.txt\0b"), "control character")
    refused(tar_of(member("short", b"x", pax_headers={"path": "a\0b"})), "control character")


def test_a_name_that_is_no_utf8_is_refused():
    refused(zip_of(("name", b"x")).replace(b"name", b"n\xe4me"), "not UTF-8")
    refused(tar_of(member("n\udce4me", b"x"), style=tarfile.GNU_FORMAT), "not UTF-8")


@pytest.mark.parametrize(
    ("first", "second", "rule"),
    [
        ("a", "a", "twice"),
        ("a", "./a", "twice"),
        ("a", "a/b", "a file and a folder"),
        ("a/b", "a", "a file and a folder"),
        ("\u00e9", "e\u0301", "written in two ways"),
        ("\u00e9/x", "e\u0301/y", "written in two ways"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_names_for_one_place_are_refused(first, second, rule):
    refused(tar_of(member(first, b"1"), member(second, b"2")), rule)
    refused(zip_of((first, b"1"), (second, b"2")), rule)


# --- kinds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (tarfile.SYMTYPE, "a symbolic link"),
        (tarfile.LNKTYPE, "a hard link"),
        (tarfile.CHRTYPE, "a device"),
        (tarfile.BLKTYPE, "a device"),
        (tarfile.FIFOTYPE, "a FIFO"),
        (b"S", "a sparse file"),
        (b"V", "a volume label"),
        (b"Z", "unknown type"),
    ],
)
@pytest.mark.parametrize("form", TAR_FORMS)
def test_anything_but_files_and_folders_is_refused_in_tar(kind, what, form):
    content = tar_of(member("fine", b"x"), member("odd", kind=kind, linkname="/etc/passwd"))
    refused(COMPRESS[form](content), f"'odd' is .*{what}")


def test_a_link_with_a_long_target_is_refused():
    content = tar_of(member("odd", kind=tarfile.SYMTYPE, linkname="t" * 500), style=tarfile.GNU_FORMAT)
    refused(content, "a symbolic link")


def test_a_sparse_file_in_pax_form_is_refused():
    refused(tar_of(member("odd", b"x", pax_headers={"GNU.sparse.major": "1"})), "sparse")


@pytest.mark.parametrize(
    ("mode", "what"),
    [
        (stat.S_IFLNK, "a symbolic link"),
        (stat.S_IFIFO, "no plain file"),
        (stat.S_IFCHR, "no plain file"),
        (stat.S_IFSOCK, "no plain file"),
    ],
)
def test_anything_but_files_and_folders_is_refused_in_zip(mode, what):
    refused(zip_of(zip_member("odd", mode | 0o777, b"/etc/passwd")), f"'odd' is {what}")


def test_names_for_all_files_at_once_are_refused():
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"path": "../up"}) as archive:
        archive.addfile(tarfile.TarInfo("a"))
    refused(buffer.getvalue(), "for all its files at once")


# --- bombs ------------------------------------------------------------------------------------------------------------

SMALL = BundleLimits(unpacked_bytes_max=100_000, file_bytes_max=60_000, entries_max=10, depth_max=4)
BOMB = BundleLimits(ratio_max=20, ratio_free_bytes=10_000)


@pytest.mark.parametrize("form", ["tar.gz", "tar.bz2", "tar.xz", "zip"])
def test_a_bomb_is_refused_by_its_ratio(form):
    refused(packed(form, {"zeros": b"\0" * 50_000}), "more than 20 times its own size", BOMB)
    with open_bundle(packed(form, {"zeros": b"\0" * 5_000}), BundleLimits(ratio_free_bytes=20_000, ratio_max=2)):
        pass


@pytest.mark.parametrize("form", FORMS)
def test_more_contents_than_allowed_are_refused(form):
    files = {f"f{n}": os.urandom(40_000) for n in range(3)}
    refused(packed(form, files), "unpacks to more than 100000 bytes", SMALL)


@pytest.mark.parametrize("form", FORMS)
def test_a_single_file_that_is_too_large_is_refused(form):
    refused(packed(form, {"large": os.urandom(60_001)}), "a file has at most 60000", SMALL)


@pytest.mark.parametrize("form", FORMS)
def test_too_many_entries_are_refused(form):
    with open_bundle(packed(form, {f"{n}": b"" for n in range(10)}), SMALL):
        pass
    refused(packed(form, {f"{n}": b"" for n in range(11)}), "more than 10 entries", SMALL)
    refused(packed(form, {f"a{n}/b{n}/c{n}": b"" for n in range(4)}), "more than 10 entries", SMALL)


@pytest.mark.parametrize("form", FORMS)
def test_names_that_are_too_deep_are_refused(form):
    refused(packed(form, {"a/b/c/d/e": b""}), "more than 4 parts", SMALL)


def test_folders_said_again_and_again_are_counted():
    refused(tar_of(*(member("a/", kind=tarfile.DIRTYPE) for _ in range(11))), "more than 10 entries", SMALL)


def test_extended_headers_are_bounded():
    refused(tar_of(member("a", b"x", pax_headers={"comment": "y" * 70_000})), "extended header has")
    one = tar_of(member("a", b"x", pax_headers={"comment": "y"}))[:1024]
    refused(one * 50 + b"\0" * 1024, "more than 30 headers", SMALL)


def test_an_archive_compressed_twice_is_refused():
    plain = tar_of(member("a", b"x"))
    for content in (
        gzip.compress(gzip.compress(plain)),
        lzma.compress(bz2.compress(plain)),
        gzip.compress(zip_of(("a", b"x"))),
    ):
        refused(content, "compressed twice")


def test_an_xz_stream_that_asks_for_much_memory_is_refused():
    # A stream that really asks for it would cost the memory here too: the size in a small one's block header is changed.
    compressed = bytearray(lzma.compress(tar_of(member("a", b"x")), filters=[{"id": lzma.FILTER_LZMA2, "preset": 0}]))
    header = 12
    size = (compressed[header] + 1) * 4
    block = compressed[header : header + size - 4]
    place = bytes(block).index(b"\x21\x01") + 2
    compressed[header + place] = 36  # 1 GiB
    compressed[header + size - 4 : header + size] = struct.pack(
        "<I", zlib.crc32(bytes(compressed[header : header + size - 4]))
    )
    refused(bytes(compressed), "damaged \\(xz\\).*[Mm]emory")


def test_entries_of_a_zip_that_share_their_content_are_refused():
    whole = zip_of(("a", os.urandom(2000)), ("b", b"x"))
    end = whole.rindex(b"PK\x05\x06")
    directory_at = struct.unpack_from("<L", whole, end + 16)[0]
    first_size = 46 + 1
    changed = bytearray(whole)
    second_at = directory_at + first_size
    assert changed[second_at : second_at + 4] == b"PK\x01\x02"
    changed[second_at : second_at + 46] = changed[directory_at : directory_at + 46]
    changed[second_at + 46 : second_at + 47] = b"a"
    refused(bytes(changed), "twice|on top of each other")


def test_a_zip_that_lies_about_a_size_is_found_out():
    whole = bytearray(zip_of(("a", b"y" * 3000)))
    for signature, place in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        struct.pack_into("<L", whole, whole.index(signature) + place, 10)
    with open_bundle(bytes(whole)) as bundle, pytest.raises(BundleError, match="larger than the archive says"):
        bundle.read("a")


def read_all(content: bytes) -> None:
    with open_bundle(content) as bundle:
        for name in bundle.names():
            bundle.read(name)


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content", [b"", b"x", b"PK", b"#!/bin/sh\necho hello\n" * 100, b"\x7fELF" + b"\1" * 5000, b"Rar!\x1a\x07\0" * 90]
)
def test_what_is_no_archive_is_refused(content):
    refused(content, "no archive|not whole")


@pytest.mark.parametrize("form", FORMS)
def test_an_archive_that_is_cut_anywhere_is_refused(form):
    whole = packed(form, {"a": os.urandom(3000), "b/c": b"text" * 300})
    if form == "tar":
        whole = whole[: len(whole.rstrip(b"\0")) + 512]  # without the padding, which may be missing
    for end in range(0, len(whole) - 1, 97):
        with pytest.raises(BundleError):
            read_all(whole[:end])


@pytest.mark.parametrize("form", FORMS)
def test_something_after_the_end_is_refused(form):
    refused(packed(form, FILES) + b"more", "follows|damaged")


def test_a_changed_content_is_found_in_a_zip():
    whole = zip_of(("a", b"0123456789"), method=zipfile.ZIP_STORED)
    with (
        open_bundle(whole.replace(b"0123456789", b"0123456780")) as bundle,
        pytest.raises(BundleError, match="checksum"),
    ):
        bundle.read("a")


def test_an_encrypted_a_foreign_and_a_split_zip_are_refused():
    whole = zip_of(("a", b"x"))
    encrypted = bytearray(whole)
    for signature, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        encrypted[whole.index(signature) + place] |= 1
    refused(bytes(encrypted), "encrypted")
    refused(zip_of(("a", b"x" * 100), method=zipfile.ZIP_LZMA), "method 14")
    split = bytearray(whole)
    split[whole.rindex(b"PK\x05\x06") + 4] = 1
    refused(bytes(split), "part of several")


def test_a_zip_whose_local_header_says_something_else_is_refused():
    whole = zip_of(("good", b"x"))
    refused(whole.replace(b"good", b"evil", 1), "another name")


# --- unpacking --------------------------------------------------------------------------------------------------------


def test_only_a_fresh_directory_is_unpacked_into(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("keep")
    (tmp_path / "file").write_text("keep")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to("elsewhere")
    (tmp_path / "empty").mkdir()
    with open_bundle(packed("tar.gz", FILES)) as bundle:
        for name, rule in (("full", "not empty"), ("file", "no directory"), ("link", "no directory")):
            with pytest.raises(BundleError, match=rule):
                bundle.unpack_into(tmp_path / name)
        with pytest.raises(FileNotFoundError):
            bundle.unpack_into(tmp_path / "none" / "deeper")
        bundle.unpack_into(tmp_path / "empty")
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert (tmp_path / "full" / "mine").read_text() == "keep"
    assert (tmp_path / "empty" / "train.py").read_bytes() == FILES["train.py"]


def test_a_damaged_bundle_leaves_nothing_behind(tmp_path):
    whole = zip_of(("deep/a", b"fine"), ("deep/b", b"0123456789"), method=zipfile.ZIP_STORED)
    (tmp_path / "empty").mkdir()
    with open_bundle(whole.replace(b"0123456789", b"0123456780")) as bundle:
        for name in ("empty", "new"):
            with pytest.raises(BundleError, match="checksum"):
                bundle.unpack_into(tmp_path / name)
    assert list(tmp_path.iterdir()) == [tmp_path / "empty"]
    assert list((tmp_path / "empty").iterdir()) == []


def test_a_link_put_in_the_way_is_not_followed(tmp_path, monkeypatch):
    (tmp_path / "outside").mkdir()
    target = tmp_path / "fresh"
    real = os.mkdir

    def hostile(name, *args, **kwargs):
        real(name, *args, **kwargs)
        if name == "src":
            (target / "src").rmdir()
            (target / "src").symlink_to(tmp_path / "outside")

    monkeypatch.setattr(os, "mkdir", hostile)
    with open_bundle(packed("tar", {"src/a": b"x"})) as bundle, pytest.raises(OSError, match="src"):
        bundle.unpack_into(target)
    assert list((tmp_path / "outside").iterdir()) == []
    assert not target.exists()


# --- whatever comes ---------------------------------------------------------------------------------------------------

PARTS = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="/\\:"), min_size=1, max_size=12
)
NAMES = st.lists(PARTS.filter(lambda part: part not in {".", ".."}), min_size=1, max_size=3).map("/".join)


@settings(max_examples=80)
@given(files=st.dictionaries(NAMES, st.binary(max_size=600), max_size=6), form=st.sampled_from(FORMS))
@example(files={}, form="zip")
@example(files={}, form="tar.gz")
def test_any_files_come_back_or_are_refused_for_their_names(files, form):
    content = packed(form, files)
    try:
        with open_bundle(content) as bundle:
            assert {name: bundle.read(name) for name in bundle.names()} == files
    except BundleError as error:
        assert any(rule in str(error) for rule in ("a file and a folder", "two ways", "longer than"))  # noqa: PT017


WHOLE = {form: packed(form, {"a": b"text" * 40, "b/c": b"x"}, programs=("a",)) for form in FORMS}
ALONE = BundleLimits(unpacked_bytes_max=1_000_000, file_bytes_max=1_000_000, entries_max=100)


@settings(max_examples=400)
@given(
    form=st.sampled_from(FORMS),
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=6),
)
def test_changed_bytes_are_refused_or_harmless(form, changes, tmp_path_factory):
    content = bytearray(WHOLE[form])
    for place, byte in changes:
        content[int(place * len(content))] = byte
    target = tmp_path_factory.mktemp("changed", numbered=True) / "fresh"
    try:
        with open_bundle(bytes(content), ALONE) as bundle:
            bundle.unpack_into(target)
    except BundleError:
        assert not target.exists()
        return
    for path in target.rglob("*"):
        assert path.is_dir() or path.is_file()
        assert not path.is_symlink()
        assert Path(os.path.realpath(path)).is_relative_to(target)


@settings(max_examples=300)
@given(
    content=st.binary(max_size=2000),
    beginning=st.sampled_from([b"", b"PK\x03\x04", b"PK\x05\x06", b"\x1f\x8b\x08", b"BZh9", b"\xfd7zXZ\0"]),
)
def test_any_bytes_are_refused_in_the_readers_own_words(content, beginning):
    try:
        with open_bundle(beginning + content, ALONE):
            pass
    except BundleError:
        pass


@settings(max_examples=300)
@given(header=st.lists(st.tuples(st.integers(0, 511), st.integers(0, 255)), max_size=12), rest=st.binary(max_size=1500))
def test_any_tar_header_with_a_right_checksum_is_refused_or_read(header, rest):
    block = bytearray(tarfile.TarInfo("name").tobuf(tarfile.USTAR_FORMAT))
    for place, byte in header:
        block[place] = byte
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    try:
        with open_bundle(bytes(block) + rest + b"\0" * 1024, ALONE) as bundle:
            for name in bundle.names():
                assert len(bundle.read(name)) == bundle.size_of(name)
    except BundleError:
        pass
