"""The flags of a gateway."""

from pydantic import Field

from draftwire.config import Addresses, ServiceConfig
from draftwire.rpc.limits import MAX_MESSAGE_BYTES


class GatewayConfig(ServiceConfig):
    """A gateway: text in, text out, with the verify workers behind it looking like one model."""

    port: int = Field(50051, ge=0, le=65535, description="gRPC port; 0 = any free one")
    metrics_port: int = Field(9051, ge=0, le=65535, description="Prometheus port; 0 = any free one")

    model: str = Field(
        "embedded-target", description="whose tokenizer: local folder, hub id, embedded-target or fake:..."
    )
    served_model_name: str | None = Field(
        None, min_length=1, max_length=256, description="name that callers ask for; default: the workers' name for it"
    )
    verify: Addresses = Field(min_length=1, description="verify workers, host:port,host:port")
    failover_wait: float = Field(
        10.0,
        ge=0,
        le=3600,
        description="how long an answer that lost its verify worker waits for another, or for it to be back, seconds",
    )
    max_concurrent_requests: int = Field(
        1024, ge=1, le=65536, description="requests that may be answered at once; more are refused"
    )
    max_prompt_bytes: int = Field(
        1024 * 1024,
        ge=1,
        le=MAX_MESSAGE_BYTES,
        description="longest prompt, bytes of text in UTF-8; of a conversation also as its chat template writes it",
    )
    stall_seconds: float = Field(30.0, gt=0, le=3600, description="a caller that reads nothing for so long is cut off")
