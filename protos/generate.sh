#!/usr/bin/env bash
# Writes the stubs of protos/ into draftwire/v1 (or the folder named as the first argument).
# The generator is the oldest grpcio-tools that we support (pyproject, extra "dev"), so its output runs on every newer one.
set -euo pipefail
cd "$(dirname "$0")"
out=${1:-..}
"${PYTHON:-python}" -m grpc_tools.protoc -I . --python_out="$out" --pyi_out="$out" --grpc_python_out="$out" draftwire/v1/*.proto
