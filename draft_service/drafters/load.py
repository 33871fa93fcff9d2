"""From the flags to a drafter; torch, which takes seconds to import, is imported only where a model is wanted."""

import logging

from draft_service.config import DraftConfig
from draft_service.drafters.base import Drafter
from draft_service.drafters.hybrid import HybridDrafter
from draft_service.drafters.ngram import NgramDrafter
from draftwire.types import ModelInfo

logger = logging.getLogger(__name__)

#: Longest sequence of an n-gram drafter where --max-model-len does not say; its index costs some 500 bytes a token.
NGRAM_MODEL_LEN = 32768


def make_drafter(config: DraftConfig) -> Drafter:
    """The drafter that the flags ask for, to be used on the calling thread. Raises ModelError, InvalidArgument."""
    if config.drafter == "ngram":
        return NgramDrafter(_any_vocabulary(config), max_sessions=config.max_num_seqs)
    drafter = _model_drafter(config)
    return HybridDrafter(drafter) if config.drafter == "hybrid" else drafter


def _any_vocabulary(config: DraftConfig) -> ModelInfo:
    """What an n-gram drafter says of itself: it repeats the ids of every vocabulary."""
    return ModelInfo(
        name="ngram",
        vocab_fingerprint="",
        vocab_size=(1 << 32) - 1,
        max_model_len=config.max_model_len or NGRAM_MODEL_LEN,
        engine="ngram",
        dtype="none",
    )


def _model_drafter(config: DraftConfig) -> Drafter:
    from draft_service.drafters.model import ModelDrafter, draw_from_model  # noqa: PLC0415
    from draft_service.drafters.replay import Replay, read_recordings  # noqa: PLC0415
    from draftwire.engine.load import load_engine  # noqa: PLC0415

    replaying = config.drafter == "replay"
    draw = Replay(read_recordings(config.replay_file or ""), config.acceptance) if replaying else draw_from_model
    engine = load_engine(
        config.draft,
        dtype=config.dtype,
        device=config.device,
        num_slots=config.max_num_seqs,
        max_model_len=config.max_model_len,
        max_batched_tokens=config.max_num_batched_tokens,
        threads=config.engine_threads,
        progress=logger.info,
    )
    return ModelDrafter(engine, draw=draw, source="replay" if replaying else "model")
