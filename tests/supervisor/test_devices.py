"""Devices by the specified order: the first source that answers wins, and each says what it answered.

A patched pynvml, a program called nvidia-smi on PATH and a folder for /dev stand for a host with GPUs.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from reactant_node.config.schema import GpuSetting
from reactant_node.errors import ConfigError
from reactant_node.supervisor import devices as devices_module
from reactant_node.supervisor.devices import Detection, DetectionStep, detect

UUID = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
MIG = "MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/0"


class FakeNvmlError(Exception):
    """Stands for pynvml's."""


class FakeHost:
    """What the driver, the program and /dev answer; nothing, to begin with."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.dev, self._bin, self._monkeypatch = folder / "dev", folder / "bin", monkeypatch
        self.dev.mkdir()
        self._bin.mkdir()
        monkeypatch.setenv("PATH", f"{self._bin}:/usr/bin:/bin")
        self.asked_nvml = 0
        self.nvml(FakeNvmlError("NVML Shared Library Not Found"))

    def nvml(
        self, init: Exception | None = None, count: int | Exception = 0, shutdown: Exception | None = None
    ) -> None:
        """Raise at init, at the count, at the end, or answer."""

        def say(answer: object) -> object:
            if isinstance(answer, Exception):
                raise answer
            return answer

        def begin() -> object:
            self.asked_nvml += 1
            return say(init)

        self._monkeypatch.setitem(
            sys.modules,
            "pynvml",
            SimpleNamespace(
                NVMLError=FakeNvmlError,
                nvmlInit=begin,
                nvmlDeviceGetCount=lambda: say(count),
                nvmlShutdown=lambda: say(shutdown),
            ),
        )

    def nvidia_smi(self, script: str) -> None:
        """The program's shell script."""
        path = self._bin / "nvidia-smi"
        path.write_text(script)
        path.chmod(0o755)

    def nodes(self, *names: str) -> None:
        """Entries of /dev."""
        for name in names:
            (self.dev / name).touch()

    def detect(self, environ: dict[str, str] | None = None, gpus: GpuSetting = None) -> Detection:
        """Detection on this host."""
        return detect(environ or {}, gpus, dev=self.dev)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    """A host without any sign of a GPU."""
    return FakeHost(tmp_path, monkeypatch)


# --- the order ------------------------------------------------------------------------------------------------------


