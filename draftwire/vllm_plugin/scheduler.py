"""vLLM's scheduler with remote drafts. All that knows vLLM's insides is here and in `workarounds`.

vLLM verifies whatever stands in `request.spec_token_ids` when a step is scheduled. Its own proposers fill that from the
workers after each step; here the workers propose nothing and the scheduler fills it, at the last moment, with what the
draft workers have streamed by then. What a step committed is read off the requests after vLLM has updated them.

Not on this path, because vLLM has neither for custom proposers: asynchronous scheduling and the V2 model runner.
"""

import logging
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from vllm.config import VllmConfig
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from draftwire.errors import InvalidArgument
from draftwire.metrics import new_registry, start_metrics_server
from draftwire.service import SWITCH_INTERVAL
from draftwire.types import GenerateRequest
from draftwire.vllm_plugin.config import PluginConfig, read_config
from draftwire.vllm_plugin.engine_args import PROPOSER
from draftwire.vllm_plugin.plain import end_with_parent
from draftwire.vllm_plugin.remote_drafts import Outcome, RemoteDrafts
from draftwire.vllm_plugin.speculation import GREEDY, LIMIT_ARGUMENT, REPORT_KEY, Speculation
from draftwire.vllm_plugin.target import target_info

logger = logging.getLogger(__name__)


class RemoteDraftScheduler(Scheduler):  # type: ignore[misc]  # vLLM is not installed where types are checked
    """`--scheduler-cls draftwire.vllm_plugin.RemoteDraftScheduler`; lives in the process of vLLM's engine core.

    Raises InvalidArgument if vLLM or the plug-in is configured in a way that cannot work.
    """

    def __init__(self, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        _log_as_vllm_does()
        end_with_parent()
        check_config(vllm_config)
        config = read_config(vllm_config.additional_config)
        super().__init__(vllm_config, *args, **kwargs)
        self._speculations: dict[str, Speculation] = {}  # of the requests that run or ran, by request id
        self._scheduled_at = 0.0
        registry = new_registry()
        self._remote = RemoteDrafts(
            config,
            target_info(vllm_config),
            num_speculative_tokens=self.num_spec_tokens,
            max_sessions=self.max_num_running_reqs,
            registry=registry,
        )
        _serve_metrics(config, registry, vllm_config.parallel_config.data_parallel_index)
        # The draft clients' thread shares the interpreter with this one; Python's default lets it wait 5 ms.
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL))
        self._remote.start()
        logger.info("drafts come from %s", ", ".join(config.drafts))

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """vLLM's schedule with the proposals that have arrived; put off a little if all requests wait for some."""
        running = self._running_speculations()
        self._remote.supply(running)
        if not self._has_other_work(len(running)):
            self._remote.wait(running)
        for request in self.running:
            request.spec_token_ids = self._proposals(request)
        output = super().schedule(throttle_prefills)
        self._admit(self.running)
        self._remote.supply(self._running_speculations())  # the draft prefills while the target does
        self._remote.counted(*self.get_request_counts())
        self._scheduled_at = time.monotonic()
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """vLLM's update; then the drafts learn what became final."""
        if scheduler_output.total_num_scheduled_tokens:
            self._remote.measured(scheduler_output.total_num_scheduled_tokens, time.monotonic() - self._scheduled_at)
        before = {
            request_id: (speculation, len(speculation.tokens), _sampled(model_runner_output, request_id))
            for request_id in scheduler_output.num_scheduled_tokens
            if (speculation := self._speculations.get(request_id))
        }
        outputs: dict[int, EngineCoreOutputs] = super().update_from_output(scheduler_output, model_runner_output)
        outcomes: list[Outcome] = []
        for request_id, (speculation, length, sampled) in before.items():
            proposed = scheduler_output.scheduled_spec_decode_tokens.get(request_id, ())
            outcomes.append(
                Outcome(
                    speculation=speculation,
                    token_ids=tuple(speculation.tokens[length:]),
                    offered=sum(token >= 0 for token in proposed),  # vLLM pads some steps with -1
                    accepted=max(0, sampled - 1),
                    over=speculation.vllm_request.is_finished(),
                )
            )
            if outcomes[-1].over:
                self._speculations.pop(request_id, None)
        self._remote.commit(outcomes)
        self._remote.counted(*self.get_request_counts())
        _report([outcome.speculation for outcome in outcomes if outcome.speculation.reports], outputs)
        return outputs

    def finish_requests(self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus) -> list[Request]:
        """vLLM's; aborted requests lose their drafts."""
        finished: list[Request] = super().finish_requests(request_ids, finished_status)
        self._remote.drop(
            [gone for request in finished if (gone := self._speculations.pop(request.request_id, None)) is not None]
        )
        self._remote.counted(*self.get_request_counts())
        return finished

    def shutdown(self) -> None:
        """vLLM's, after the streams to the draft workers have ended."""
        self._remote.stop()
        super().shutdown()

    def _running_speculations(self) -> list[Speculation]:
        return [found for request in self.running if (found := self._speculations.get(request.request_id))]

    def _has_other_work(self, speculating: int) -> bool:
        """Whether a step would serve somebody besides the `speculating` requests that run."""
        running, waiting = self.get_request_counts()
        may_admit = waiting > 0 and running < self.max_num_active_reqs
        return bool(may_admit or speculating < running or self.pause_state != PauseState.UNPAUSED)

    def _proposals(self, request: Request) -> list[int]:
        """What the next step may test for a request; nothing where it is not just one token behind.

        That is so in a prefill and after a preemption.
        """
        speculation = self._speculations.get(request.request_id)
        if speculation is None or speculation.missing != 1:
            return []
        proposals = self._remote.proposals(speculation)
        valid: list[int] = self.structured_output_manager.validate_tokens(request, proposals)
        return valid

    def _admit(self, requests: Sequence[Request]) -> None:
        for request in requests:
            if request.request_id not in self._speculations and drafts_help(request):
                speculation = Speculation(
                    request, _asked(request, self.num_spec_tokens), max_model_len=self.max_model_len
                )
                self._speculations[request.request_id] = speculation
                self._remote.admit(speculation)


