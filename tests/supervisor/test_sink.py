"""The one stream that everything is written to, and readers that are slow, stopped or gone."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Iterator

import pytest

from reactant_node.supervisor.sink import CHUNK_BYTES, MAX_BUFFERED_BYTES, PARENT_BYTES, Sink, SinkHandler
from tests.support.node import wait_until

LINE = b"[worker0] " + b"x" * 1013 + b"\n"


class Pipe:
    """A pipe with a sink at one end and a test at the other."""

    def __init__(self, *, blocking: bool = True) -> None:
        self.reader, writer = os.pipe()
        os.set_blocking(writer, blocking)
        self.sink = Sink(writer)

    def read_all(self) -> bytes:
        """Everything until the sink is closed."""
        data = b""
        while block := os.read(self.reader, 1 << 20):
            data += block
        return data

    def drain(self) -> bytes:
        """Close the sink while reading; what came."""
        closer = threading.Thread(target=self.sink.close, args=(20,))
        closer.start()
        data = self.read_all()
        closer.join()
        return data


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    """A pipe that nobody reads yet."""
    pipe = Pipe()
    yield pipe
    os.close(pipe.reader)
    pipe.sink.close(20)


@pytest.fixture
def dropped_lines(pipe: Pipe) -> Iterator[None]:
    """What the sink has to say goes through it, as in the node."""
    handler = SinkHandler(pipe.sink, "text")
    logging.getLogger("reactant_node").addHandler(handler)
    yield
    logging.getLogger("reactant_node").removeHandler(handler)


def test_lines_come_out_whole_and_in_order(pipe: Pipe) -> None:
    """Of several writers, each one's lines in its order."""

    def write(name: int) -> None:
        for number in range(500):
            pipe.sink.write(b"%d %d\n" % (name, number))

    writers = [threading.Thread(target=write, args=(name,)) for name in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    lines = [tuple(map(int, line.split())) for line in pipe.drain().splitlines()]
    assert sorted(lines) == [(name, number) for name in range(4) for number in range(500)]
    assert all([n for w, n in lines if w == name] == list(range(500)) for name in range(4))


@pytest.mark.usefixtures("dropped_lines")
def test_a_stopped_reader_stops_nobody(pipe: Pipe) -> None:
    """Beyond the buffer lines are dropped, whole, counted, and it is said once there is room again."""
    written = 2 * MAX_BUFFERED_BYTES // len(LINE)
    for _ in range(written):
        pipe.sink.write(LINE)
    wait_until(lambda: not pipe.sink.is_crowded(), "the reader counts as stopped", 20)
    *lines, said = pipe.drain().splitlines(keepends=True)
    assert set(lines) == {LINE}
    assert len(lines) <= (MAX_BUFFERED_BYTES + 4 * CHUNK_BYTES) // len(LINE)
    assert said.startswith(b"[supervisor] ")
    assert b" WARNING log lines dropped: %d;" % (written - len(lines)) in said


def test_the_parents_own_lines_find_room_in_a_flood(pipe: Pipe) -> None:
    """A death is told even where the flood of the dying fills everything."""
    for _ in range(2 * MAX_BUFFERED_BYTES // len(LINE)):
        pipe.sink.write(LINE)
    wait_until(lambda: not pipe.sink.is_crowded(), "the writer has all that the pipe holds", 20)
    pipe.sink.write(LINE)
    pipe.sink.write_own(b"[supervisor] worker0 died\n")
    pipe.sink.write_own(b"x" * PARENT_BYTES + b"\n")
    lines = pipe.drain().splitlines()
    assert lines[-1] == b"[supervisor] worker0 died"


def test_it_is_crowded_while_much_waits_for_a_reader_that_reads(pipe: Pipe) -> None:
    """Then children are left to wait; nothing is crowded once the reader has caught up."""
    assert not pipe.sink.is_crowded()
    for _ in range(3 * MAX_BUFFERED_BYTES // 4 // len(LINE)):
        pipe.sink.write(LINE)

    def read_until(condition: Callable[[], bool]) -> None:
        while not condition():
            os.read(pipe.reader, CHUNK_BYTES)

    read_until(pipe.sink.is_crowded)
    read_until(lambda: not pipe.sink.is_crowded())
    assert repr(pipe.sink).endswith("bytes waiting, 0 lines dropped>")


def test_a_reader_that_is_gone_costs_nothing_but_the_lines() -> None:
    """Neither an error nor a wait, and the end is as quick as ever."""
    pipe = Pipe()
    os.close(pipe.reader)
    for _ in range(100):
        pipe.sink.write(LINE)
    pipe.sink.close(20)
    assert repr(pipe.sink) == "<Sink 0 bytes waiting, 100 lines dropped>"


def test_a_full_disk_costs_nothing_but_the_lines() -> None:
    """As /dev/full says it: no space left on device."""
    sink = Sink(os.open("/dev/full", os.O_WRONLY))
    sink.write(LINE)
    sink.close(20)
    assert repr(sink) == "<Sink 0 bytes waiting, 1 lines dropped>"


class SmallDisk(Sink):
    """A sink whose disk has room for so many bytes."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.written = b""
        super().__init__(os.open(os.devnull, os.O_WRONLY))

    def _write_some(self, data: bytes) -> int:
        taken = data[: self.room]
        self.room -= len(taken)
        self.written += taken
        return len(taken)


def test_a_line_torn_by_a_full_disk_does_not_run_into_the_next(caplog: pytest.LogCaptureFixture) -> None:
    """Once there is room again lines start at the start of a line, and the loss is told."""
    disk = SmallDisk(6)
    disk.write(b"0123456789\n")
    wait_until(lambda: "1 lines dropped" in repr(disk), "the disk is full", 20)
    disk.room = 1000
    disk.write(b"next\n")
    disk.close(20)
    assert disk.written == b"012345\nnext\n"
    assert "log lines dropped: 1;" in caplog.text


def test_a_reader_made_non_blocking_by_somebody_is_waited_for() -> None:
    """The description may be shared with a shell that has made it so; nothing is lost and nothing is torn."""
    pipe = Pipe(blocking=False)
    for _ in range(200):
        pipe.sink.write(LINE)
    assert pipe.drain() == LINE * 200
    os.close(pipe.reader)


def test_the_parents_records_are_prefixed_by_who_speaks(pipe: Pipe) -> None:
    """`gateway` for the gateway's, `supervisor` for the rest; every line of a traceback has its prefix too."""
    handler = SinkHandler(pipe.sink, "text")
    for name in ("reactant_node.gateway.server", "reactant_node.launch"):
        handler.emit(logging.LogRecord(name, logging.INFO, "", 0, "hello %s", (1,), None))
    error = ValueError("two\nlines")
    handler.emit(logging.LogRecord("x", logging.ERROR, "", 0, "oh", (), (ValueError, error, None)))
    lines = pipe.drain().decode().splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["[gateway]", "[supervisor]"]
    assert lines[0].endswith("INFO hello 1")
    assert lines[3:] == ["[supervisor]     ValueError: two", "[supervisor]     lines"]


def test_in_json_every_record_is_an_object_with_its_source(pipe: Pipe) -> None:
    """Without a prefix."""
    handler = SinkHandler(pipe.sink, "json")
    handler.emit(logging.LogRecord("reactant_node.gateway", logging.INFO, "", 0, "hello", (), None))
    (line,) = pipe.drain().splitlines()
    assert json.loads(line)["source"] == "gateway"


def test_a_record_that_cannot_be_written_ends_nothing(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments that do not fit their message are a defect, but not one to stop a node for."""
    monkeypatch.setattr(logging, "raiseExceptions", False)
    SinkHandler(pipe.sink, "text").emit(logging.LogRecord("x", logging.INFO, "", 0, "%d", ("no number",), None))
    assert pipe.drain() == b""
