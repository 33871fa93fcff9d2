"""`draftwire distill`: collect, train, evaluate, export."""

from pydantic import BaseModel
from pydantic_settings import CliApp, CliSubCommand

from distill.collect_options import Collect
from distill.evaluate_options import Evaluate
from distill.export_options import Export
from distill.train_options import Train


class Distill(BaseModel):
    """Train a draft model for a target, and say what it will gain before it is deployed."""

    collect: CliSubCommand[Collect]
    train: CliSubCommand[Train]
    evaluate: CliSubCommand[Evaluate]
    export: CliSubCommand[Export]

    def cli_cmd(self) -> None:
        """Run the chosen command."""
        CliApp.run_subcommand(self)
