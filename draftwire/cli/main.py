"""The `draftwire` command: up, generate, demo, bench, distill."""

import os
import sys

import grpc
from pydantic import ValidationError
from pydantic_settings import BaseSettings, CliApp, CliSubCommand, SettingsConfigDict, SettingsError

from bench.command import Bench
from distill.command import Distill
from draftwire.cli.demo import Demo
from draftwire.cli.generate import Generate
from draftwire.cli.up import Up
from draftwire.cli.verbatim import protect
from draftwire.config import problems_of
from draftwire.rpc.status import error_of

#: Flags whose values are lists of texts or paths.
VERBATIM = ("--stop", "--data", "--eval-data")


class Draftwire(BaseSettings):
    """Disaggregated speculative decoding: a draft pool and a verify pool that look like one model."""

    model_config = SettingsConfigDict(
        cli_prog_name="draftwire",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
    )

    up: CliSubCommand[Up]
    generate: CliSubCommand[Generate]
    demo: CliSubCommand[Demo]
    bench: CliSubCommand[Bench]
    distill: CliSubCommand[Distill]

    def cli_cmd(self) -> None:
        """Run the chosen command."""
        CliApp.run_subcommand(self)


def main() -> None:
    """The process. Exit code 2: a bad flag; 1: it failed; as in a shell 130: Ctrl-C, 141: nobody reads its output."""
    try:
        try:
            CliApp.run(Draftwire, cli_args=protect(sys.argv[1:], VERBATIM))
        finally:
            sys.stdout.flush()  # here a closed pipe can still be caught
    except ValidationError as error:
        _fail(2, *problems_of(error))
    except SettingsError as error:
        _fail(2, str(error))
    except grpc.aio.AioRpcError as error:
        _fail(1, str(error_of(error)))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains as it ends
        sys.exit(141)


def _fail(code: int, *problems: str) -> None:
    for problem in problems:
        print(f"draftwire: error: {problem}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
