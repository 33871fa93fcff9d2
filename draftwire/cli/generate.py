"""`draftwire generate`: ask a running gateway."""

import asyncio
import json
import sys
from dataclasses import asdict

import grpc
from pydantic import BaseModel, Field
from pydantic_settings import CliPositionalArg

from draftwire.cli.client import Transcript, stream
from draftwire.cli.verbatim import Text, Verbatim
from draftwire.errors import InvalidArgument
from draftwire.rpc.client import connect
from draftwire.rpc.status import error_of
from draftwire.v1 import gateway_service_pb2 as pb
from draftwire.v1.sampling_pb2 import SamplingParams
from draftwire.v1.verify_service_pb2 import SpeculationParams


class Generate(BaseModel):
    """Stream an answer from a running gateway (draftwire up)."""

    prompt: CliPositionalArg[Text] = Field(description="the prompt")
    gateway: str = Field("127.0.0.1:50051", description="the gateway, host:port")
    chat: bool = Field(False, description="send it as a user's chat message, through the model's chat template")
    max_tokens: int | None = Field(None, ge=1, lt=2**32, description="most output tokens; default: as many as fit")
    temperature: float = Field(1.0, ge=0, le=100, description="0 = greedy")
    top_k: int = Field(0, ge=0, lt=2**32, description="keep the k likeliest tokens; 0 = all")
    top_p: float = Field(1.0, gt=0, le=1, description="keep the likeliest tokens up to this probability")
    min_p: float = Field(0.0, ge=0, le=1, description="keep tokens at least this times as likely as the likeliest")
    seed: int | None = Field(None, ge=0, lt=2**64, description="makes the output reproducible")
    stop: list[Verbatim] = Field([], description="text that ends the answer; repeatable")
    speculation: bool = Field(True, description="--no-speculation = plain decoding")
    json_output: bool = Field(False, alias="json", description="end with one JSON object on a line of its own")
    timeout: float | None = Field(None, gt=0, description="deadline, seconds")

    def cli_cmd(self) -> None:
        """Run the command; exit code 1 where the call failed."""
        sys.exit(asyncio.run(self._run()))

    def request(self) -> pb.GatewayServiceGenerateRequest:
        """The call's message."""
        request = pb.GatewayServiceGenerateRequest(
            max_tokens=self.max_tokens,
            sampling=SamplingParams(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p, min_p=self.min_p),
            seed=self.seed,
            stop=self.stop,
            speculation=SpeculationParams(disabled=not self.speculation),
        )
        if self.chat:
            request.chat.messages.add(role="user", content=self.prompt)
        else:
            request.text = self.prompt
        return request

    async def _run(self) -> int:
        transcript = Transcript()
        try:
            async with asyncio.timeout(self.timeout), connect(self.gateway) as channel:
                async for text in stream(channel, self.request(), transcript):
                    print(text, end="", flush=True)
        except InvalidArgument as error:
            print(f"draftwire generate: --gateway: {error.problem}", file=sys.stderr)
            return 1
        except grpc.aio.AioRpcError as error:
            print(f"\ndraftwire generate: {self.gateway}: {error_of(error)}", file=sys.stderr)
            return 1
        except TimeoutError:
            print(f"\ndraftwire generate: --timeout: not done within {self.timeout:g} s", file=sys.stderr)
            return 1
        print()
        if self.json_output:
            print(json.dumps(summary(transcript)))
        return 0


def summary(transcript: Transcript) -> dict[str, object]:
    """What --json prints."""
    stats = transcript.speculation
    return {
        "text": transcript.text,
        "token_ids": transcript.token_ids,
        "finish_reason": transcript.reason,
        "usage": asdict(transcript.usage),
        "speculation": {
            **asdict(stats),
            "acceptance": round(stats.acceptance, 4),
            "tokens_per_step": round(stats.tokens_per_step, 4),
        },
    }
