"""Text from the command line as it was typed.

pydantic-settings takes a list's values apart at commas, quotes and brackets and strips their spaces, so that text with
any of these would arrive as something else. So it travels through the parser as an equals sign, percents and digits.
"""

from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import unquote_to_bytes

from pydantic import AfterValidator, BeforeValidator


def protect(arguments: Sequence[str], flag: str) -> list[str]:
    """The arguments with each value of `flag` encoded; `Verbatim` decodes it."""
    protected: list[str] = []
    for argument in arguments:
        if protected and protected[-1] == flag:
            protected.append(_encode(argument))
        elif argument.startswith(f"{flag}="):
            protected += [flag, _encode(argument.removeprefix(f"{flag}="))]
        else:
            protected.append(argument)
    return protected


def _encode(text: str) -> str:
    return "=" + "".join(f"%{byte:02x}" for byte in text.encode(errors="surrogateescape"))


def _decode(value: Any) -> Any:
    return unquote_to_bytes(value[1:]).decode(errors="surrogateescape") if isinstance(value, str) else value


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
