"""Configuration of a service: one frozen model from flags, then environment, then defaults, checked once at start.

The field `max_model_len` is the flag --max-model-len and the variable DRAFTWIRE_MAX_MODEL_LEN.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict, SettingsError

ENV_PREFIX = "DRAFTWIRE_"


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise ValueError("must be host:port with a port of 1 to 65535")
    return text


def _split(value: Any) -> Any:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


#: "host:port".
Address = Annotated[str, AfterValidator(_address)]

#: "host:port,host:port", in a flag as in the environment.
Addresses = Annotated[tuple[Address, ...], NoDecode, BeforeValidator(_split)]

#: "0,1" -> (0, 1), in a flag as in the environment.
Cores = Annotated[tuple[Annotated[int, Field(ge=0)], ...], NoDecode, BeforeValidator(_split)]


class ServiceConfig(BaseSettings):
    """What every service has; a service's own config is a subclass."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix=ENV_PREFIX,
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_avoid_json=True,
        cli_hide_none_type=True,
        cli_exit_on_error=False,
    )

    host: str = Field("127.0.0.1", min_length=1, description="address to listen on; 0.0.0.0 = every network")
    port: int = Field(0, ge=0, le=65535, description="gRPC port; 0 = any free one")
    metrics_port: int = Field(0, ge=0, le=65535, description="port of http://HOST:PORT/metrics; 0 = any free one")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least severe event to log")
    shutdown_grace: float = Field(
        30.0, ge=0, le=3600, description="how long running calls may take to finish after SIGTERM, seconds"
    )


class EngineConfig(ServiceConfig):
    """What every service with an engine has besides."""

    served_model_name: str | None = Field(None, description="name of the model; default: the last part of its path")
    dtype: Literal["auto", "bfloat16", "float32"] = Field(
        "auto", description="arithmetic of the weights; auto = bfloat16 on a GPU, float32 on a CPU"
    )
    device: str = Field("cpu", description="cpu or cuda[:N]")
    threads: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="CPU threads of the engine; default: as many as --cpu-affinity, else torch's own",
    )
    cpu_affinity: Cores = Field((), description="CPU cores that the process may use: 0,1; default: all")
    max_model_len: int | None = Field(None, ge=2, description="longest prompt + output, tokens; default: the model's")
    max_num_seqs: int = Field(16, ge=1, le=1024, description="sessions at once")
    max_num_batched_tokens: int = Field(512, ge=8, le=65536, description="most tokens in one step")

    @property
    def engine_threads(self) -> int | None:
        """CPU threads of the engine; None = torch's own choice."""
        return self.threads or len(self.cpu_affinity) or None

    @model_validator(mode="after")
    def _room_in_a_step(self) -> Self:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(f"--max-num-batched-tokens must be at least --max-num-seqs = {self.max_num_seqs}")
        return self


ConfigT = TypeVar("ConfigT", bound=ServiceConfig)


def load_config(cls: type[ConfigT], argv: Sequence[str] | None = None) -> ConfigT:
    """Read the flags (None = the process's own) and the environment.

    Each bad value is a line on stderr that names the flag and the limit, and the process ends with exit code 2.
    --help prints every flag with its default.
    """
    program = cls.__module__.partition(".")[0]
    cli: dict[str, Any] = {"_cli_parse_args": list(sys.argv[1:] if argv is None else argv), "_cli_prog_name": program}
    try:
        return cls(**cli)
    except ValidationError as error:
        problems = problems_of(error)
    except SettingsError as error:
        problems = [str(error).removeprefix("error parsing CLI: ")]
    for problem in problems:
        print(f"{program}: error: {problem}", file=sys.stderr)
    raise SystemExit(2)


def problems_of(error: ValidationError) -> list[str]:
    """A line for each bad value: flag, limit, value."""
    return [_problem(details) for details in error.errors()]


def _problem(details: ErrorDetails) -> str:
    """A check over several fields has no flag of its own, so its text names them."""
    text = (
        details["msg"].removeprefix("Value error, ").replace("Input should be", "must be").partition(", unable to")[0]
    )
    names = [part for part in details["loc"] if isinstance(part, str)]  # of a command line, its subcommands come first
    missing = details["type"] == "missing"
    if not names or (isinstance(details["input"], Mapping) and not missing):
        return text
    flag = "--" + names[-1].replace("_", "-")
    if missing:
        return f"{flag}: is required"
    return f"{flag}: {text} (got {details['input']!r})"
