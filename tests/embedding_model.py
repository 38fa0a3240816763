"""A model of a few bytes in the form of the local one: the letters' vectors are its last layer. Written as ONNX's protocol buffers are."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from schedmate.infra.embeddings.local import MODEL, SUMS, TOKENIZER, sums_of

REAL = "SCHEDMATE_TEST_EMBEDDING_MODEL"
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789 "
DIMENSIONS = 8
_FLOAT, _INT64 = 1, 7


def tiny_model(directory: Path, *, table: np.ndarray | None = None) -> Path:
    """Write a model into a directory. Its words are letters; equal tables make equal models."""
    directory.mkdir(parents=True, exist_ok=True)
    if table is None:
        table = np.random.default_rng(7).normal(size=(len(LETTERS) + 1, DIMENSIONS))
    (directory / MODEL).write_bytes(_model(table.astype("<f4")))
    vocabulary = {"[UNK]": 0, **{letter: n for n, letter in enumerate(LETTERS, 1)}}
    split = {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": False}
    written: dict[str, object] = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": split, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
    }  # fmt: skip
    (directory / TOKENIZER).write_text(json.dumps(written), "utf-8")
    write_sums(directory)
    return directory


def write_sums(directory: Path) -> None:
    """Write the sums of the files as they are."""
    told = {name: hashlib.sha256((directory / name).read_bytes()).hexdigest() for name in (MODEL, TOKENIZER)}
    (directory / SUMS).write_text(sums_of(told), "ascii")


def skip_without_the_libraries() -> None:
    """Skip where the local model's libraries are not there."""
    for library in ("onnxruntime", "tokenizers"):
        pytest.importorskip(library, reason="the extra `embeddings` is not installed")


def real_model() -> Path:
    """Return the directory of the real model, or skip."""
    skip_without_the_libraries()
    if REAL not in os.environ:
        pytest.skip(f"{REAL} does not name the directory of the model (schedmate embeddings fetch)")
    return Path(os.environ[REAL])


def _model(table: np.ndarray) -> bytes:
    """last_hidden_state[0, n] = table[input_ids[0, n]]."""
    tensor = _number(1, table.shape[0]) + _number(1, table.shape[1]) + _number(2, _FLOAT) + _bytes(8, b"table")
    node = _bytes(1, b"table") + _bytes(1, b"input_ids") + _bytes(2, b"last_hidden_state") + _bytes(4, b"Gather")
    graph = [
        _bytes(1, node),
        _bytes(2, b"tiny"),
        _bytes(5, tensor + _bytes(9, table.tobytes())),
        _bytes(11, _value("input_ids", _INT64, ("batch", "length"))),
        _bytes(12, _value("last_hidden_state", _FLOAT, ("batch", "length", table.shape[1]))),
    ]
    return _number(1, 8) + _bytes(7, b"".join(graph)) + _bytes(8, _number(2, 13))


def _value(name: str, kind: int, shape: Iterable[str | int]) -> bytes:
    dimensions = (_bytes(2, d.encode()) if isinstance(d, str) else _number(1, d) for d in shape)
    tensor = _number(1, kind) + _bytes(2, b"".join(_bytes(1, one) for one in dimensions))
    return _bytes(1, name.encode()) + _bytes(2, _bytes(1, tensor))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
