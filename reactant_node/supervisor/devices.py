"""Which devices this node may use, and how that was found out.

The first source that answers wins (reference DEV-1): REACTANT_GPUS, the node file's `gpus`, CUDA_VISIBLE_DEVICES, the
driver (NVML, else the nvidia-smi program), the device nodes in /dev. Selectors are texts from end to end, so that GPU
and MIG UUIDs reach CUDA_VISIBLE_DEVICES as they were written. Every step says what it answered, for `plan`.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path

from reactant_node.config.schema import GpuSetting
from reactant_node.errors import ConfigError

NVIDIA_SMI_SECONDS = 10.0
"""A driver that is being reset can make nvidia-smi wait for minutes; the start must not."""

MAX_DEVICES = 64
"""More than any host has: a larger count is a slip."""

_SELECTOR = re.compile(r"[0-9]{1,4}|(GPU|MIG)-[!-+\--~]+")
"""An ordinal, or a UUID as the driver writes them; all of it printable, without commas and spaces."""


@dataclass(frozen=True, slots=True)
class DetectionStep:
    """One source and what it answered, for people."""

    source: str
    answer: str


@dataclass(frozen=True, slots=True)
class Detection:
    """The devices, one selector each, and the way there.

    Attributes:
        devices: empty where there are none.
        source: the step that answered; the last one where none did.
        stated: an operator's statement answered, not the hardware.
        steps: every step gone through, in order.
        doubt: a sentence where the devices may not be usable, else empty.
    """

    devices: tuple[str, ...]
    source: str
    stated: bool
    steps: tuple[DetectionStep, ...]
    doubt: str = ""

    @property
    def reason(self) -> str:
        """The source, or what each one had to say where there is no device."""
        return self.source if self.devices else _told(self.steps)


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a step found: None where it cannot say and the next one is asked."""

    devices: tuple[str, ...] | None
    text: str


def detect(environ: Mapping[str, str], gpus: GpuSetting, *, dev: Path = Path("/dev")) -> Detection:
    """Go through the sources in order, up to the first that answers.

    Args:
        environ: of this process.
        gpus: the node file's setting: a count, selectors, or None for `auto`.
        dev: stands for /dev in tests.

    Raises:
        ConfigError: REACTANT_GPUS or CUDA_VISIBLE_DEVICES cannot be read.
    """
    sources: tuple[tuple[str, bool, Callable[[], _Answer]], ...] = (
        ("REACTANT_GPUS", True, partial(_reactant_gpus, environ.get("REACTANT_GPUS"))),
        ("gpus", True, partial(_setting, gpus)),
        ("CUDA_VISIBLE_DEVICES", True, partial(_cuda_visible_devices, environ.get("CUDA_VISIBLE_DEVICES"))),
        ("NVML", False, _nvml),
        ("nvidia-smi", False, _nvidia_smi),
        (str(dev), False, partial(_device_nodes, dev)),
    )
    steps: list[DetectionStep] = []
    for source, stated, ask in sources:
        answer = ask()
        steps.append(DetectionStep(source, answer.text))
        if answer.devices is not None:
            doubt = _doubt(answer.devices, steps) if source == str(dev) else ""
            return Detection(answer.devices, source, stated, tuple(steps), doubt)
    return Detection((), str(dev), stated=False, steps=tuple(steps))


_SILENT = ("not set", "auto")


def _told(steps: Iterable[DetectionStep]) -> str:
    return "; ".join(f"{step.source}: {step.answer}" for step in steps if step.answer not in _SILENT)


def _doubt(devices: tuple[str, ...], steps: list[DetectionStep]) -> str:
    """Devices that are there and a driver that does not answer: present, and perhaps unusable."""
    return (
        f"the devices {', '.join(devices)} are known by their nodes in /dev alone ({_told(steps[:-1])}): where the "
        "driver does not work, their workers cannot start"
    )


def _found(devices: tuple[str, ...]) -> _Answer:
    return _Answer(devices, f"{len(devices)}: {', '.join(devices)}" if devices else "no devices")


