"""How large a prompt may be: tokenising is shared by all callers, so none may make it long.

Ids are not counted here: as many as fit into the model are taken, and they need no tokenising.
"""

from draftwire.errors import InvalidArgument
from gateway.requests import ChatPrompt, IdsPrompt, Prompt, TextPrompt

#: What a message counts besides its role and content, about what a chat template writes around it. Unit: bytes.
MESSAGE_BYTES = 16


def check_prompt(prompt: Prompt, most: int) -> None:
    """Raise InvalidArgument for a prompt of more than `most` bytes (--max-prompt-bytes), as the caller wrote it."""
    match prompt:
        case TextPrompt(text):
            _check("text", len(text.encode()), most, "")
        case ChatPrompt(messages):
            size = sum(MESSAGE_BYTES + len(m.role.encode()) + len(m.content.encode()) for m in messages)
            _check("chat", size, most, f", counting {MESSAGE_BYTES} for each message besides its role and content")
        case IdsPrompt():
            pass


def check_rendered(text: str, most: int) -> None:
    """Raise InvalidArgument("chat") where the chat template made more than `most` bytes of a conversation."""
    _check("chat", len(text.encode()), most, " once the model's chat template has been applied")


def _check(field: str, size: int, most: int, counted: str) -> None:
    if size > most:
        raise InvalidArgument(field, f"must be at most {most} bytes (--max-prompt-bytes){counted}, got {size}")
