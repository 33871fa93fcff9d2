"""`draftwire distill export`: its options. No torch here."""

import sys
from pathlib import Path
from typing import Self

from pydantic import BaseModel, Field, model_validator

from draftwire.errors import DraftwireError


class Export(BaseModel):
    """Turn a training run into a model: a trimmed draft for draft_service, or a folder for transformers and vLLM."""

    run: Path = Field(description="folder of the run (its last checkpoint is taken), or one of its checkpoints")
    trimmed: Path | None = Field(
        None, description="folder for the draft that draft_service loads; of a student of the target's layers"
    )
    full: Path | None = Field(
        None, description="folder for a plain model with a full head: transformers, vLLM, draft_service"
    )

    @model_validator(mode="after")
    def _somewhere(self) -> Self:
        if self.trimmed is None and self.full is None:
            raise ValueError("--trimmed, --full: name at least one folder")
        if self.trimmed is not None and self.full is not None and self.trimmed.resolve() == self.full.resolve():
            raise ValueError("--trimmed, --full: name two folders")
        return self

    def cli_cmd(self) -> None:
        """Run the command; exit code 1 where something is wrong with what it was given."""
        try:
            from distill.export import export  # noqa: PLC0415  torch and transformers take seconds to import

            export(self)
        except DraftwireError as error:
            print(f"draftwire distill export: {error}", file=sys.stderr)
            sys.exit(1)
