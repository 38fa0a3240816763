"""No language model: the embedded default where no Ollama answers. Static analysis and rules carry on alone."""

from __future__ import annotations

from schedmate.infra.llm.port import Answer, ModelUnavailableError, Question


class NoModel:
    """Answers nothing."""

    @property
    def name(self) -> str:
        """Always `none`."""
        return "none"

    async def available(self) -> bool:
        """Never."""
        return False

    async def ask(self, question: Question) -> Answer:  # noqa: ARG002 - the port's signature
        """Raise ModelUnavailableError."""
        raise ModelUnavailableError("no language model is configured (SCHEDMATE_LLM=none)")

    async def stop(self) -> None:
        """Do nothing: there is no connection."""
