"""Answers about what is kept beside jobs: bundles and dead letters."""

from __future__ import annotations

from pydantic import Field

from schedmate.services.ingest.models.answer import Answer


class BundleAnswer(Answer):
    """A stored bundle."""

    sha256: str
    size_bytes: int
    entries: int


class DeadLetterView(Answer):
    """A record that could not be processed."""

    id: str
    original_topic: str
    original_partition: int
    original_offset: int
    original_key: str
    service: str
    error: str
    attempts: int
    at: float
    value_bytes: int
    value_preview: str = Field(description="The beginning of the value; invalid UTF-8 is replaced.")
    resends: int


class DeadLetterPage(Answer):
    """Dead letters, newest first."""

    dead_letters: list[DeadLetterView]
    next_cursor: str | None = None


class ResendAnswer(Answer):
    """A dead letter was sent back."""

    id: str
    topic: str
    resends: int
    job_id: str | None = Field(default=None, description="For a request: the job that it became.")
