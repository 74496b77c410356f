"""The entry point of the ``onnxruntime`` backend: Triton's Python backend makes one object per model instance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnxruntime
import triton_python_backend_utils as pb_utils

from preprocess_ensemble.backends.onnxruntime.batch import Runner, runner_for, split
from preprocess_ensemble.backends.onnxruntime.session import model_file, open_planned_session, select_model
from preprocess_ensemble.backends.onnxruntime.session_plan import ModelConfig, ModelLoadError, SessionPlan, plan_session
from preprocess_ensemble.backends.onnxruntime.signature import check_signature, read_signature
from preprocess_ensemble.backends.rows import restrict_own_regions


class TritonPythonModel:
    """Serves an ONNX file. Triton's Python backend prescribes the names of the class and its methods."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the session of ``args["model_config"]``. Raises ``TritonModelException`` if that fails."""
        restrict_own_regions()
        config: ModelConfig = json.loads(args["model_config"])
        self._name = args["model_name"]
        self._batches = config["max_batch_size"] > 0
        try:
            plan = plan_session(
                config, kind=args["model_instance_kind"], device_id=int(args["model_instance_device_id"])
            )
            file = model_file(config, model_directory=Path(args["model_repository"]), version=args["model_version"])
            session = open_planned_session(file, plan)
            signature = read_signature(session)
            check_signature(config, signature)
            selection = select_model(session, file, plan)
            runs_itself = selection.model.session is session
            self._runner = runner_for(session, signature, plan) if runs_itself else Runner(selection.model.session, {})
        except ModelLoadError as error:
            raise pb_utils.TritonModelException(str(error)) from None
        self._inputs = [tensor.name for tensor in signature.inputs]
        self._outputs = [io["name"] for io in config["output"]]
        instance = args["model_instance_name"]
        log = pb_utils.Logger.log_warn if selection.disagrees else pb_utils.Logger.log_info
        log(f"{instance}: runs on {selection}")
        if runs_itself:
            _log_session(instance, session, plan)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer all requests with one run of the session; without a batch dimension, with one run for each request."""
        if self._batches:
            return self._answer(requests)
        return [response for request in requests for response in self._answer([request])]

    def _answer(self, requests: list[Any]) -> list[Any]:
        wanted = [request.requested_output_names() for request in requests]
        # Keep the order of the configuration, so that equal requests make equal runs.
        names = [name for name in self._outputs if any(name in each for each in wanted)]
        try:
            inputs = [
                {name: pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in self._inputs}
                for request in requests
            ]
            outputs = self._runner.run(inputs, names)
        except Exception as error:
            # Catch everything: ONNX Runtime's exceptions share no base class, and one bad batch must not end the
            # process that serves the next batch. Their text may hold paths, so it goes to the log, not to the client.
            pb_utils.Logger.log_error(f"{self._name}: {type(error).__name__}: {error}")
            text = f"{self._name} could not run this batch; the server's log has the reason."
            failure = pb_utils.TritonError(text, pb_utils.TritonError.INTERNAL)
            return [pb_utils.InferenceResponse(error=failure) for _ in requests]
        rows = [len(next(iter(arrays.values()))) for arrays in inputs]
        parts = split(outputs, rows) if len(requests) > 1 else [outputs]
        return [
            pb_utils.InferenceResponse(
                output_tensors=[pb_utils.Tensor(name, array) for name, array in part.items() if name in each]
            )
            for part, each in zip(parts, wanted, strict=True)
        ]


def _log_session(instance: str, session: onnxruntime.InferenceSession, plan: SessionPlan) -> None:
    running = session.get_providers()
    if missing := [provider.name for provider in plan.providers if provider.name not in running]:
        pb_utils.Logger.log_warn(
            f"{instance}: {', '.join(missing)} cannot be used on this machine; the CPU is used instead."
        )
    options = session.get_session_options()
    pb_utils.Logger.log_info(
        f"{instance}: ONNX Runtime {onnxruntime.__version__}, {', '.join(running)}, "
        f"{options.graph_optimization_level.name}, {options.execution_mode.name}, "
        f"intra-op threads {options.intra_op_num_threads or 'by default'}, "
        f"inter-op threads {options.inter_op_num_threads or 'by default'}, "
        f"arena {options.enable_cpu_mem_arena}, pattern {options.enable_mem_pattern}, "
        f"batches of {', '.join(map(str, plan.buckets)) or 'any size'}"
    )
    for provider, values in session.get_provider_options().items():
        if listed := ", ".join(f"{key}={value}" for key, value in sorted(values.items()) if value):
            pb_utils.Logger.log_info(f"{instance}: {provider}: {listed}")
