"""`forerun bench --load`: what is asked, what is measured, and that no wrong text goes unnoticed."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.bench.load_fakes import DONE, Fake, chunk, event, saying, total

from forerun.bench.load.block import Block, Turns, run_block
from forerun.bench.load.check import check
from forerun.bench.load.client import Answer, Client
from forerun.bench.load.figures import compared_with, level_figures, percentiles, text_figures
from forerun.bench.load.mix import CYCLE, Ask, make_mix, renderer
from forerun.bench.load.servers import Server, ServerSpec, own_command, parse_server, resident_mb
from forerun.bench.load.texts import Plain
from forerun.errors import ForerunError, ParameterError

ASK = Ask("short", "The river is", 16, None)


# -- what is asked -----------------------------------------------------------------------------------------------------


def test_the_same_number_makes_the_same_requests_of_every_kind() -> None:
    render = renderer(None)
    asks = make_mix(64, render)
    assert asks == make_mix(64, render)
    assert {ask.kind for ask in asks} == set(CYCLE)
    for kind in set(CYCLE):
        seeds = [ask.seed for ask in asks if ask.kind == kind]
        assert None in seeds, kind
        assert any(seed is not None for seed in seeds), kind
    assert len({ask.prompt for ask in asks}) == len(asks)
    assert len({ask.seed for ask in asks} - {None}) == sum(ask.seed is not None for ask in asks)
    assert {ask.max_tokens for ask in asks} >= {16, 128}


def test_common_beginnings_are_long_and_other_prompts_have_none() -> None:
    asks = make_mix(64, renderer(None))
    shared = [ask.prompt for ask in asks if ask.kind == "shared"]
    assert len({prompt[:800] for prompt in shared}) == 1
    articles = [ask.prompt for ask in asks if ask.kind == "long"]
    assert min(len(prompt) for prompt in articles) > 3_000
    assert len({prompt[:300] for prompt in articles}) > 1


def test_a_request_asks_the_server_what_it_asks_the_engine() -> None:
    greedy, seeded = ASK, Ask("short", "The river is", 24, 9)
    assert (greedy.params.temperature, greedy.params.max_tokens) == (0.0, 16)
    assert (seeded.params.temperature, seeded.params.seed, seeded.params.max_tokens) == (1.0, 9, 24)
    assert "seed" not in greedy.body
    assert greedy.body["temperature"] == 0.0
    assert (seeded.body["seed"], seeded.body["temperature"], seeded.body["max_tokens"]) == (9, 1.0, 24)
    assert len({greedy.key, seeded.key, Ask("short", "The river is", 16, 9).key}) == 3


# -- one request -------------------------------------------------------------------------------------------------------


def answer_to(*pieces: bytes | None, status: int = 200) -> Answer:
    with Fake(saying(*pieces), status=status) as fake:
        client = Client(fake.url, "it")
        found = client.ask(4, ASK)
        client.close()
        assert fake.bodies[0]["model"] == "it"
    return found


def test_chunks_with_counts() -> None:
    found = answer_to(
        b": still here\n\n", chunk("ab", tokens=2), chunk("", tokens=3), chunk("cd", tokens=5),
        chunk("", "length", tokens=5), total(5), DONE,
    )  # fmt: skip
    assert (found.end, found.text, found.finish_reason, found.num_tokens) == ("done", "abcd", "length", 5)
    assert (found.index, found.num_prompt, found.ids) == (4, 3, {"c-1"})
    assert found.counts == [2, 1, 2]
    assert found.tokens_by_chunk == [2.0, 1.0, 2.0]
    assert found.arrivals == sorted(found.arrivals)
    assert found.arrivals[0] >= found.sent


def test_chunks_without_counts_share_the_total() -> None:
    found = answer_to(chunk("a"), chunk("b"), chunk("", "stop"), total(6), DONE)
    assert found.tokens_by_chunk == [3.0, 3.0]
    assert answer_to(chunk("a"), chunk("b", "stop"), DONE).tokens_by_chunk == [1.0, 1.0]
    assert answer_to(chunk("a"), chunk("b"), chunk("", "stop", tokens=4), DONE).tokens_by_chunk == [2.0, 2.0]


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        ((chunk("a"), event({"error": {"message": "out of memory"}}), DONE), "out of memory"),
        ((chunk("a"), chunk("b", "stop")), r"without \[DONE\]"),
        ((chunk("a"), DONE), "without a finish reason"),
        ((chunk("a"), None), "IncompleteRead|ended|reset"),
        ((b"data: {nonsense\n\n", DONE), "JSONDecodeError"),
    ],
)
def test_answers_that_fail(pieces: Any, error: str) -> None:
    found = answer_to(*pieces)
    assert found.end == "failed"
    assert re.search(error, found.error or ""), found.error


def test_a_refusal_is_an_error_with_its_status() -> None:
    found = answer_to(status=429)
    assert (found.end, found.error) == ("failed", 'HTTP 429: {"error": {"message": "too many"}}')


def test_a_connection_is_kept_and_a_broken_one_made_anew() -> None:
    answers = iter([(chunk("a"), None), (chunk("b", "stop"), DONE), (chunk("c", "stop"), DONE)])
    with Fake(lambda body: iter(next(answers))) as fake:
        client = Client(fake.url)
        assert [client.ask(0, ASK).end for _ in range(3)] == ["failed", "done", "done"]
        client.close()


@pytest.mark.parametrize("says_so", [True, False])
def test_a_server_that_closes_after_each_answer_is_asked_on_a_new_connection(says_so: bool) -> None:
    with Fake(saying(chunk("a", "stop"), DONE), closes=True, says_so=says_so) as fake:
        client = Client(fake.url)
        found = [client.ask(0, ASK) for _ in range(3)]
        client.close()
    assert [(one.end, one.error) for one in found] == [("done", None)] * 3
    assert len(fake.bodies) == 3


def test_a_request_that_is_cut_keeps_what_came() -> None:
    gone = threading.Event()

    def script(body: Any) -> Iterator[bytes]:
        yield chunk("ab", tokens=1)
        gone.wait(900)
        yield chunk("cd", "stop", tokens=2)

    with Fake(script) as fake:
        client, found = Client(fake.url), list[Answer]()
        asking = threading.Thread(target=lambda: found.append(client.ask(0, ASK)))
        asking.start()
        while not fake.bodies:
            gone.wait(0.01)
        client.cut()
        asking.join(900)
        gone.set()
    assert (found[0].end, found[0].error) == ("cut", None)
    assert "ab".startswith(found[0].text)


# -- texts -------------------------------------------------------------------------------------------------------------

PLAIN = Plain("The river is long and it flows to the sea.", "stop", 10, (4, 10, 13, 18, 22, 25, 31, 34, 38, 42))
OTHERS = {0: PLAIN, 1: Plain("In the garden there are apples and pears.", "length", 9, (41,))}


def answered(
    text: str, end: str = "done", reason: str | None = "stop", tokens: int | None = 10, ids: int = 1
) -> Answer:
    return Answer(0, 0.0, end, None, text, reason, tokens, 3, [], [], {str(one) for one in range(ids)})


def test_plain_decodings_text_is_fine_whole_or_cut() -> None:
    assert check(answered(PLAIN.text), PLAIN, OTHERS) is None
    assert check(answered(PLAIN.text, tokens=None), PLAIN, OTHERS) is None
    for length in range(len(PLAIN.text)):
        assert check(answered(PLAIN.text[:length], "cut", None, 3), PLAIN, OTHERS) is None


@pytest.mark.parametrize(
    ("text", "kind", "position", "token"),
    [
        ("The river is and it flows to the sea.", "lost", 13, 3),
        ("The river is long and it flows to the", "lost", 37, 8),
        ("", "lost", 0, 0),
        ("The river is long long and it flows to the sea.", "duplicated", 18, 4),
        (PLAIN.text * 2, "duplicated", 42, 10),
        ("The river is there are apples and pears.", "crossed", 13, 3),
        ("The river is wide and it flows to the sea.", "differing", 13, 3),
        (PLAIN.text + " And on and on it goes.", "differing", 42, 10),
    ],
)
def test_what_is_wrong_with_a_text(text: str, kind: str, position: int, token: int) -> None:
    fault = check(answered(text), PLAIN, OTHERS)
    assert fault is not None
    assert (fault.kind, fault.position, fault.token, fault.index) == (kind, position, token, 0)


def test_a_cut_text_may_have_faults_too() -> None:
    lost = check(answered("The river is and it flows to", "cut", None), PLAIN, OTHERS)
    assert lost is not None
    assert (lost.kind, lost.position) == ("lost", 13)
    differing = check(answered("The river is wi", "cut", None), PLAIN, OTHERS)
    assert differing is not None
    assert differing.kind == "differing"


def test_counts_reasons_and_ids_are_checked() -> None:
    faults = [
        check(answered(PLAIN.text, tokens=9), PLAIN, OTHERS),
        check(answered(PLAIN.text, reason="length"), PLAIN, OTHERS),
        check(answered(PLAIN.text, ids=2), PLAIN, OTHERS),
    ]
    assert [fault and fault.kind for fault in faults] == ["miscounted", "differing", "crossed"]


def test_faults_are_counted_where_texts_must_be_equal() -> None:
    asks = [ASK, Ask("json", "{", 16, 5)]
    good, bad = answered(PLAIN.text), answered("The river is and it flows to the sea.")
    checked = [(good, None), (bad, check(bad, PLAIN, OTHERS))]
    figures = text_figures(checked, asks, must_equal=True)
    assert (figures["compared"], figures["equal"], figures["lost"], figures["differing"]) == (2, 1, 1, 0)
    (shown,) = figures["faults"]
    assert (shown["kind"], shown["request"], shown["token"], shown["prompt"]) == ("lost", 0, 3, ASK.prompt)
    bad.index = 1  # a seeded one, which another server need not write
    figures = text_figures(checked, asks, must_equal=False)
    assert (figures["compared"], figures["equal"]) == (1, 1)
    assert "faults" not in figures


# -- figures -----------------------------------------------------------------------------------------------------------


def test_percentiles_count_each_value_by_its_weight() -> None:
    assert percentiles([3.0, 1.0, 2.0]) == {"p50": 2.0, "p99": 3.0, "n": 3}
    assert percentiles([1.0, 10.0], [1.0, 9.0]) == {"p50": 10.0, "p99": 10.0, "n": 10}
    assert percentiles([]) == {"p50": None, "p99": None, "n": 0}


def timed(sent: float, arrivals: list[float], counts: list[int], end: str = "done") -> Answer:
    return Answer(0, sent, end, None, "x", "stop", sum(counts), 7, arrivals, list(counts), {"a"})


def test_figures_of_blocks() -> None:
    first = Block(10.0, 20.0, [
        timed(9.0, [9.5, 10.5, 11.5], [1, 1, 2]),  # began in the warm-up: only what came from 10.0 on counts
        timed(12.0, [12.5, 12.6, 13.0], [1, 2, 4]),
        timed(19.0, [19.5, 20.5], [1, 1], "cut"),
        Answer(0, 13.0, "failed", "HTTP 429"),
    ], [(0.0, 100.0), (5.0, 101.0)], (12.0, 1.0))  # fmt: skip
    second = Block(30.0, 40.0, [timed(31.0, [31.1, 31.3], [1, 3])], [(0.0, 103.0)], (8.0, 1.0))
    figures = level_figures([first, second])
    assert figures["seconds"] == 20.0
    assert figures["tokens"] == 3 + 7 + 1 + 4
    assert figures["tokens_per_s"] == pytest.approx(15 / 20)
    assert (figures["requests"], figures["cut"], figures["errors"]) == (3, 1, 1)
    assert figures["error_examples"] == ["HTTP 429"]
    assert figures["time_to_first_token_ms"]["n"] == 3
    assert figures["time_to_first_token_ms"]["p50"] == pytest.approx(500)
    assert figures["chunk_gap_ms"]["n"] == 4
    assert figures["chunk_gap_ms"]["p99"] == pytest.approx(1000)
    assert figures["token_gap_ms"]["n"] == 2 + 4 + 1 + 3
    assert figures["token_gap_ms"]["p50"] == pytest.approx(200 / 3), "2 x 50, 3 x 67, 4 x 100, 1 x 1000"
    assert figures["request_token_ms"]["p50"] == pytest.approx(500 / 6)
    assert figures["memory_mb"] == {"start": 100.0, "mid": 101.0, "end": 103.0, "peak": 103.0}
    assert figures["cpu_cores"] == {"server": 1.0, "clients": 0.1}
    assert [block["tokens_per_s"] for block in figures["blocks"]] == [pytest.approx(1.1), pytest.approx(0.4)]


def test_servers_are_compared_block_by_block() -> None:
    def figure(*speeds: float) -> dict[str, Any]:
        return {"tokens_per_s": sum(speeds) / len(speeds), "blocks": [{"tokens_per_s": speed} for speed in speeds]}

    found = compared_with({"forerun": figure(20.0, 30.0), "other": figure(10.0, 10.0), "dead": figure(0.0)}, "forerun")
    assert found == {"other": {"ratio": 2.5, "by_block": [2.0, 3.0]}}


# -- servers -----------------------------------------------------------------------------------------------------------


def test_a_server_is_a_command_or_an_address() -> None:
    own = own_command("target", "draft", {"--draft-ctx": None, "--draft-vocabulary": 9, "--draft-requantise": True})
    assert own == (
        "{python}", "-m", "forerun", "serve", "target", "--port", "{port}", "--draft", "draft", "--draft-vocabulary",
        "9", "--draft-requantise",
    )  # fmt: skip
    assert parse_server("forerun", own) == ServerSpec("forerun", own)
    assert parse_server("b = serve -p {port} 'a b'", own) == ServerSpec("b", ("serve", "-p", "{port}", "a b"))
    assert parse_server("c=http://127.0.0.1:9/", own) == ServerSpec("c", (), "http://127.0.0.1:9", None)
    assert parse_server("c=http://127.0.0.1:9 pid=12", own).pid == 12


@pytest.mark.parametrize(
    "text", ["", "b", "b=", "=c {port}", "b=serve", "b=serve '{port}", "b=http://h pid=x", "b=http://h 3"]
)
def test_what_is_no_server_is_refused(text: str) -> None:
    with pytest.raises(ParameterError, match="server"):
        parse_server(text, ())


def test_a_server_that_ends_at_once_is_told_with_its_words() -> None:
    spec = parse_server("""b={python} -c "print('no such model at {port}')" """, ())
    with pytest.raises(ForerunError) as raised, Server(spec, {}):
        pass
    assert "has ended before it answered" in str(raised.value)
    assert "no such model at" in str(raised.value)


def test_a_command_that_does_not_exist_and_an_address_where_nobody_is() -> None:
    with pytest.raises(ForerunError, match="cannot be started"), Server(parse_server("b=/no/such/file {port}", ()), {}):
        pass
    with pytest.raises(ForerunError, match="nothing answers"), Server(parse_server("b=http://127.0.0.1:1", ()), {}):
        pass


def test_placeholders_are_filled_and_the_process_ends_with_the_test() -> None:
    words = "b={python} -m http.server {port} --bind 127.0.0.1 -d {target}/{clients}"
    # It has neither /health nor /v1/models, so it never counts as ready: what it is told is looked at, and its end.
    server = Server(parse_server(words, ()), {"target": "/tmp", "clients": 4})
    server._start()
    process = server._process
    assert process is not None
    assert server.words[-1] == "/tmp/4"
    assert server.words[3] == server.url.rpartition(":")[2]
    assert resident_mb(process.pid) is None or resident_mb(process.pid) >= 0
    server.__exit__()
    assert process.poll() is not None
    assert server.said() == ""


# -- a block -----------------------------------------------------------------------------------------------------------


def test_a_block_counts_what_all_clients_got_and_cuts_the_rest() -> None:
    script = saying(chunk("a", tokens=1), chunk("b", "stop", tokens=2), total(2), DONE)
    with Fake(script, owner="forerun") as fake, Server(ServerSpec("it", url=fake.url), {}) as server:
        assert (server.is_exact, server.model) == (True, "it")
        block = run_block(server, [ASK, Ask("short", "x", 16, 3)], Turns(2), 3, 0.5)
    assert block.seconds > 0
    assert {one.end for one in block.answers} <= {"done", "cut"}
    assert [one.sent for one in block.answers] == sorted(one.sent for one in block.answers)
    asked = [body["prompt"] for body in fake.bodies]
    assert abs(asked.count("x") - asked.count(ASK.prompt)) <= 1, "all take turns at one list"


def test_a_client_that_is_refused_does_not_ask_without_a_pause() -> None:
    with Fake(saying(), status=429) as fake, Server(ServerSpec("it", url=fake.url), {}) as server:
        block = run_block(server, [ASK], Turns(1), 2, 0.2)
    assert {one.end for one in block.answers} == {"failed"}
    assert level_figures([block])["errors"] == len(block.answers) >= 2
