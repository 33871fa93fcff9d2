from draftwire.v1 import sampling_pb2 as _sampling_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EndReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    END_REASON_UNSPECIFIED: _ClassVar[EndReason]
    END_REASON_INVALID: _ClassVar[EndReason]
    END_REASON_OVERLOADED: _ClassVar[EndReason]
    END_REASON_MAX_MODEL_LEN: _ClassVar[EndReason]
    END_REASON_INTERNAL: _ClassVar[EndReason]
END_REASON_UNSPECIFIED: EndReason
END_REASON_INVALID: EndReason
END_REASON_OVERLOADED: EndReason
END_REASON_MAX_MODEL_LEN: EndReason
END_REASON_INTERNAL: EndReason

class DraftServiceGetModelRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DraftServiceGetModelResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: _sampling_pb2.ModelInfo
    def __init__(self, model: _Optional[_Union[_sampling_pb2.ModelInfo, _Mapping]] = ...) -> None: ...

class SpeculateRequest(_message.Message):
    __slots__ = ("hello", "step")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    step: VerifierStep
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., step: _Optional[_Union[VerifierStep, _Mapping]] = ...) -> None: ...

class SpeculateResponse(_message.Message):
    __slots__ = ("hello", "step", "load", "draining")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    step: DrafterStep
    load: Load
    draining: Draining
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., step: _Optional[_Union[DrafterStep, _Mapping]] = ..., load: _Optional[_Union[Load, _Mapping]] = ..., draining: _Optional[_Union[Draining, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol_version", "instance_id", "model", "max_sessions")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MAX_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    instance_id: str
    model: _sampling_pb2.ModelInfo
    max_sessions: int
    def __init__(self, protocol_version: _Optional[int] = ..., instance_id: _Optional[str] = ..., model: _Optional[_Union[_sampling_pb2.ModelInfo, _Mapping]] = ..., max_sessions: _Optional[int] = ...) -> None: ...

class VerifierStep(_message.Message):
    __slots__ = ("opens", "commits", "closes")
    OPENS_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    CLOSES_FIELD_NUMBER: _ClassVar[int]
    opens: _containers.RepeatedCompositeFieldContainer[Open]
    commits: _containers.RepeatedCompositeFieldContainer[Commit]
    closes: _containers.RepeatedCompositeFieldContainer[Close]
    def __init__(self, opens: _Optional[_Iterable[_Union[Open, _Mapping]]] = ..., commits: _Optional[_Iterable[_Union[Commit, _Mapping]]] = ..., closes: _Optional[_Iterable[_Union[Close, _Mapping]]] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("session_id", "token_ids", "sampling", "mode", "seed", "choice", "window")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: _sampling_pb2.SamplingParams
    mode: _sampling_pb2.VerificationMode
    seed: int
    choice: int
    window: int
    def __init__(self, session_id: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_sampling_pb2.SamplingParams, _Mapping]] = ..., mode: _Optional[_Union[_sampling_pb2.VerificationMode, str]] = ..., seed: _Optional[int] = ..., choice: _Optional[int] = ..., window: _Optional[int] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("session_id", "number", "position", "token_ids", "window")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    number: int
    position: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    window: int
    def __init__(self, session_id: _Optional[int] = ..., number: _Optional[int] = ..., position: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., window: _Optional[int] = ...) -> None: ...

class Close(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    def __init__(self, session_id: _Optional[int] = ...) -> None: ...

class DrafterStep(_message.Message):
    __slots__ = ("opened", "proposals", "ended", "idle")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    PROPOSALS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    IDLE_FIELD_NUMBER: _ClassVar[int]
    opened: _containers.RepeatedCompositeFieldContainer[Opened]
    proposals: _containers.RepeatedCompositeFieldContainer[Proposal]
    ended: _containers.RepeatedCompositeFieldContainer[Ended]
    idle: _containers.RepeatedCompositeFieldContainer[Idle]
    def __init__(self, opened: _Optional[_Iterable[_Union[Opened, _Mapping]]] = ..., proposals: _Optional[_Iterable[_Union[Proposal, _Mapping]]] = ..., ended: _Optional[_Iterable[_Union[Ended, _Mapping]]] = ..., idle: _Optional[_Iterable[_Union[Idle, _Mapping]]] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    def __init__(self, session_id: _Optional[int] = ...) -> None: ...

class Proposal(_message.Message):
    __slots__ = ("session_id", "path", "position", "token_ids", "support_sizes", "support_ids", "support_weights")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SUPPORT_SIZES_FIELD_NUMBER: _ClassVar[int]
    SUPPORT_IDS_FIELD_NUMBER: _ClassVar[int]
    SUPPORT_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    path: int
    position: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    support_sizes: _containers.RepeatedScalarFieldContainer[int]
    support_ids: _containers.RepeatedScalarFieldContainer[int]
    support_weights: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, session_id: _Optional[int] = ..., path: _Optional[int] = ..., position: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., support_sizes: _Optional[_Iterable[int]] = ..., support_ids: _Optional[_Iterable[int]] = ..., support_weights: _Optional[_Iterable[int]] = ...) -> None: ...

class Idle(_message.Message):
    __slots__ = ("session_id", "number")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    number: int
    def __init__(self, session_id: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class Ended(_message.Message):
    __slots__ = ("session_id", "reason", "detail")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    reason: EndReason
    detail: str
    def __init__(self, session_id: _Optional[int] = ..., reason: _Optional[_Union[EndReason, str]] = ..., detail: _Optional[str] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("sessions", "max_sessions", "step_seconds")
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    sessions: int
    max_sessions: int
    step_seconds: float
    def __init__(self, sessions: _Optional[int] = ..., max_sessions: _Optional[int] = ..., step_seconds: _Optional[float] = ...) -> None: ...

class Draining(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
