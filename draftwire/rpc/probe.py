"""`python -m draftwire.rpc.probe HOST:PORT`: exit code 0 if that service is SERVING, for containers' health checks."""

import sys
from collections.abc import Sequence

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

#: How long the service may take to answer, seconds.
TIMEOUT = 3.0


def probe(address: str) -> str:
    """What the service at "host:port" says of itself: SERVING, NOT_SERVING, .., or why it could not be asked."""
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            response = HealthStub(channel).Check(HealthCheckRequest(), timeout=TIMEOUT)
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
    return str(HealthCheckResponse.ServingStatus.Name(response.status))


def main(argv: Sequence[str] | None = None) -> int:
    """The process's exit code; what the service said goes to stdout."""
    arguments = sys.argv[1:] if argv is None else argv
    if len(arguments) != 1:
        print("usage: python -m draftwire.rpc.probe HOST:PORT", file=sys.stderr)
        return 2
    answer = probe(arguments[0])
    print(answer)
    return int(answer != "SERVING")


if __name__ == "__main__":
    sys.exit(main())