def check_config(vllm_config: VllmConfig) -> None:
    """Raise InvalidArgument, which says what to set, unless vLLM is set up for the plug-in."""
    speculative = vllm_config.speculative_config
    if speculative is None or speculative.method != "custom_class" or speculative.model != PROPOSER:
        raise InvalidArgument(
            "speculative_config",
            f'must be {{"method": "custom_class", "model": "{PROPOSER}", "num_speculative_tokens": K}}',
        )
    if vllm_config.scheduler_config.async_scheduling:
        raise InvalidArgument("async_scheduling", "must be off: vLLM has none for custom proposers")
    if vllm_config.parallel_config.pipeline_parallel_size > 1:
        raise InvalidArgument(
            "pipeline_parallel_size", "must be 1 with drafts: vLLM cannot verify with several steps in flight"
        )
    if vllm_config.use_v2_model_runner:
        raise InvalidArgument("use_v2_model_runner", "must be off: vLLM's V2 model runner has no custom proposers")


def drafts_help(request: Request) -> bool:
    """Whether a draft worker can guess a request's tokens: it must see all of the prompt, as token ids."""
    return not (
        request.pooling_params is not None
        or request.prompt_token_ids is None
        or request.prompt_embeds is not None
        or request.mm_features
        or request.resumable  # its tokens may be taken back
    )


def _asked(request: Request, num_speculative_tokens: int) -> GenerateRequest:
    """A request in our words."""
    limit = (request.sampling_params.extra_args or {}).get(LIMIT_ARGUMENT)
    if limit is not None and not (isinstance(limit, int) and 0 <= limit <= num_speculative_tokens):
        logger.warning("%s: must be 0 to %d, got %r: ignored", LIMIT_ARGUMENT, num_speculative_tokens, limit)
        limit = None
    return GenerateRequest(
        request.request_id, tuple(request.prompt_token_ids), sampling=GREEDY, num_speculative_tokens=limit
    )


def _sampled(output: ModelRunnerOutput, request_id: str) -> int:
    """How many tokens a step sampled for a request, before vLLM cuts what is behind the end of the answer."""
    index = output.req_id_to_index.get(request_id)
    return len(output.sampled_token_ids[index]) if index is not None and output.sampled_token_ids else 0


def _report(speculations: Sequence[Speculation], outputs: dict[int, EngineCoreOutputs]) -> None:
    """Put what speculation did for these into their outputs."""
    reports = {one.vllm_request.request_id: {REPORT_KEY: asdict(one.stats)} for one in speculations}
    for output in (output for made in outputs.values() for output in made.outputs):
        if output.request_id in reports:
            output.kv_transfer_params = reports[output.request_id]


def _log_as_vllm_does() -> None:
    vllm_logger = logging.getLogger("vllm")
    for package in ("draftwire", "verify_service"):
        ours = logging.getLogger(package)
        ours.handlers, ours.level, ours.propagate = vllm_logger.handlers, vllm_logger.level, False


def _serve_metrics(config: PluginConfig, registry: Any, rank: int) -> None:
    if config.metrics_port is not None:
        port = config.metrics_port and config.metrics_port + rank  # each data-parallel rank has an engine core
        port = start_metrics_server(config.metrics_host, port, registry)
        logger.info("the plug-in's metrics are at http://%s:%d/metrics", config.metrics_host, port)
