"""Many workers' expositions fetched at once and merged with the parent's own into one valid exposition.

Theory. An exposition is a list of families: metadata lines (HELP, TYPE, UNIT), then samples. Merging keeps the
first worker's metadata of a family and puts everybody's samples under it, so that each HELP and TYPE appears once
and groups stay together. It works on the text: parsing a sample into Python objects and back costs 60 us, which
at a thousand series a worker is felt by the requests in the same process; checking a line costs 3 us.

A worker is not trusted to be well. Its text has to match the grammar line by line and to end as its format says
(`# EOF` in OpenMetrics), else all of it is left out and only the worker is marked as down. Its `worker` label is
replaced by the name that the gateway knows it by, because two hosts may both have a `worker0`. A series that is
there already is dropped, since one duplicate makes a scraper refuse everything.

When a worker restarts its counters begin at zero again, visible as a reset of the series with its `worker` label.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

FETCH_SECONDS = 5.0
"""For one worker, connection to last byte (GW-17); all are asked at once, so it is also the whole time."""

MAX_EXPOSITION_BYTES = 16 * 1024 * 1024
"""A thousand models make about 6 MB; a stream without an end must not fill the parent's memory."""

MEDIA_TYPES = {True: "application/openmetrics-text; version=1.0.0", False: "text/plain; version=0.0.4"}
"""What to ask a worker for, by whether the merged reply is OpenMetrics."""

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
_NUMBER = r"NaN|[+-]?Inf|[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?"
_SAMPLE_LINE = re.compile(rf"({_NAME})(?:\{{({_LABEL}(?:,{_LABEL})*)\}})? (?:{_NUMBER})(?: -?[0-9.]+)?")
_METADATA_LINE = re.compile(rf"# (HELP|TYPE|UNIT) ({_NAME})(?: (.*))?")
_LABELS = re.compile(_LABEL)

_SUFFIXES = {
    "counter": ("_total", "_created", ""),
    "histogram": ("_bucket", "_count", "_sum", "_created"),
    "gaugehistogram": ("_bucket", "_gcount", "_gsum"),
    "summary": ("_count", "_sum", "_created", ""),
    "info": ("_info",),
}
"""Sample names that belong to a family, by its type; other types have the family's own name alone."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a worker answers `/metrics`."""

    name: str
    host: str
    port: int


@dataclass(slots=True)
class _FamilyText:
    """One family on its way through a merge: `metadata` by keyword, in order, and sample lines."""

    name: str
    metadata: dict[str, str] = field(default_factory=dict)
    samples: list[tuple[str, str]] = field(default_factory=list)
    """Series (name and labels) and the rest of the line."""

    @property
    def type(self) -> str:
        return self.metadata.get("TYPE", "untyped")

    def owns(self, sample_name: str) -> bool:
        suffixes = _SUFFIXES.get(self.type, ("",))
        return sample_name.startswith(self.name) and sample_name[len(self.name) :] in suffixes


Families = Sequence[_FamilyText]


def parse(text: str, *, openmetrics: bool, worker: str | None = None) -> Families:
    """Cut an exposition into families, checking every line.

    Args:
        text: a whole exposition.
        openmetrics: its format; else Prometheus text.
        worker: replaces or adds the `worker` label on every sample; None leaves them.

    Raises:
        ValueError: the text breaks the grammar, or is cut short.
    """
    *lines, last = text.split("\n")
    if last or (openmetrics and (not lines or lines.pop() != "# EOF")):
        raise ValueError("the exposition is cut short")
    families: dict[str, _FamilyText] = {}
    current: _FamilyText | None = None
    for line in lines:
        if line.startswith("#"):
            current = _add_metadata(families, line)
        else:
            _add_sample(current, line, worker)
    return tuple(families.values())


def _add_metadata(families: dict[str, _FamilyText], line: str) -> _FamilyText:
    match = _METADATA_LINE.fullmatch(line)
    if match is None:
        raise ValueError(f"not a metadata line: {line[:80]!r}")
    keyword, name, rest = match.groups(default="")
    current = families.setdefault(name, _FamilyText(name))
    if keyword in current.metadata:
        raise ValueError(f"{name}: declared twice")
    current.metadata[keyword] = rest
    return current


def _add_sample(current: _FamilyText | None, line: str, worker: str | None) -> None:
    match = _SAMPLE_LINE.fullmatch(line)
    if match is None or current is None or not current.owns(match[1]):
        raise ValueError(f"not a sample of the family declared above it: {line[:80]!r}")
    name, labels = match[1], match[2] or ""
    rest = line[match.end(2) + 1 if match[2] else match.end(1) :]
    if worker is not None:
        labels = _relabelled(labels, worker)
    current.samples.append((f"{name}{{{labels}}}" if labels else name, rest))


