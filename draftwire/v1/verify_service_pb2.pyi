from draftwire.v1 import sampling_pb2 as _sampling_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason

class VerifyServiceGetModelRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class VerifyServiceGetModelResponse(_message.Message):
    __slots__ = ("model", "instance_id", "batch_invariant", "max_sessions")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_INVARIANT_FIELD_NUMBER: _ClassVar[int]
    MAX_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    model: _sampling_pb2.ModelInfo
    instance_id: str
    batch_invariant: bool
    max_sessions: int
    def __init__(self, model: _Optional[_Union[_sampling_pb2.ModelInfo, _Mapping]] = ..., instance_id: _Optional[str] = ..., batch_invariant: bool = ..., max_sessions: _Optional[int] = ...) -> None: ...

class VerifyServiceGenerateRequest(_message.Message):
    __slots__ = ("request_id", "prompt_token_ids", "committed_token_ids", "max_tokens", "sampling", "seed", "choice", "stop_token_ids", "ignore_eos", "speculation")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    committed_token_ids: _containers.RepeatedScalarFieldContainer[int]
    max_tokens: int
    sampling: _sampling_pb2.SamplingParams
    seed: int
    choice: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    speculation: SpeculationParams
    def __init__(self, request_id: _Optional[str] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., committed_token_ids: _Optional[_Iterable[int]] = ..., max_tokens: _Optional[int] = ..., sampling: _Optional[_Union[_sampling_pb2.SamplingParams, _Mapping]] = ..., seed: _Optional[int] = ..., choice: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: bool = ..., speculation: _Optional[_Union[SpeculationParams, _Mapping]] = ...) -> None: ...

class SpeculationParams(_message.Message):
    __slots__ = ("disabled", "num_speculative_tokens")
    DISABLED_FIELD_NUMBER: _ClassVar[int]
    NUM_SPECULATIVE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    disabled: bool
    num_speculative_tokens: int
    def __init__(self, disabled: bool = ..., num_speculative_tokens: _Optional[int] = ...) -> None: ...

class VerifyServiceGenerateResponse(_message.Message):
    __slots__ = ("started", "committed", "finished")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    started: Started
    committed: Committed
    finished: Finished
    def __init__(self, started: _Optional[_Union[Started, _Mapping]] = ..., committed: _Optional[_Union[Committed, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ...) -> None: ...

class Started(_message.Message):
    __slots__ = ("instance_id", "request_id")
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    instance_id: str
    request_id: str
    def __init__(self, instance_id: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class Committed(_message.Message):
    __slots__ = ("position", "token_ids", "speculation", "cached_tokens")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    position: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    speculation: SpeculationStats
    cached_tokens: int
    def __init__(self, position: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., speculation: _Optional[_Union[SpeculationStats, _Mapping]] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("reason", "usage", "speculation")
    REASON_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    reason: FinishReason
    usage: Usage
    speculation: SpeculationStats
    def __init__(self, reason: _Optional[_Union[FinishReason, str]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., speculation: _Optional[_Union[SpeculationStats, _Mapping]] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens", "cached_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class SpeculationStats(_message.Message):
    __slots__ = ("steps", "committed_tokens", "tested_tokens", "accepted_tokens", "late_bound_tokens", "untested_tokens", "stale_tokens", "reassignments")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TESTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LATE_BOUND_TOKENS_FIELD_NUMBER: _ClassVar[int]
    UNTESTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STALE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    steps: int
    committed_tokens: int
    tested_tokens: int
    accepted_tokens: int
    late_bound_tokens: int
    untested_tokens: int
    stale_tokens: int
    reassignments: int
    def __init__(self, steps: _Optional[int] = ..., committed_tokens: _Optional[int] = ..., tested_tokens: _Optional[int] = ..., accepted_tokens: _Optional[int] = ..., late_bound_tokens: _Optional[int] = ..., untested_tokens: _Optional[int] = ..., stale_tokens: _Optional[int] = ..., reassignments: _Optional[int] = ...) -> None: ...
