"""What can go wrong between text and token ids. No error here holds a word of a user's text."""

import enum
from pathlib import Path


class ModelTextError(ValueError):
    """The model's tokenizer or template cannot be used. The message names the file and what is wrong in it."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")


class TemplateProblem(enum.StrEnum):
    """Why a chat could not be turned into a prompt."""

    MISSING = "MISSING"
    """The model has no chat template."""
    REFUSED = "REFUSED"
    """The template turned the messages down (``raise_exception``)."""
    FAILED = "FAILED"
    """The template raised an error on these messages."""
    TOO_LARGE = "TOO_LARGE"
    """It rendered more than the limit allows."""
    TOO_SLOW = "TOO_SLOW"
    """It took more time than the limit allows."""
    NOT_CONTINUABLE = "NOT_CONTINUABLE"
    """The final message does not stand at the end of what the template renders."""
    UNAVAILABLE = "UNAVAILABLE"
    """The process that renders could not be started."""


class ChatTemplateError(ValueError):
    """A chat that the model's template does not render. `message` is for the user and holds no text of the chat."""

    def __init__(self, problem: TemplateProblem, message: str) -> None:
        super().__init__(message)
        self.problem = problem
        self.message = message
