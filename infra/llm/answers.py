"""From a model's text to an object of the schema. The text is untrusted: bounded, parsed strictly, checked whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from schedmate.infra.llm.port import ModelAnswerError

ANSWER_CHARACTERS_MAX: Final = 256 * 1024


def checked_answer(text: str, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the object that the text is, when it fits the schema.

    Raises:
        ModelAnswerError: it is too long, no JSON, no object, or does not fit. The message says where, never what the text was.
    """
    from jsonschema import Draft202012Validator  # noqa: PLC0415 - only who asks a model needs it

    if len(text) > ANSWER_CHARACTERS_MAX:
        raise ModelAnswerError(f"the answer has {len(text)} characters, more than {ANSWER_CHARACTERS_MAX}")
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ModelAnswerError(f"the answer is no JSON: {type(error).__name__}") from error
    if not isinstance(value, dict):
        raise ModelAnswerError(f"the answer is a {type(value).__name__}, not an object")
    try:
        wrong = next(iter(Draft202012Validator(schema).iter_errors(value)), None)
    except RecursionError as error:
        raise ModelAnswerError("the answer is nested too deeply") from error
    if wrong is not None:
        where = "/".join(str(part)[:40] for part in wrong.absolute_path) or "the object"
        raise ModelAnswerError(f"the answer does not fit the schema: {where} fails {wrong.validator}")
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