def _reactant_gpus(value: str | None) -> _Answer:
    if value is None:
        return _Answer(None, "not set")
    items = [item.strip() for item in value.split(",") if item.strip()]
    if not items:
        raise ConfigError(
            f"REACTANT_GPUS: got {value!r}; use a count (2), a list of ordinals or UUIDs (0,1 or GPU-…), 0 for a CPU "
            "node, or unset it"
        )
    if re.fullmatch(r"[0-9]+", value.strip()):  # digits alone are a count; one ordinal is written with a comma: `1,`
        return _found(_ordinals(value.strip(), "REACTANT_GPUS"))
    return _found(_selectors(items, "REACTANT_GPUS"))


def _setting(gpus: GpuSetting) -> _Answer:
    if gpus is None:
        return _Answer(None, "auto")
    return _found(_ordinals(str(gpus), "gpus") if isinstance(gpus, int) else _selectors(gpus, "gpus"))


def _cuda_visible_devices(value: str | None) -> _Answer:
    """The list up to the first item that names no device (`-1`, `NoDevFiles`), as CUDA itself reads it."""
    if value is None:
        return _Answer(None, "not set")
    items = [item.strip() for item in value.split(",") if item.strip()]
    valid = list(takewhile(_SELECTOR.fullmatch, items))
    found = _found(_selectors(valid, "CUDA_VISIBLE_DEVICES"))
    if valid == items:
        return found
    return _Answer(found.devices, f"{found.text} (CUDA stops reading at {items[len(valid)]!r})")


def _ordinals(count: str, source: str) -> tuple[str, ...]:
    if len(count) > len(str(MAX_DEVICES)) or int(count) > MAX_DEVICES:
        raise ConfigError(
            f"{source}: got {count[:20]} devices; use at most {MAX_DEVICES}, or a list (one ordinal is `7,`)"
        )
    return tuple(str(ordinal) for ordinal in range(int(count)))


def _selectors(items: Sequence[str], source: str) -> tuple[str, ...]:
    for item in items:
        if not _SELECTOR.fullmatch(item):
            raise ConfigError(f"{source}: got {item[:60]!r}; use an ordinal, or a UUID that begins with GPU- or MIG-")
    same = [item.lstrip("0") or "0" for item in items]
    for item in items:
        if same.count(item.lstrip("0") or "0") > 1:
            raise ConfigError(f"{source}: the device {item!r} is listed twice; a device has one worker")
    return tuple(items)


def _nvml() -> _Answer:
    """The driver's own count, through nvidia-ml-py."""
    import pynvml  # noqa: PLC0415 - only here, and only where nothing was stated: loads the driver's library

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return _Answer(None, f"driver not loaded ({error})")
    try:
        count = int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError as error:
        return _Answer(None, f"the driver is loaded and does not answer ({error})")
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
    return _found(_ordinals(str(count), "NVML")) if count else _Answer(None, "the driver is loaded and sees no device")


def _nvidia_smi() -> _Answer:
    program = shutil.which("nvidia-smi")
    if program is None:
        return _Answer(None, "not on PATH")
    try:
        code, output = _run(program, "--query-gpu=index", "--format=csv,noheader")
    except OSError as error:
        return _Answer(None, f"cannot be run ({error.strerror})")
    except subprocess.TimeoutExpired:
        return _Answer(None, f"no answer within {NVIDIA_SMI_SECONDS:g} s")
    if code:
        return _Answer(None, f"failed with {code} ({' '.join(output.split())[:200]})")
    indices = [line.strip() for line in output.splitlines() if re.fullmatch(r"[0-9]{1,4}", line.strip())]
    return _found(_selectors(indices, "nvidia-smi")) if indices else _Answer(None, "lists no device")


def _run(*command: str) -> tuple[int, str]:
    """Exit code and output. A program stuck in the driver, which no signal ends, is left behind."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=NVIDIA_SMI_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=1.0)
        raise
    return process.returncode, output


def _device_nodes(dev: Path) -> _Answer:
    """`nvidia0`…; control nodes (nvidiactl, nvidia-uvm) are none."""
    numbers = sorted(_node_numbers(dev))[:MAX_DEVICES]
    return _found(tuple(str(number) for number in numbers)) if numbers else _Answer(None, "no nvidiaN nodes")


def _node_numbers(dev: Path) -> Iterator[int]:
    try:
        names = [entry.name for entry in dev.iterdir()]
    except OSError:
        return
    for name in names:
        if match := re.fullmatch(r"nvidia([0-9]+)", name):
            yield int(match[1])
