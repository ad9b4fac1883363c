"""What the measurements yield: the first figure of each kind is the one that is compared."""

from dataclasses import dataclass, fields

HEADINGS = {
    "cpu_ms": "CPU-ms / 1,000",
    "few_cpu_ms": "with 100",
    "times": "times",
    "rate": "requests / s",
    "first_p99_ms": "first p99 ms",
    "first_p50_ms": "first p50 ms",
    "first_longest_ms": "longest ms",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "cpu_seconds_per_gb": "CPU-s / GB",
    "mb_per_second": "MB / s",
    "stream_cpu_ms": "CPU-ms",
    "stream_seconds": "seconds",
    "pss_kb": "PSS KB each",
    "rss_kb": "RSS KB each",
    "sandbox_kb": "KB each",
    "resident_mb": "resident MB",
}


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one run of one proxy."""

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of the figures, the compared one first."""
        return [field.name for field in fields(cls)]


@dataclass(frozen=True, slots=True)
class Requests(Figures):
    """Small requests over some connections."""

    cpu_ms: float
    """CPU-milliseconds of the proxy for 1,000 requests."""
    rate: float
    p50_ms: float
    p99_ms: float
    resident_mb: float


@dataclass(frozen=True, slots=True)
class Bulk(Figures):
    """Large content over one connection."""

    cpu_seconds_per_gb: float
    mb_per_second: float
    resident_mb: float


@dataclass(frozen=True, slots=True)
class Stream(Figures):
    """One event stream, from its request to its end."""

    stream_cpu_ms: float
    stream_seconds: float
    resident_mb: float


@dataclass(frozen=True, slots=True)
class Idle(Figures):
    """Client connections that wait: by how much each makes the proxy grow."""

    pss_kb: float
    rss_kb: float
    resident_mb: float


@dataclass(frozen=True, slots=True)
class Many(Figures):
    """Many sandboxes, beside the same work over few."""

    cpu_ms: float
    few_cpu_ms: float
    times: float
    """The first as a multiple of the second."""
    sandbox_kb: float
    """What a sandbox more takes of memory before it is used."""
    resident_mb: float


@dataclass(frozen=True, slots=True)
class Newcomers(Figures):
    """First answers on new connections while others keep the proxy busy."""

    first_p99_ms: float
    first_p50_ms: float
    first_longest_ms: float
    rate: float
    """Requests of the busy connections."""
