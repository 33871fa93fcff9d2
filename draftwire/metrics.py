"""Prometheus at /metrics. Each service defines its metrics in its own module, in a registry that it is given."""

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server

from draftwire.errors import InvalidArgument


def new_registry() -> CollectorRegistry:
    """A registry of its own for one service, with the process's memory, CPU time and open files in it."""
    registry = CollectorRegistry(auto_describe=True)
    ProcessCollector(registry=registry)
    return registry


def start_metrics_server(host: str, port: int, registry: CollectorRegistry) -> int:
    """Serve the registry at http://host:port/metrics until the process ends. Returns the port (0 = any free one).

    Raises InvalidArgument("--metrics-port") where the address cannot be bound.
    """
    try:
        server, _ = start_http_server(port, host, registry)
    except OSError as error:
        raise InvalidArgument("--metrics-port", f"cannot listen on {host}:{port}: {error.strerror}") from None
    return server.server_port
