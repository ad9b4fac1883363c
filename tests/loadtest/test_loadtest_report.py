"""What a report says of the figures it was given."""

import math

from loadtest.profiling import summarize
from loadtest.report import Cell, Table, build_report, build_short_table


def make_table(name: str, title: str, **costs: float) -> Table:
    rows = {
        proxy: {"cpu_ms": Cell(cost, cost - 1, cost + 1), "rate": Cell(9, 9, 9)}
        for proxy, cost in costs.items()
    }
    return Table(name, title, "A note.", rows)


def test_a_ratio_is_our_cost_by_theirs() -> None:
    table = make_table("requests", "64 connections", Sandgate=30, Envoy=60, Caddy=20)

    assert table.ratios("Sandgate") == {"Sandgate": 1.0, "Envoy": 0.5, "Caddy": 1.5}


def test_a_cost_of_nothing_has_no_ratio_and_breaks_no_report() -> None:
    table = make_table("idle", "idle", Sandgate=30, Envoy=0)

    assert math.isnan(table.ratios("Sandgate")["Envoy"])
    assert "nan" in table.markdown(baseline="Sandgate")


def test_without_us_there_are_figures_and_no_ratios() -> None:
    table = make_table("requests", "64 connections", Envoy=60)

    assert table.ratios("Sandgate") == {}
    assert "60.00" in table.text(baseline="Sandgate")


def test_the_short_table_has_the_common_work_alone_and_a_dash_for_who_is_not_there() -> None:
    tables = [
        make_table("requests", "64 connections", Sandgate=30, Envoy=60),
        make_table("identical", "identical heads", Sandgate=10, Envoy=60),
        make_table("upload", "upload of 100 MB", Sandgate=30, Envoy=20),
    ]

    header, _, *lines = build_short_table(tables, baseline="Sandgate").splitlines()

    assert header == "| work | Envoy | Go ReverseProxy | HAProxy, tuned | nginx, static upstreams |"
    assert lines == [
        "| small requests, 64 connections | 0.50 | – | – | – |",
        "| upload of 100 MB | 1.50 | – | – | – |",
    ]


def test_a_report_tells_machine_and_spread_and_has_the_short_table_in_it() -> None:
    tables = [make_table("requests", "64 connections", Sandgate=30, Envoy=60)]

    report = build_report(tables, about={"date": "2026-11-30"}, baseline="Sandgate")

    assert "| date | 2026-11-30 |" in report
    assert "59.00-61.00" in report
    assert build_short_table(tables, baseline="Sandgate") in report


def test_a_profile_tells_a_functions_own_time_from_that_of_what_it_calls() -> None:
    table = summarize("run;parse 30\nrun;send 60\nrun 10\n")

    assert "| `send` | 60.0 | 60.0 |" in table
    assert "| `run` | 10.0 | 100.0 |" in table
