"""What docker/ says of the services is true: flags, ports, addresses and the names of metrics."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from draft_service.config import DraftConfig
from draft_service.metrics import Metrics
from draftwire.config import EngineConfig, ServiceConfig, load_config
from gateway.config import GatewayConfig
from gateway.metrics import GatewayMetrics
from verify_service.config import VerifyConfig
from verify_service.metrics import VerifyMetrics

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docker"
CONFIGS: dict[str, type[ServiceConfig]] = {"draft": DraftConfig, "verify": VerifyConfig, "gateway": GatewayConfig}
METRICS = re.compile(r"\b(?:speculative_decoding|draftwire)_[a-z_]+[a-z]\b")


def compose() -> dict[str, Any]:
    return yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]


def dockerfile(service: str) -> dict[str, str]:
    """The last line of each instruction of the Dockerfile that compose names for a service."""
    path = ROOT / compose()[service]["build"]["dockerfile"]
    lines = [line for line in path.read_text().splitlines() if line and line[0].isupper()]
    return dict(line.split(" ", 1) for line in lines)


def config(service: str) -> ServiceConfig:
    """What the container is started with: the image's entry point and compose's command."""
    python, dash_m, module, *flags = json.loads(dockerfile(service)["ENTRYPOINT"])
    assert (python, dash_m, module) == ("python", "-m", CONFIGS[service].__module__.partition(".")[0])
    return load_config(CONFIGS[service], [*flags, *compose()[service]["command"]])


@pytest.mark.parametrize("service", CONFIGS)
def test_the_services_take_their_flags(service):
    started = config(service)
    assert started.host == "0.0.0.0"
    image = dockerfile(service)
    assert image["EXPOSE"] == f"{started.port} {started.metrics_port}"
    assert f'"127.0.0.1:{started.port}"' in image["HEALTHCHECK"]


@pytest.mark.parametrize("service", ["draft", "verify"])
def test_the_gpu_file_sets_what_the_services_read(monkeypatch, service):
    services = yaml.safe_load((FOLDER / "compose.gpu.yaml").read_text())["services"]
    for name, value in services[service]["environment"].items():
        monkeypatch.setenv(name, value)
    started = config(service)
    assert isinstance(started, EngineConfig)
    assert started.device == "cuda"


def test_they_find_each_other():
    assert config("gateway").verify == (f"verify:{config('verify').port}",)
    assert config("verify").drafts == (f"draft:{config('draft').port}",)
    assert compose()["gateway"]["ports"] == [f"127.0.0.1:{config('gateway').port}:{config('gateway').port}"]


def test_a_container_may_take_as_long_to_stop_as_the_service():
    for service in CONFIGS:
        assert int(compose()[service]["stop_grace_period"].removesuffix("s")) > config(service).shutdown_grace


def test_prometheus_scrapes_every_service():
    jobs = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())["scrape_configs"]
    assert {job["job_name"]: job["static_configs"][0]["targets"] for job in jobs} == {
        service: [f"{service}:{config(service).metrics_port}"] for service in CONFIGS
    }


def exported() -> set[str]:
    """Every name that a query may use."""
    registry = CollectorRegistry()
    for metrics in (VerifyMetrics, GatewayMetrics, Metrics):
        metrics(registry)
    names: set[str] = set()
    for family in registry.collect():
        suffixes = {"counter": ("_total",), "histogram": ("", "_bucket", "_count", "_sum")}.get(family.type, ("",))
        names |= {family.name + suffix for suffix in suffixes}
    return names


@pytest.mark.parametrize(
    "file", ["docker/alerts.yaml", "docker/grafana/dashboards/draftwire.json", "docs/operations.md"]
)
def test_every_metric_that_is_spoken_of_exists(file):
    spoken_of = set(METRICS.findall((ROOT / file).read_text()))
    assert spoken_of
    assert spoken_of <= exported()


def test_every_panel_asks_the_data_source_that_is_provided():
    source = yaml.safe_load((FOLDER / "grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"][0]
    panels = json.loads((FOLDER / "grafana/dashboards/draftwire.json").read_text())["panels"]
    assert {panel["datasource"]["uid"] for panel in panels} == {source["uid"]}
    assert len({panel["id"] for panel in panels}) == len(panels) > 8
