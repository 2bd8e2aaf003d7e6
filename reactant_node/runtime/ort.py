"""ONNX Runtime: the one place that imports it.

One thread pool and one CPU arena serve all sessions of the process: with them twenty models cost a handful of threads
instead of sixty, and the scratch memory of the one that runs instead of everybody's. ONNX Runtime makes the pool
once per process, so the first `OrtRuntime` decides its size. Spinning of that pool cannot be turned off from Python;
it ends by itself some milliseconds after a run.

CUDA: without the libraries it needs, ONNX Runtime logs a line and computes on the CPU. So the provider is loaded and
asked for once when the runtime is made, and compared again for every session.

Both creating a session and running one release the interpreter lock.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import logging
import os
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reactant_node.config.schema import Backend
from reactant_node.dtypes import BY_NAME, BY_ONNX, TABLE
from reactant_node.errors import Internal, InvalidArgument, ModelLoadError, NodeError, RuntimeUnavailable
from reactant_node.models.onnx_file import unranked_names
from reactant_node.models.signature import ModelSignature, TensorSpec
from reactant_node.runtime.availability import CUDA_PROVIDER_FILE
from reactant_node.runtime.ort_messages import blames_input, tidy
from reactant_node.tensors import NamedTensor

# To import it is enough for ONNX Runtime to write an identifier of this machine to the home folder, and it holds code
# to send events; a node tells nobody anything. The library reads this when it is loaded: later is too late.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
import onnxruntime as ort

CPU_PROVIDER = "CPUExecutionProvider"
CUDA_PROVIDER = "CUDAExecutionProvider"

_ERROR, _FATAL = 3, 4
"""Severities of ONNX Runtime's own log. Sessions log from FATAL up: what else fails is raised here anyway, and a
client could fill the log with requests that fail."""

_TENSOR_TYPE = re.compile(r"tensor\((\w+)\)")

_IDENTITY_MODEL = bytes.fromhex(
    "08083a370a100a017812017922084964656e746974791201675a0f0a0178120a0a08080112040a020801620f0a0179120a0a080801"
    "12040a02080142040a00100d"
)
"""y = x, FP32 [1]: creating its session shows whether a provider really comes."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RuntimeDescription:
    """What `version` says of ONNX Runtime."""

    version: str
    build: str
    providers: tuple[str, ...]


def describe_runtime() -> RuntimeDescription:
    """The installed ONNX Runtime. A provider that is listed is built in; its libraries may still be missing."""
    return RuntimeDescription(ort.__version__, ort.get_build_info(), tuple(ort.get_available_providers()))


