"""What the plug-in is told: in vLLM's additional config, or in the environment of the process that starts vLLM.

    --additional-config '{"draftwire": {"drafts": "10.0.0.7:50053,10.0.0.8:50053", "max_wait": 0.05}}'

The field `max_wait` is the variable DRAFTWIRE_MAX_WAIT; additional config wins. How many tokens a step tests, K, is
vLLM's own `num_speculative_tokens`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from draftwire.config import ENV_PREFIX, Addresses
from draftwire.errors import InvalidArgument
from draftwire.types import MAX_PROPOSAL_TOKENS
from verify_service.policy import Schedule

#: Where the plug-in's fields stand in vLLM's additional config.
KEY = "draftwire"


class PluginConfig(BaseSettings):
    """The plug-in's fields; names as in a verify worker's flags where they mean the same."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", env_prefix=ENV_PREFIX)

    drafts: Addresses = Field(min_length=1, description="draft workers, host:port,host:port")
    schedule: Schedule = Field(
        "auto", description="when a step starts: auto (goodput), eager (never wait), lockstep (wait for K)"
    )
    max_wait: float = Field(
        0.25, ge=0, le=1, description="tau: most seconds that a step is put off for proposals that are on their way"
    )
    draft_window: int | None = Field(
        None, ge=1, le=MAX_PROPOSAL_TOKENS, description="how far past the last commit a draft may run; default 2K + 1"
    )
    tls: bool = Field(False, description="speak TLS to the draft workers; on where one of the files below is given")
    tls_ca: Path | None = Field(None, description="PEM file of the authorities to trust; default: the system's")
    tls_cert: Path | None = Field(None, description="PEM file of our certificate, where the other side asks for one")
    tls_key: Path | None = Field(None, description="PEM file of its key")
    metrics_host: str = Field("127.0.0.1", min_length=1, description="address of the plug-in's own /metrics")
    metrics_port: int | None = Field(
        None, ge=0, le=65535, description="port of the plug-in's own /metrics; 0 = any free one; default: none"
    )

    def credentials(self) -> grpc.ChannelCredentials | None:
        """For TLS to the draft workers; None = plain. Raises InvalidArgument if a file cannot be read."""
        if not (self.tls or self.tls_ca or self.tls_cert or self.tls_key):
            return None
        ca, cert, key = (_read(name, getattr(self, name)) for name in ("tls_ca", "tls_cert", "tls_key"))
        if (cert is None) != (key is None):
            raise InvalidArgument(f"additional_config.{KEY}.tls_cert", "needs tls_key, and the other way round")
        return grpc.ssl_channel_credentials(ca, key, cert)

    def window(self, num_speculative_tokens: int) -> int:
        """The credit that drafts get, tokens."""
        if self.draft_window is not None:
            return self.draft_window
        if self.schedule == "lockstep":
            return num_speculative_tokens
        return min(2 * num_speculative_tokens + 1, MAX_PROPOSAL_TOKENS)


def _read(name: str, path: Path | None) -> bytes | None:
    try:
        return path.read_bytes() if path else None
    except OSError as error:
        raise InvalidArgument(f"additional_config.{KEY}.{name}", f"{path} cannot be read: {error.strerror}") from None


def read_config(additional_config: Mapping[str, Any]) -> PluginConfig:
    """The plug-in's part of vLLM's additional config, filled up from the environment.

    Raises InvalidArgument that names the field and its limit.
    """
    fields = additional_config.get(KEY, {})
    if not isinstance(fields, Mapping):
        raise InvalidArgument(f"additional_config.{KEY}", f"must be an object of fields, got {fields!r}")
    try:
        return PluginConfig(**fields)
    except ValidationError as error:
        first = error.errors()[0]
    name = str(first["loc"][0])
    if first["type"] == "missing":
        problem = f"must be set, there or as {ENV_PREFIX}{name.upper()}"
    else:
        rule = first["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
        problem = f"{rule}, got {first['input']!r}"
    raise InvalidArgument(f"additional_config.{KEY}.{name}", problem)