def test_the_first_source_that_answers_wins(host: FakeHost) -> None:
    """REACTANT_GPUS, gpus, CUDA_VISIBLE_DEVICES, NVML, nvidia-smi, /dev; later ones are not even asked."""
    host.nodes("nvidia0")
    host.nvidia_smi("#!/bin/sh\necho 0; echo 1\n")
    host.nvml(count=3)
    environ = {"REACTANT_GPUS": "6", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    assert host.detect(environ, 5).devices == ("0", "1", "2", "3", "4", "5")
    del environ["REACTANT_GPUS"]
    assert host.detect(environ, 5).devices == ("0", "1", "2", "3", "4")
    assert host.detect(environ).devices == ("0", "1", "2", "3")
    assert host.asked_nvml == 0
    assert host.detect().devices == ("0", "1", "2")
    host.nvml(FakeNvmlError("Driver Not Loaded"))
    assert host.detect().devices == ("0", "1")
    host.nvidia_smi("#!/bin/sh\nexit 9\n")
    assert host.detect().devices == ("0",)


def test_only_an_operators_word_is_a_statement(host: FakeHost) -> None:
    """The first three sources state, the others find."""
    host.nvml(count=1)
    assert host.detect({"REACTANT_GPUS": "1"}).stated
    assert host.detect(gpus=("0",)).stated
    assert host.detect({"CUDA_VISIBLE_DEVICES": ""}).stated
    assert not host.detect().stated


def test_every_step_says_what_it_answered(host: FakeHost) -> None:
    """For `plan`, and for the message that no device is visible."""
    found = host.detect()
    assert (found.devices, found.stated, found.doubt) == ((), False, "")
    assert found.steps == (
        DetectionStep("REACTANT_GPUS", "not set"),
        DetectionStep("gpus", "auto"),
        DetectionStep("CUDA_VISIBLE_DEVICES", "not set"),
        DetectionStep("NVML", "driver not loaded (NVML Shared Library Not Found)"),
        DetectionStep("nvidia-smi", "not on PATH"),
        DetectionStep(str(host.dev), "no nvidiaN nodes"),
    )
    assert found.reason == (
        "NVML: driver not loaded (NVML Shared Library Not Found); nvidia-smi: not on PATH; "
        f"{host.dev}: no nvidiaN nodes"
    )
    assert host.detect({"CUDA_VISIBLE_DEVICES": ""}).reason == "CUDA_VISIBLE_DEVICES: no devices"
    assert host.detect({"REACTANT_GPUS": "2"}).reason == "REACTANT_GPUS"


# --- what an operator writes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "devices"),
    [
        ("0", ()),
        ("2", ("0", "1")),
        (" 2 ", ("0", "1")),
        ("1,", ("1",)),
        (" 3 , 1 ,", ("3", "1")),
        (f"{UUID},{MIG}", (UUID, MIG)),
    ],
)
def test_reactant_gpus_is_a_count_or_a_list(host: FakeHost, value: str, devices: tuple[str, ...]) -> None:
    """Digits alone are a count; one ordinal is written with a comma; UUIDs stay as they are."""
    assert host.detect({"REACTANT_GPUS": value}).devices == devices


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("", "got ''; use a count"),
        (" , ", "use a count"),
        ("65", "got 65 devices; use at most 64"),
        ("9" * 5000, "use at most 64"),
        ("all", "got 'all'; use an ordinal, or a UUID"),
        ("0,-1", "got '-1'; use an ordinal"),
        ("0,GPU-", "got 'GPU-'"),
        ("0,GPU-a b", "got 'GPU-a b'"),
        ("0,1,00", "the device '0' is listed twice"),
        (f"{UUID},{UUID}", "is listed twice; a device has one worker"),
    ],
)
def test_what_names_no_devices_is_an_error(host: FakeHost, value: str, said: str) -> None:
    """Set but empty included; falling through to another source would be a guess."""
    with pytest.raises(ConfigError) as raised:
        host.detect({"REACTANT_GPUS": value})
    assert str(raised.value).startswith("REACTANT_GPUS: ")
    assert said in str(raised.value)


def test_gpus_of_the_node_file_is_a_count_or_a_list(host: FakeHost) -> None:
    """0 is a node without devices; problems bear the key's name."""
    assert host.detect(gpus=0).devices == ()
    assert host.detect(gpus=2).devices == ("0", "1")
    assert host.detect(gpus=("1", UUID)).devices == ("1", UUID)
    with pytest.raises(ConfigError, match=r"^gpus: the device '1' is listed twice"):
        host.detect(gpus=("1", "1"))


