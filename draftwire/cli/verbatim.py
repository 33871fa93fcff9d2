"""Text from the command line as it was typed.

pydantic-settings takes a list's values apart at commas, quotes and brackets and strips their spaces, so that text with
any of these would arrive as something else. So it travels through the parser as "=" and percent-encoded bytes.
"""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote_to_bytes

from pydantic import AfterValidator, BeforeValidator


def protect(arguments: Sequence[str], flags: Collection[str]) -> list[str]:
    """The arguments with each value of these flags encoded; `Verbatim` and `VerbatimPath` decode it."""
    protected: list[str] = []
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        if protected and protected[-1] in flags:
            protected.append(_encode(argument))
        elif equals and flag in flags:
            protected += [flag, _encode(value)]
        else:
            protected.append(argument)
    return protected


def _encode(text: str) -> str:
    return "=" + "".join(f"%{byte:02x}" for byte in text.encode(errors="surrogateescape"))


def _decode(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("="):
        return unquote_to_bytes(value[1:]).decode(errors="surrogateescape")
    return value


def _check(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("must be text in UTF-8") from None
    return text


#: Text that can be sent: bytes of the command line that are no UTF-8 are refused.
Text = Annotated[str, AfterValidator(_check)]

#: The same as a value of a flag that went through `protect`.
Verbatim = Annotated[Text, BeforeValidator(_decode)]

#: A path as such a value.
VerbatimPath = Annotated[Path, BeforeValidator(_decode)]
