"""The `draftwire` command: up, generate, demo, bench, distill."""

import sys

from pydantic_settings import BaseSettings, CliApp, CliSubCommand, SettingsConfigDict

from bench.command import Bench
from distill.command import Distill
from draftwire.cli.demo import Demo
from draftwire.cli.generate import Generate
from draftwire.cli.up import Up


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
    """The process."""
    CliApp.run(Draftwire, cli_args=sys.argv[1:])


if __name__ == "__main__":
    main()
