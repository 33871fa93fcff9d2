# A draft worker. Build from the repository's root:
#   docker build -f docker/draft_service.Dockerfile -t draftwire/draft_service .
# torch comes with CUDA; on a host with the NVIDIA container toolkit add `--gpus all` and `--device cuda`.
ARG BASE=python:3.11-slim
FROM ${BASE}

WORKDIR /opt/draftwire
COPY . .
# Editable, because the embedded draft is part of the source tree.
RUN --mount=type=cache,target=/root/.cache/pip \
    python -m pip install --constraint constraints.txt --editable '.[engine]'

RUN useradd --uid 1000 draftwire && install -d -o draftwire /models
USER draftwire
ENV DRAFTWIRE_CACHE=/models HF_HOME=/models/hub
EXPOSE 50053 9053
HEALTHCHECK --start-period=10m --interval=5s --timeout=5s CMD ["python", "-m", "draftwire.rpc.probe", "127.0.0.1:50053"]
ENTRYPOINT ["python", "-m", "draft_service", "--host", "0.0.0.0"]
