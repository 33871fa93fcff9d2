# A gateway. Build from the repository's root:
#   docker build -f docker/gateway.Dockerfile -t draftwire/gateway .
# It holds no torch: a tokenizer is all that it loads.
ARG BASE=python:3.11-slim
FROM ${BASE}

WORKDIR /opt/draftwire
COPY . .
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m pip install --constraint constraints.txt --editable .

RUN useradd --uid 1000 draftwire && install -d -o draftwire /models
USER draftwire
ENV DRAFTWIRE_CACHE=/models HF_HOME=/models/hub
EXPOSE 50051 9051
HEALTHCHECK --start-period=10m --interval=5s --timeout=5s CMD ["python", "-m", "draftwire.rpc.probe", "127.0.0.1:50051"]
ENTRYPOINT ["python", "-m", "gateway", "--host", "0.0.0.0"]
