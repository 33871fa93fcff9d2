"""draftwire's errors as gRPC statuses and back; the only place that knows status codes.

A status carries an ErrorInfo (domain "draftwire", reason = the error's class, the bad field in its metadata) and, where
retrying helps, a RetryInfo: the other end gets the same error back, and a client in another language can read both.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from draftwire.errors import (
    DeadlineExceeded,
    DraftwireError,
    EngineError,
    Incompatible,
    InvalidArgument,
    ModelError,
    NotFound,
    ProtocolViolation,
    ResourceExhausted,
    Unavailable,
)
from draftwire.rpc.convert import clip

logger = logging.getLogger(__name__)

DOMAIN = "draftwire"

#: A status travels in HTTP/2 headers, which peers commonly limit to 8 KiB. Unit: bytes.
MAX_STATUS_TEXT_BYTES = 1024

#: When to try again after UNAVAILABLE: a load balancer has another instance at once, a restart takes longer. Seconds.
UNAVAILABLE_RETRY_AFTER = 1.0

_DETAILS_KEY = "grpc-status-details-bin"

# reason in ErrorInfo -> (class, status code)
_ERRORS: dict[str, tuple[type[DraftwireError], grpc.StatusCode]] = {
    "INVALID_ARGUMENT": (InvalidArgument, grpc.StatusCode.INVALID_ARGUMENT),
    "NOT_FOUND": (NotFound, grpc.StatusCode.NOT_FOUND),
    "RESOURCE_EXHAUSTED": (ResourceExhausted, grpc.StatusCode.RESOURCE_EXHAUSTED),
    "UNAVAILABLE": (Unavailable, grpc.StatusCode.UNAVAILABLE),
    "DEADLINE_EXCEEDED": (DeadlineExceeded, grpc.StatusCode.DEADLINE_EXCEEDED),
    "INCOMPATIBLE": (Incompatible, grpc.StatusCode.FAILED_PRECONDITION),
    "PROTOCOL_VIOLATION": (ProtocolViolation, grpc.StatusCode.INVALID_ARGUMENT),
    "MODEL_ERROR": (ModelError, grpc.StatusCode.FAILED_PRECONDITION),
    "ENGINE_ERROR": (EngineError, grpc.StatusCode.INTERNAL),
}
_REASONS: dict[type, str] = {error_class: reason for reason, (error_class, _) in _ERRORS.items()}

# What a status without our ErrorInfo means: gRPC itself made it, or a proxy. CANCELLED is here the other end's doing: a
# call that we cancelled ourselves raises asyncio.CancelledError instead.
_CLASS_OF_CODE: dict[grpc.StatusCode, type[DraftwireError]] = {
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.CANCELLED: Unavailable,
    grpc.StatusCode.ABORTED: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhausted,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.INVALID_ARGUMENT: ProtocolViolation,
    grpc.StatusCode.UNIMPLEMENTED: Incompatible,
    grpc.StatusCode.FAILED_PRECONDITION: Incompatible,
}


def status_of(error: Exception) -> status_pb2.Status:
    """The google.rpc.Status of an error. What is not a DraftwireError becomes INTERNAL and its text stays here."""
    if isinstance(error, DecodeError):
        error = InvalidArgument("message", "is not a valid protobuf message of this call")
    elif isinstance(error, grpc.aio.AioRpcError):
        error = error_of(error)
    reason = next((_REASONS[cls] for cls in type(error).__mro__ if cls in _REASONS), None)
    if reason is None:
        return status_pb2.Status(code=grpc.StatusCode.INTERNAL.value[0], message="internal error")
    text = clip(str(error), MAX_STATUS_TEXT_BYTES)
    status = status_pb2.Status(code=_ERRORS[reason][1].value[0], message=text)
    info = error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN)
    if isinstance(error, InvalidArgument):
        info.metadata["field"] = clip(error.field, MAX_STATUS_TEXT_BYTES)
        info.metadata["problem"] = clip(error.problem, MAX_STATUS_TEXT_BYTES)
    status.details.add().Pack(info)
    retry_after = _retry_after(error)
    if retry_after is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(round(retry_after * 1000))
        status.details.add().Pack(retry)
    return status


def _retry_after(error: Exception) -> float | None:
    if isinstance(error, ResourceExhausted):
        return error.retry_after
    return UNAVAILABLE_RETRY_AFTER if isinstance(error, Unavailable) else None


def error_of(rpc_error: grpc.aio.AioRpcError) -> DraftwireError:
    """The error that the other end had; a status that is not ours becomes the nearest of our errors."""
    text = rpc_error.details() or rpc_error.code().name
    info, retry_after = _details_of(rpc_error)
    if info is None or info.reason not in _ERRORS:
        error_class = _CLASS_OF_CODE.get(rpc_error.code(), EngineError)
        return error_class(text)
    error_class = _ERRORS[info.reason][0]
    if error_class is InvalidArgument:
        return InvalidArgument(info.metadata["field"], info.metadata["problem"])
    if error_class is ResourceExhausted and retry_after is not None:
        return ResourceExhausted(text, retry_after)
    return error_class(text)


def _details_of(rpc_error: grpc.aio.AioRpcError) -> tuple[error_details_pb2.ErrorInfo | None, float | None]:
    """Our ErrorInfo and the retry delay in seconds, each None where the status has none that can be read."""
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    found_info, retry_after = None, None
    details = dict(rpc_error.trailing_metadata()).get(_DETAILS_KEY)
    try:
        if isinstance(details, bytes):
            for detail in status_pb2.Status.FromString(details).details:
                if detail.Unpack(info) and info.domain == DOMAIN:
                    found_info = info
                elif detail.Unpack(retry):
                    retry_after = retry.retry_delay.ToMilliseconds() / 1000
    except DecodeError:
        logger.warning("a status came with details that cannot be read")
    return found_info, retry_after


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: Exception) -> NoReturn:
    """End the call with the error's status."""
    status = rpc_status.to_status(status_of(error))
    await context.abort(status.code, status.details, status.trailing_metadata)


@asynccontextmanager
async def errors_as_status(context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[None]:
    """Around the body of a servicer method, unary or streaming: what it raises becomes the call's status.

    Cancellation passes through. An error that nobody meant to raise is logged here and its text kept from the caller.
    """
    try:
        yield
    except grpc.aio.AbortError:
        raise
    except (DraftwireError, DecodeError, grpc.aio.AioRpcError) as error:
        await abort(context, error)
    except Exception as error:
        logger.exception("a call failed unexpectedly")
        await abort(context, error)