@pytest.mark.parametrize(
    ("value", "devices", "answer"),
    [
        ("", (), "no devices"),
        ("1", ("1",), "1: 1"),
        (f"2, {UUID}", ("2", UUID), f"2: 2, {UUID}"),
        ("-1", (), "no devices (CUDA stops reading at '-1')"),
        ("0,-1,1", ("0",), "1: 0 (CUDA stops reading at '-1')"),
        ("NoDevFiles", (), "no devices (CUDA stops reading at 'NoDevFiles')"),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(
    host: FakeHost, value: str, devices: tuple[str, ...], answer: str
) -> None:
    """One worker per item, up to the first that names no device; set and empty means none."""
    found = host.detect({"CUDA_VISIBLE_DEVICES": value})
    assert (found.devices, found.steps[-1].answer) == (devices, answer)


def test_a_device_listed_twice_for_cuda_is_an_error(host: FakeHost) -> None:
    """Two workers on one device would each take its memory."""
    with pytest.raises(ConfigError, match=r"^CUDA_VISIBLE_DEVICES: the device '0' is listed twice"):
        host.detect({"CUDA_VISIBLE_DEVICES": "0,0"})


# --- what the hardware says -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("init", "count", "answer"),
    [
        (None, 0, "the driver is loaded and sees no device"),
        (FakeNvmlError("Driver/library version mismatch"), 0, "driver not loaded (Driver/library version mismatch)"),
        (None, FakeNvmlError("GPU is lost"), "the driver is loaded and does not answer (GPU is lost)"),
    ],
)
def test_a_driver_without_an_answer_leaves_it_to_the_next_source(
    host: FakeHost, init: Exception | None, count: int | Exception, answer: str
) -> None:
    """Whether it fails at once, later, or sees nothing; a driver that cannot be shut down does no harm."""
    host.nvml(init, count, FakeNvmlError("Uninitialized"))
    host.nvidia_smi("#!/bin/sh\necho 4\n")
    found = host.detect()
    assert (found.devices, found.source) == (("4",), "nvidia-smi")
    assert found.steps[3] == DetectionStep("NVML", answer)


@pytest.mark.parametrize(
    ("script", "answer"),
    [
        ("#!/bin/sh\necho broken >&2; exit 9\n", "failed with 9 (broken)"),
        ("#!/bin/sh\necho 'No devices were found'\n", "lists no device"),
        ("#!/bin/sh\nprintf '\\377\\n'\n", "lists no device"),
        ("#!/nonexistent\n", "cannot be run (No such file or directory)"),
    ],
)
def test_an_nvidia_smi_without_an_answer_leaves_it_to_dev(host: FakeHost, script: str, answer: str) -> None:
    """It fails, lists nothing, prints rubbish, or is no program."""
    host.nvidia_smi(script)
    host.nodes("nvidia1")
    found = host.detect()
    assert found.devices == ("1",)
    assert found.steps[4] == DetectionStep("nvidia-smi", answer)


def test_nvidia_smi_is_asked_for_indices_alone(host: FakeHost) -> None:
    """Warnings between the lines are read over."""
    host.nvidia_smi(
        '#!/bin/sh\necho "WARNING: infoROM is corrupted" >&2\n'
        '[ "$*" = "--query-gpu=index --format=csv,noheader" ] && printf "0\\n 1\\n"\n'
    )
    assert host.detect().devices == ("0", "1")


def test_an_nvidia_smi_that_hangs_is_given_up_with_all_it_started(
    host: FakeHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that is being reset holds it for minutes; the start goes on, and nothing stays behind."""
    monkeypatch.setattr(devices_module, "NVIDIA_SMI_SECONDS", 0.5)
    pid_file = tmp_path / "pid"
    host.nvidia_smi(f"#!/bin/sh\nsleep 600 &\necho $! > {pid_file}\nwait\n")
    began = time.monotonic()
    assert host.detect().steps[4].answer == "no answer within 0.5 s"
    assert time.monotonic() - began < 60
    state = Path(f"/proc/{pid_file.read_text().strip()}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] in "ZX"


def test_device_nodes_are_counted_in_order_and_doubted(host: FakeHost) -> None:
    """`nvidia` and digits, by number; that the driver does not answer is said: present but perhaps unusable."""
    host.nodes("nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm", "nvidia-modeset", "nvidia0x", "null")
    found = host.detect()
    assert (found.devices, found.source, found.stated) == (("2", "10"), str(host.dev), False)
    assert found.doubt == (
        "the devices 2, 10 are known by their nodes in /dev alone (NVML: driver not loaded (NVML Shared Library Not "
        "Found); nvidia-smi: not on PATH): where the driver does not work, their workers cannot start"
    )


def test_a_host_without_dev_has_no_devices(host: FakeHost) -> None:
    """A folder that is missing, or is none, is like an empty one."""
    host.dev.rmdir()
    assert host.detect().devices == ()
