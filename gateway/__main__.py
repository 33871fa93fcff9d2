"""`python -m gateway --model MODEL --verify HOST:PORT,...`"""

import sys

from draftwire.config import load_config
from draftwire.service import run
from gateway.config import GatewayConfig
from gateway.server import serve
from gateway.tokenizer import without_torch


def main() -> int:
    """The process."""
    config = load_config(GatewayConfig)
    without_torch()
    return run("gateway", lambda stop: serve(config, stop), log_level=config.log_level)


if __name__ == "__main__":
    sys.exit(main())
