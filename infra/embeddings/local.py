"""A small sentence-embedding model in this process: ONNX Runtime and its tokenizer, offline, on one thread.

The model is all-MiniLM-L6-v2 (Reimers and Gurevych 2019, "Sentence-BERT"; six layers, 384 dimensions), its weights in eight bits. A vector is the
mean of the last layer over the text's tokens, at unit length. Activations are put into eight bits by the range that they have in a call,
so texts are embedded one by one: beside others a text would get another vector.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np

from schedmate.infra.embeddings.hashed import unit
from schedmate.infra.embeddings.port import TEXT_CHARACTERS_MAX, EmbedderUnavailableError, Vector

DIRECTORY: Final = "embeddings/all-minilm-l6-v2-q"
"""Where the fetched model lies, below the directory of local state."""
MODEL, TOKENIZER, SUMS = "model.onnx", "tokenizer.json", "SHA256SUMS"
TOKENS_MAX: Final = 256
BATCH: Final = 16
FILE_BYTES_MAX: Final = 256 << 20
_NEEDED: Final = ("onnxruntime", "tokenizers")


class LocalModelError(Exception):
    """The local model cannot be used. The message says why, and what to do."""


def available(directory: Path) -> str | None:
    """Return why the model in a directory cannot be used, None where it can: the libraries are there and the files are what was fetched."""
    return _missing() or broken(directory)


def broken(directory: Path) -> str | None:
    """Return why the files in a directory are no model that can be used, None where they are; whether or not the libraries are there."""
    try:
        _checked(directory)
    except LocalModelError as error:
        return str(error)
    return None


def _missing() -> str | None:
    missing = [name for name in _NEEDED if find_spec(name) is None]
    return f"{' and '.join(missing)} not installed: install the extra `embeddings`" if missing else None


class LocalEmbedder:
    """The model in a directory, loaded at the first text. A batch of texts that takes longer than `timeout_s` is given up."""

    def __init__(self, directory: Path, *, timeout_s: float = 10.0) -> None:
        """Raises LocalModelError where the model cannot be used."""
        if (why := _missing()) is not None:
            raise LocalModelError(why)
        self._directory = directory
        self._sum = _checked(directory)
        self._timeout_s = timeout_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="schedmate-embedding")
        self._session: Any = None
        self._tokenizer: Any = None

    @property
    def space(self) -> str:
        """Name what made the vectors: the content of the model's files."""
        return f"local/{self._sum[:16]}/{TOKENS_MAX}"

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return a vector a text.

        Raises:
            EmbedderUnavailableError: the model's files cannot be loaded, or it took too long.
        """
        out: list[Vector] = []
        for first in range(0, len(texts), BATCH):
            some = list(texts[first : first + BATCH])
            try:
                async with asyncio.timeout(self._timeout_s):
                    out += await asyncio.get_running_loop().run_in_executor(self._thread, self._some, some)
            except RuntimeError as error:  # the thread is gone
                raise EmbedderUnavailableError("the local model was stopped") from error
            except TimeoutError as error:
                raise EmbedderUnavailableError(f"the local model took more than {self._timeout_s:g} s") from error
        return out

    async def stop(self) -> None:
        """Let go of the model; texts in hand are given up."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _some(self, texts: list[str]) -> list[Vector]:
        """Runs in the thread."""
        try:
            if self._session is None:
                self._load()
            return [self._vector(text) for text in texts]
        except EmbedderUnavailableError:
            raise
        except Exception as error:  # the libraries raise what they like, plain Exception too
            raise EmbedderUnavailableError(f"the local model failed: {type(error).__name__}") from error

    def _load(self) -> None:
        import onnxruntime  # noqa: PLC0415 - an optional extra, and slow to import
        from tokenizers import Tokenizer  # noqa: PLC0415 - an optional extra

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.use_deterministic_compute = True
        options.log_severity_level = 4
        tokenizer = Tokenizer.from_file(str(self._directory / TOKENIZER))
        tokenizer.no_padding()
        tokenizer.enable_truncation(TOKENS_MAX)
        self._session = onnxruntime.InferenceSession(
            str(self._directory / MODEL), options, providers=["CPUExecutionProvider"]
        )
        self._tokenizer = tokenizer

    def _vector(self, text: str) -> Vector:
        told = text[:TEXT_CHARACTERS_MAX].encode("utf-8", "replace").decode()
        ids = np.asarray([self._tokenizer.encode(told).ids or [0]], dtype=np.int64)
        given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        asked = {one.name for one in self._session.get_inputs()}
        layer = self._session.run(None, {name: value for name, value in given.items() if name in asked})[0]
        mean = np.asarray(layer, dtype=np.float64)[0].mean(axis=0)
        if not np.isfinite(mean).all():
            raise EmbedderUnavailableError("the local model gave no numbers")
        return unit(mean.tolist())


def _checked(directory: Path) -> str:
    """Return one hash of the model's files; where their sums lie beside them, they are those.

    Raises:
        LocalModelError: a file is missing, unreadable or another.
    """
    try:
        sums = {name: _hash(directory / name) for name in (MODEL, TOKENIZER)}
        written = (directory / SUMS).read_text("ascii") if (directory / SUMS).exists() else None
    except FileNotFoundError as error:
        raise LocalModelError(f"no model in {directory}: `schedmate embeddings fetch` brings it") from error
    except (OSError, UnicodeDecodeError) as error:
        raise LocalModelError(f"the model in {directory} cannot be read: {type(error).__name__}") from error
    if written is not None and written != sums_of(sums):
        raise LocalModelError(f"the model in {directory} is broken: `schedmate embeddings fetch` brings it anew")
    return hashlib.sha256(sums_of(sums).encode()).hexdigest()


def sums_of(sums: dict[str, str]) -> str:
    """Return hashes of files as `sha256sum` writes them."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise LocalModelError(f"{path} is larger than {FILE_BYTES_MAX} bytes")
        return hashlib.file_digest(file, "sha256").hexdigest()