def _relabelled(labels: str, worker: str) -> str:
    # Label by label and not by search: a value may itself look like a label.
    others = [label for label in _LABELS.findall(labels) if not label.startswith('worker="')]
    return ",".join([*others, f'worker="{_escaped(worker)}"'])


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def merge(expositions: Iterable[Families], *, openmetrics: bool) -> str:
    """One exposition out of many. The first one to name a family declares it.

    A family declared with another type by a later exposition is left out there: the two cannot be added up.
    """
    merged: dict[str, _FamilyText] = {}
    seen: set[str] = set()
    for families in expositions:
        for family in families:
            target = merged.setdefault(family.name, _FamilyText(family.name, family.metadata))
            if target.type == family.type:
                target.samples += [sample for sample in family.samples if sample[0] not in seen]
                seen.update(series for series, _ in family.samples)
    return "".join(_lines(merged.values())) + ("# EOF\n" if openmetrics else "")


def _lines(families: Iterable[_FamilyText]) -> Iterable[str]:
    for family in families:
        for keyword, rest in family.metadata.items():
            yield f"# {keyword} {family.name} {rest}\n"
        for series, rest in family.samples:
            yield f"{series}{rest}\n"


def fetch_all(targets: Sequence[Target], *, openmetrics: bool) -> Mapping[str, Families | None]:
    """Ask every worker for its metrics, all at once, and check what comes.

    Blocks for at most `FETCH_SECONDS` and the time to check the texts; runs a loop of its own, so that it needs a
    thread without one and does not depend on the gateway's being well.

    Returns:
        By worker name: its families, named by that worker, or None where it did not answer properly in time.
    """
    if not targets:
        return {}
    texts = asyncio.run(_fetch_texts(targets, openmetrics=openmetrics))
    return {
        target.name: _checked(text, target.name, openmetrics=openmetrics)
        for target, text in zip(targets, texts, strict=True)
    }


def _checked(body: bytes | None, worker: str, *, openmetrics: bool) -> Families | None:
    if body is None:
        return None
    try:
        return parse(body.decode(), openmetrics=openmetrics, worker=worker)
    except ValueError:
        return None


async def _fetch_texts(targets: Sequence[Target], *, openmetrics: bool) -> list[bytes | None]:
    accept = MEDIA_TYPES[openmetrics]
    return await asyncio.gather(*(_fetch(target, accept) for target in targets))


async def _fetch(target: Target, accept: str) -> bytes | None:
    try:
        async with asyncio.timeout(FETCH_SECONDS):
            return _body(await _exchange(target, accept), accept)
    except (OSError, TimeoutError, ValueError):
        return None


async def _exchange(target: Target, accept: str) -> bytes:
    reader, writer = await asyncio.open_connection(target.host, target.port)
    try:
        # HTTP/1.0: the reply is neither chunked nor followed by another, and ends with the connection.
        writer.write(f"GET /metrics HTTP/1.0\r\nHost: worker\r\nAccept: {accept}\r\n\r\n".encode())
        reply = bytearray()
        while chunk := await reader.read(1 << 16):
            reply += chunk
            if len(reply) > MAX_EXPOSITION_BYTES:
                raise ValueError(f"more than {MAX_EXPOSITION_BYTES} bytes")
        return bytes(reply)
    finally:
        writer.transport.abort()  # nothing is waiting to be sent, and a peer that hangs must not be waited for


def _body(reply: bytes, accept: str) -> bytes:
    head, _, body = reply.partition(b"\r\n\r\n")
    status, *headers = head.decode("latin-1").lower().split("\r\n")
    media_type = accept.partition(";")[0]
    if status.split(" ")[1:2] != ["200"] or not any(
        header.startswith("content-type:") and media_type in header for header in headers
    ):
        raise ValueError(f"not metrics in the form asked for: {status[:80]!r}")
    _check_length(headers, body)
    return body


def _check_length(headers: Sequence[str], body: bytes) -> None:
    # Prometheus text has no end mark: a worker killed while it writes would pass for one with fewer series.
    announced = [header.partition(":")[2].strip() for header in headers if header.startswith("content-length:")]
    if announced and announced != [str(len(body))]:
        raise ValueError(f"{len(body)} bytes came of {announced[0]}")
