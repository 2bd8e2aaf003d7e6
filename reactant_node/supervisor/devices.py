"""Which devices this node may use, and how that was found out.

The first source that answers wins (reference DEV-1): REACTANT_GPUS, the node file's `gpus`, CUDA_VISIBLE_DEVICES, the
driver (NVML, else the nvidia-smi program), the device nodes in /dev. Selectors are texts from end to end, so that GPU
and MIG UUIDs reach CUDA_VISIBLE_DEVICES as they were written. Every step says what it answered, for `plan`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from reactant_node.errors import ConfigError

NVIDIA_SMI_SECONDS = 10.0
"""A driver that is being reset can make nvidia-smi wait for minutes; the start must not."""

GpuSetting = int | tuple[str, ...] | None


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
    """

    devices: tuple[str, ...]
    source: str
    stated: bool
    steps: tuple[DetectionStep, ...]


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
            return Detection(answer.devices, source, stated, tuple(steps))
    return Detection((), f"none by {', '.join(step.source for step in steps)}", stated=False, steps=tuple(steps))


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
        return _found(_ordinals(int(value), "REACTANT_GPUS"))
    return _found(_distinct(items, "REACTANT_GPUS"))


def _setting(gpus: GpuSetting) -> _Answer:
    if gpus is None:
        return _Answer(None, "auto")
    return _found(_ordinals(gpus, "gpus") if isinstance(gpus, int) else _distinct(gpus, "gpus"))


def _cuda_visible_devices(value: str | None) -> _Answer:
    if value is None:
        return _Answer(None, "not set")
    items = tuple(item.strip() for item in value.split(",") if item.strip())
    # CUDA itself stops at the first -1, which is how some say "none".
    return _found(items[: items.index("-1")] if "-1" in items else items)


MAX_DEVICES = 64


def _ordinals(count: int, source: str) -> tuple[str, ...]:
    if count > MAX_DEVICES:
        raise ConfigError(f"{source}: got {count} devices; use at most {MAX_DEVICES}, or a list (one ordinal is `7,`)")
    return tuple(str(ordinal) for ordinal in range(count))


def _distinct(items: list[str] | tuple[str, ...], source: str) -> tuple[str, ...]:
    for item in items:
        if items.count(item) > 1:
            raise ConfigError(f"{source}: the device {item!r} is listed twice; a device has one worker")
    return tuple(items)


def _nvml() -> _Answer:
    """The driver's own count, through nvidia-ml-py."""
    import pynvml  # noqa: PLC0415 - only here, and only where nothing was stated: loads the driver's library

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return _Answer(None, str(error))
    try:
        count = int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError as error:
        return _Answer(None, f"the driver is loaded and does not answer: {error}")
    finally:
        pynvml.nvmlShutdown()
    return _found(_ordinals(count, "NVML")) if count else _Answer(None, "the driver is loaded and sees no device")


def _nvidia_smi() -> _Answer:
    program = shutil.which("nvidia-smi")
    if program is None:
        return _Answer(None, "not on PATH")
    try:
        output = subprocess.run(
            [program, "--query-gpu=index", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=NVIDIA_SMI_SECONDS,
            check=True,
            stdin=subprocess.DEVNULL,
        ).stdout
    except subprocess.TimeoutExpired:
        return _Answer(None, f"no answer within {NVIDIA_SMI_SECONDS:g} s")
    except subprocess.CalledProcessError as error:
        words = " ".join(f"{error.stdout} {error.stderr}".split())[:200]
        return _Answer(None, f"failed with {error.returncode}: {words}")
    except OSError as error:
        return _Answer(None, f"cannot be run: {error.strerror}")
    indices = tuple(line.strip() for line in output.splitlines() if line.strip().isdecimal())
    return _found(indices) if indices else _Answer(None, "lists no device")


def _device_nodes(dev: Path) -> _Answer:
    """`nvidia0`…; control nodes (nvidiactl, nvidia-uvm) are none."""
    numbers = sorted(_node_numbers(dev))
    return _found(tuple(str(number) for number in numbers)) if numbers else _Answer(None, "no nvidiaN nodes")


def _node_numbers(dev: Path) -> Iterator[int]:
    try:
        names = [entry.name for entry in dev.iterdir()]
    except OSError:
        return
    for name in names:
        if match := re.fullmatch(r"nvidia([0-9]+)", name):
            yield int(match[1])