def missing_cuda_library() -> str | None:
    """What keeps the CUDA provider from being loaded into this process, or None: then it is loaded now.

    CUDA libraries that came as wheels are loaded first, since the dynamic linker does not look where they are.
    """
    if CUDA_PROVIDER not in ort.get_available_providers():
        return "this ONNX Runtime was built without it; put onnxruntime-gpu in place of onnxruntime"
    with contextlib.redirect_stdout(io.StringIO()):  # it prints what is said better below
        ort.preload_dlls()
    folder = Path(ort.__file__).parent / "capi"
    for library in ("libonnxruntime_providers_shared.so", CUDA_PROVIDER_FILE):
        try:
            ctypes.CDLL(str(folder / library), mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            return str(error)
    return None


class OrtSession:
    """A model that ONNX Runtime runs. Used by one thread at a time."""

    def __init__(self, session: ort.InferenceSession, signature: ModelSignature) -> None:
        self._session: ort.InferenceSession | None = session
        self._signature = signature
        self._provider = str(session.get_providers()[0])
        self._options = ort.RunOptions()
        self._options.log_severity_level = _FATAL
        self._datatypes = {spec.name: spec.datatype for spec in signature.outputs}
        self._needs_values = any(spec.datatype == "BF16" for spec in signature.outputs)

    def __repr__(self) -> str:
        state = "closed" if self._session is None else self._provider
        return f"<OrtSession {state}, {len(self._signature.inputs)} in, {len(self._signature.outputs)} out>"

    @property
    def signature(self) -> ModelSignature:
        """As the graph declares it."""
        return self._signature

    @property
    def provider(self) -> str:
        """The provider that ONNX Runtime really gave."""
        return self._provider

    def run(self, inputs: Sequence[NamedTensor], outputs: Sequence[str]) -> list[NamedTensor]:
        """Run once; see `interface.Session.run`."""
        if self._session is None:
            raise Internal("the session is closed")
        run = self._run_values if self._needs_values else self._run_arrays
        try:
            arrays = run(self._session, inputs, list(outputs))
        except Exception as error:
            raise _run_error(error) from error
        return [NamedTensor(name, self._datatypes[name], data) for name, data in zip(outputs, arrays, strict=True)]

    def close(self) -> None:
        """Let go of the session: ONNX Runtime frees what belongs to it."""
        self._session = None

    def _run_arrays(
        self, session: ort.InferenceSession, inputs: Sequence[NamedTensor], outputs: list[str]
    ) -> list[NDArray[Any]]:
        feed = {tensor.name: _value(tensor) if tensor.datatype == "BF16" else tensor.data for tensor in inputs}
        return [np.asarray(output) for output in session.run(outputs, feed, self._options)]

    def _run_values(
        self, session: ort.InferenceSession, inputs: Sequence[NamedTensor], outputs: list[str]
    ) -> list[NDArray[Any]]:
        """The way to BF16 outputs, which numpy lacks: values carry ONNX's own type."""
        feed = {tensor.name: _value(tensor) for tensor in inputs}
        return [_from_value(value) for value in session.run_with_ort_values(outputs, feed, self._options)]


class OrtRuntime:
    """Makes sessions on one device of this process.

    Args:
        backend: the device family.
        threads: size of the process's compute pool.
        device_ordinal: the device inside CUDA_VISIBLE_DEVICES.
        allow_cpu_fallback: without a usable CUDA provider, warn and use the CPU.

    Raises:
        RuntimeUnavailable: the provider does not come, or the threads cannot be started.
    """

    def __init__(
        self, backend: Backend, threads: int, *, device_ordinal: int = 0, allow_cpu_fallback: bool = False
    ) -> None:
        self._threads = threads
        self._device_ordinal = device_ordinal
        _prepare_process(threads)
        self._backend = self._usable(backend, allow_cpu_fallback=allow_cpu_fallback)

    def __repr__(self) -> str:
        return f"<OrtRuntime {self.platform}, {self._threads} threads>"

    @property
    def platform(self) -> str:
        """`cpu` or `cuda`: what is used, not what was asked for."""
        return self._backend.value

    def load(self, model_path: Path) -> OrtSession:
        """Create a session; see `interface.Runtime.load`."""
        try:
            session = self._create(str(model_path), self._backend)
            signature = _signature(session, model_path)
        except NodeError:
            raise
        except Exception as error:
            raise ModelLoadError(tidy(str(error), model_path.parent)) from error
        self._check_provider(session)
        return OrtSession(session, signature)

    def _create(self, model: str | bytes, backend: Backend) -> ort.InferenceSession:
        options = ort.SessionOptions()
        options.use_per_session_threads = False
        options.log_severity_level = _FATAL
        options.add_session_config_entry("session.use_env_allocators", "1")
        return ort.InferenceSession(model, options, providers=self._providers(backend), enable_fallback=0)

    def _providers(self, backend: Backend) -> list[Any]:
        if backend is Backend.CPU:
            return [CPU_PROVIDER]
        return [(CUDA_PROVIDER, {"device_id": self._device_ordinal}), CPU_PROVIDER]

    def _usable(self, backend: Backend, *, allow_cpu_fallback: bool) -> Backend:
        if backend is Backend.CPU:
            return backend
        reason = missing_cuda_library() or self._cuda_failure()
        if reason is None:
            return backend
        if not allow_cpu_fallback:
            raise RuntimeUnavailable(
                f"runtime.backend is cuda, and the CUDA provider cannot be used: {reason}; "
                f"install what is missing, or set runtime.allow_cpu_fallback: true to serve on the CPU"
            )
        _log.warning("the CUDA provider cannot be used, the CPU is: %s", reason)
        return Backend.CPU

    def _cuda_failure(self) -> str | None:
        try:
            session = self._create(_IDENTITY_MODEL, Backend.CUDA)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the reason
            return tidy(str(error))
        return None if session.get_providers()[0] == CUDA_PROVIDER else "ONNX Runtime fell back to the CPU"

    def _check_provider(self, session: ort.InferenceSession) -> None:
        found = session.get_providers()[0]
        if self._backend is Backend.CUDA and found != CUDA_PROVIDER:
            raise RuntimeUnavailable(f"the session got {found} although CUDA was there when the worker started")


def _prepare_process(threads: int) -> None:
    """Make the process's pool and arena, unless an earlier runtime did."""
    ort.set_default_logger_severity(_ERROR)
    _check_thread_limit(threads)
    try:
        ort.set_global_thread_pool_sizes(threads, 1)
    except Exception as error:
        if "already been created" in str(error):
            return
        raise RuntimeUnavailable(f"no pool of {threads} compute threads: {tidy(str(error))}") from error
    memory = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(memory, None)


def _check_thread_limit(threads: int) -> None:
    """See that so many threads can be started: ONNX Runtime hangs for ever where one of its pool cannot be."""
    release = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _ in range(threads):
            thread = threading.Thread(target=release.wait)
            thread.start()
            started.append(thread)
    except RuntimeError as error:
        raise RuntimeUnavailable(
            f"only {len(started)} of {threads} compute threads can be started: raise the process limit "
            f"(--pids-limit, TasksMax, ulimit -u) or lower REACTANT_WORKER_THREADS"
        ) from error
    finally:
        release.set()
        for thread in started:
            thread.join()


def _signature(session: ort.InferenceSession, path: Path) -> ModelSignature:
    inputs, outputs = session.get_inputs(), session.get_outputs()
    ambiguous = any(not node.shape for node in (*inputs, *outputs))
    unranked = unranked_names(path) if ambiguous else frozenset()
    signature = ModelSignature(
        tuple(_spec("input", node, unranked) for node in inputs),
        tuple(_spec("output", node, unranked) for node in outputs),
    )
    strings = next((spec.name for spec in signature.inputs if spec.datatype == "BYTES"), None)
    halves = next((spec.name for spec in signature.outputs if spec.datatype == "BF16"), None)
    if strings is not None and halves is not None:
        raise ModelLoadError(
            f"input '{strings}' is BYTES and output '{halves}' BF16: ONNX Runtime's Python interface cannot pass both"
        )
    return signature


def _spec(kind: str, node: ort.NodeArg, unranked: frozenset[str]) -> TensorSpec:
    match = _TENSOR_TYPE.fullmatch(node.type)
    row = BY_ONNX.get(match.group(1)) if match else None
    if row is None:
        served = ", ".join(row.onnx for row in TABLE)
        raise ModelLoadError(f"{kind} '{node.name}' is {node.type}; only tensors are served, of {served}")
    shape = None if not node.shape and node.name in unranked else tuple(node.shape)
    return TensorSpec(node.name, row.name, shape)


def _value(tensor: NamedTensor) -> ort.OrtValue:
    """Borrows the array's memory where it is contiguous, as `ort.OrtValue` keeps the array alive."""
    data = np.asarray(tensor.data, order="C")
    if tensor.datatype != "BF16":
        return ort.OrtValue.ortvalue_from_numpy(data)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(data, BY_NAME["BF16"].onnx_enum)


def _from_value(value: ort.OrtValue) -> NDArray[Any]:
    if value.data_type() != "tensor(bfloat16)":
        return np.asarray(value.numpy())
    data = np.empty(value.shape(), BY_NAME["BF16"].numpy)
    if data.nbytes:
        ctypes.memmove(data.ctypes.data, value.data_ptr(), data.nbytes)
    return data


def _run_error(error: Exception) -> NodeError:
    if isinstance(error, UnicodeEncodeError):
        return InvalidArgument(f"a string is not UTF-8: {error}")
    message = tidy(str(error))
    return InvalidArgument(message) if blames_input(type(error).__name__, message) else Internal(message)
