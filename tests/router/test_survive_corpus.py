"""The corpus of another server's parser, sent through the gateway (row M62).

What that parser refuses must be refused here with nothing forwarded; what it takes must arrive
as the same request. The tables say where we differ, and why.
"""

import asyncio
from collections.abc import Sequence

import pytest
from support.raw_client import Answer, RawClient, connect
from support.scripted_upstream import OK, UpstreamSide
from support.survive_corpus import Case, CorpusUnavailable, Expected, fetch_corpus, with_routing
from support.survive_probe import Stage, send_pieces, stage, whole

HEAD_SECONDS = 0.3
"""How long the gateway waits for a head here, since some of the bad ones never end."""

STRICTER = {
    "002": "Host is no authority (0.0.0.0=5000)",
    "003": "Host is no authority (0.0.0.0=5000)",
    "005": "a fragment is never sent (RFC 9110 7.1)",
    "012": "trailers of a request are refused",
    "013": "white space in chunk extensions (RFC 9112 7.1.1 calls it bad)",
    "025": "a second Transfer-Encoding line",
    "025_line": "a coding other than chunked",
    "028": "white space before a colon (RFC 9112 5.1)",
    "029": "a second Transfer-Encoding line",
    "030": "a second Transfer-Encoding line",
    "031compat": "upper-cased there; a method is case-sensitive (RFC 9110 9.1)",
    "040": "Transfer_Encoding and Content_Length are framing to a reader that folds `_`",
    "040_compat": "Transfer_Encoding and Content_Length are framing to a reader that folds `_`",
    "099": "its content is shorter than its Content-Length",
    "compat_obs_fold": "a folded line (RFC 9112 5.2)",
    "compat_obs_fold_huge": "a folded line (RFC 9112 5.2)",
    "pp_01": "the PROXY protocol is not spoken here",
    "pp_02": "the PROXY protocol is not spoken here",
    "pp_04": "the PROXY protocol is not spoken here",
    "pp_05": "the PROXY protocol is not spoken here",
    "rfc9112_smuggle_gzip_chunked_01": "a coding other than chunked",
    "rfc9112_smuggle_te_identity_chunked_01": "a coding other than chunked",
    "rfc9112_target_absolute_userinfo_01": "user information in a target (RFC 9110 4.2.4)",
    "rfc9112_target_authority_connect_01": "CONNECT is not served",
    "rfc9112_target_authority_ipv6_01": "CONNECT is not served",
}
"""Taken by that parser, some only with a setting that loosens it, and refused here."""

OWN = {
    "022": "the second request follows one in HTTP/1.0, after which we close",
    "rfc9112_target_asterisk_options_01": "`OPTIONS *` asks about the gateway",
}
"""Answered, but not all of it by the sandbox."""

LAXER = {
    "003c": "a short method is a method",
    "006": "a request line of 4 KiB is within our 8",
    "007": "a field of 8 KiB is within our head of 32",
    "008": "a field of 8 KiB is within our head of 32",
    "010": "its limit is set to 10 bytes",
    "017": "a field of 8 KiB is within our head of 32",
    "019": "what proxies say of the scheme is replaced, not judged",
    "041": "two Content-Type lines are the sandbox's business",
    "limit_header_default_01": "a field of 8 KiB is within our head of 32",
}
"""Refused by that parser for limits or settings of its own; legal HTTP, and passed here."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Case], list[Case]]:
    try:
        return fetch_corpus(tmp_path_factory.mktemp("corpus"))
    except CorpusUnavailable as unavailable:
        pytest.skip(str(unavailable))


async def outcome(case: Case) -> tuple[list[Answer], list[tuple[bytes, bytes]], Stage]:
    """Send a case; return the answers, the whole requests that arrived, and the stage."""
    seen: list[tuple[bytes, bytes]] = []

    async def recording(side: UpstreamSide) -> None:
        while (got := await side.read_request())[0]:
            seen.append(got)
            side.send(OK)

    settings = {"ROUTER_AUTH_TOKEN": "secret", "PROXY_TIMEOUT_SECONDS": "0.3"}
    async with stage(recording, **settings) as here, connect(here.port) as client:
        await send_pieces(client, whole(with_routing(case)))
        answers = await read_answers(client, max(len(case.requests), 1))
    return answers, seen, here


async def read_answers(client: RawClient, count: int) -> list[Answer]:
    answers: list[Answer] = []
    while len(answers) < count:
        answers.append(await client.read_answer())
        if answers[-1].one("Connection") == "close":
            assert await client.read_rest() == b""
            break
    return answers


def read_requests(seen: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes, bytes]]:
    return [(*head.split(b" ", 2)[:2], body) for head, body in seen]  # type: ignore[misc]


def origin_form(target: bytes) -> bytes:
    scheme, found, rest = target.partition(b"://")
    return b"/" + rest.partition(b"/")[2] if found and b"/" not in scheme else target


async def test_every_good_request_arrives_as_it_is_or_is_refused_for_a_reason(
    corpus: tuple[list[Case], list[Case]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandgate_router.client.HEAD_SECONDS", HEAD_SECONDS)
    good, _ = corpus
    assert len(good) > 40
    wrong = []
    for case in good:
        answers, seen, _ = await outcome(case)
        if case.name in STRICTER:
            right = seen == [] and answers[0].status >= 400
        elif case.name in OWN:
            right = len(seen) == len(answers) - (answers[0].status == 204)
        else:
            right = len(answers) == len(seen) == len(case.requests) and all(
                same(*pair) for pair in zip(case.requests, read_requests(seen), strict=True)
            )
        if not right:
            wrong.append((case.name, [(answer.status, answer.code) for answer in answers], seen))
    assert wrong == []


def same(wanted: Expected, got: tuple[bytes, bytes, bytes]) -> bool:
    method, target, body = got
    return (method, target) == (wanted.method, origin_form(wanted.target)) and (
        wanted.body is None or body == wanted.body
    )


async def test_every_bad_request_is_refused_and_nothing_whole_arrives(
    corpus: tuple[list[Case], list[Case]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandgate_router.client.HEAD_SECONDS", HEAD_SECONDS)
    _, bad = corpus
    assert len(bad) > 60
    wrong = []
    for case in bad:
        answers, seen, here = await outcome(case)
        if case.name in LAXER:
            right = len(seen) == 1 and answers[0].status == 200
        else:
            await asyncio.gather(*(side.ended.wait() for side in here.upstream.sides))
            right = (
                seen == []
                and len(answers) == 1
                and answers[0].code is not None
                # Where only the content is bad, its head may have left, but never its end.
                and not here.upstream.received.endswith(b"0\r\n\r\n")
            )
        if not right:
            wrong.append((case.name, [(answer.status, answer.code) for answer in answers], seen))
    assert wrong == []
