"""A counter for Prometheus over a number that somebody else keeps. Pure."""

from collections.abc import Callable, Iterator

from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector


class CountedElsewhere(Collector):
    """One family without labels."""

    def __init__(self, name: str, description: str, read: Callable[[], float]) -> None:
        """Ask `read` at each scrape, in any thread; `_total` is put behind the name."""
        self._name = name
        self._description = description
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Yield the number as it stands."""
        yield CounterMetricFamily(self._name, self._description, value=self._read())
