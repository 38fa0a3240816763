"""What all answers have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Answer(BaseModel):
    """Base of all answers. Fields may be added: clients ignore those that they do not know."""

    model_config = ConfigDict(frozen=True)


class Call(Answer):
    """A call that was made about this, from the audit."""

    at: float
    principal: str
    call: str
    outcome: str
