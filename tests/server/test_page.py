"""The playground, in real Chromium: what it shows is what the server said, and nothing of it is ever run."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.programs import find_program
from tests.server.serving import Serving, scripted_llm, slow_llm, wait_for

from forerun.llm import LLM
from forerun.server.page import playground

PATIENCE_MS = 600_000
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
PROMPT = "the water is"

in_browser = pytest.mark.needs("chromium")


# -- without a browser -------------------------------------------------------------------------------------------------


def test_the_page_is_one_file_that_asks_nobody_else() -> None:
    text, _ = playground()
    assert len(text) < 40_000, "light"
    assert set(re.findall(r"https?://[^\"'\s]+", text)) == {"http://www.w3.org/2000/svg"}, "a name, not an address"
    assert not re.findall(r"(?:src|href)=[\"'](?!data:)", text)
    assert "@import" not in text
    for name in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert name not in text, f"{name} makes markup or code of text"


def test_every_field_has_a_label() -> None:
    text, _ = playground()
    fields = re.findall(r"<(?:input|textarea|select)([^>]*)>", text)
    assert len(fields) > 8
    for attributes in fields:
        found = re.search(r'id="([\w-]+)"', attributes)
        is_inside = re.search(rf"<label[^>]*><\w+{re.escape(attributes)}>", text)
        assert is_inside or (found and f'for="{found[1]}"' in text), attributes


def test_the_headers_allow_this_script_and_style_alone(served: Serving) -> None:
    response = served.client.get("/")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(rule.split(" ", 1) for rule in response.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    for kind in ("script", "style"):
        (part,) = re.findall(rf"<{kind}>(.*?)</{kind}>", response.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        assert policy[f"{kind}-src"] == f"'sha256-{digest}'"
    with Serving(slow_llm(0.0), page=False) as bare:
        assert bare.client.get("/").status_code == 404


# -- in one ------------------------------------------------------------------------------------------------------------

Opened = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=find_program("chromium"), args=FLAGS, timeout=PATIENCE_MS)
        yield found
        found.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Opened]:
    """`open_page(serving, width=375)` -> the page. What it logs as an error, or asks of anybody else, fails the test;
    `may_fail` is for pages whose requests are refused."""
    contexts, wrong = [], []

    def opened(serving: Serving, width: int = 1200, may_fail: bool = False, **settings: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 800}, **settings)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("request", lambda one: one.url.startswith((serving.url, "data:")) or wrong.append(f"asked {one.url}"))
        if not may_fail:
            page.on("console", lambda line: line.type == "error" and wrong.append(line.text))
        page.goto(serving.url)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not wrong


def write(page: Any, text: str | None = PROMPT, kind: str = "Prompt", until: str = "Done.", **fields: Any) -> None:
    """Fill in the form, send it by keyboard, and wait until the page says so."""
    page.get_by_role("radio", name=kind).check()
    for name, value in fields.items():
        page.locator(f"#{name}").fill(str(value))
    box = page.locator("#text")
    if text is not None:
        box.fill(text)
    box.press("Control+Enter")
    page.locator("#note", has_text=until).wait_for()


def spans(page: Any, out: str = "#out-0") -> list[list[str]]:
    """(class, text) of what is shown."""
    return page.eval_on_selector_all(f"{out} > span", "found => found.map(one => [one.className, one.textContent])")


def joined(parts: list[list[str]]) -> list[tuple[str, str]]:
    """Neighbours of one kind as one."""
    found: list[tuple[str, str]] = []
    for kind, text in parts:
        if found and found[-1][0] == kind:
            found[-1] = kind, found[-1][1] + text
        elif text:
            found.append((kind, text))
    return found


@in_browser
def test_tokens_have_the_colours_of_their_origins_and_figures_are_the_servers(
    served: Serving, plain: LLM, open_page: Opened
) -> None:
    page = open_page(served)
    write(page, tokens=60, temperature=1, seed=3)
    chunks = served.stream(
        "/v1/completions", prompt=PROMPT, max_tokens=60, temperature=1, seed=3, speculation={"explain": True}
    )
    told = [token for chunk in chunks for token in chunk.get("forerun", {}).get("tokens", ())]
    names = {"decoded": "plain"}
    expected = [[names.get(token["origin"], token["origin"]), token["text"]] for token in told]
    assert joined(spans(page)) == joined(expected)
    assert {"plain", "drafted", "recovered"} <= {kind for kind, _ in expected}
    assert page.locator("#out-0").text_content() == plain.generate(PROMPT, max_tokens=60, temperature=1, seed=3).text
    colours = {
        kind: page.locator(f"#out-0 .{kind}").first.evaluate("one => getComputedStyle(one).backgroundColor")
        for kind in ("plain", "drafted", "recovered")
    }
    assert len(set(colours.values())) == 3
    own = chunks[-1]["speculation"]["choices"][0]
    assert page.locator("#rounds").text_content() == str(own["num_rounds"])
    assert page.locator("#per-pass").text_content() == f"{own['tokens_per_pass']:.2f}"
    assert page.locator("#accepted").text_content() == f"{round(100 * own['acceptance_rate'])} %"
    by_depth = ", ".join(f"{i + 1}: {int(100 * share + 0.5)} %" for i, share in enumerate(own["acceptance_by_depth"]))
    assert page.locator("#depths").get_attribute("aria-label") == f"Acceptance by depth: {by_depth}"
    assert page.locator("#depths rect").count() == len(own["acceptance_by_depth"])
    assert f"{own['num_rounds']} rounds in" in page.locator("#lengths").text_content()
    assert page.locator("#model").text_content() == "tiny"


@in_browser
def test_with_and_without_speculation_side_by_side(served: Serving, open_page: Opened) -> None:
    page = open_page(served)
    assert not page.locator("#plain").is_visible()
    page.get_by_label("Then without speculation").check()
    write(page, tokens=40, temperature=0)
    assert page.locator("#out-1").text_content() == page.locator("#out-0").text_content() != ""
    assert {kind for kind, _ in spans(page, "#out-1")} == {"plain"}
    assert re.fullmatch(r"\d+\.\d\d times the speed\. The same text\.", page.locator("#gain").text_content())
    for place in (0, 1):
        assert re.fullmatch(r"[\d.]+ /s", page.locator(f"#rate-{place}").text_content())
    sides = [page.locator(f"#out-{place}").bounding_box() for place in (0, 1)]
    assert sides[0]["y"] == sides[1]["y"], "beside each other"
    assert sides[0]["x"] < sides[1]["x"]


@in_browser
def test_a_chat_goes_on_and_begins_anew(served: Serving, open_page: Opened) -> None:
    page = open_page(served)
    bodies: list[Any] = []
    page.on("request", lambda one: one.method == "POST" and bodies.append(json.loads(one.post_data)))
    write(page, "hello", kind="Chat", tokens=12)
    first = page.locator("#out-0").text_content()
    assert page.locator("#asked").text_content() == "hello"
    write(page, "and now?", kind="Chat")
    assert bodies[1]["messages"] == [
        {"role": "user", "content": "hello"}, {"role": "assistant", "content": first},
        {"role": "user", "content": "and now?"},
    ]  # fmt: skip
    assert page.locator("#turns p").all_text_contents() == ["hello"]
    assert page.locator("#turns .out").text_content() == first
    page.get_by_role("button", name="New chat").click()
    page.get_by_text("More settings").click()
    write(page, "hi", kind="Chat", system="Be brief.")
    assert [one["role"] for one in bodies[2]["messages"]] == ["system", "user"]
    assert page.locator("#turns p").count() == 0


@in_browser
def test_escape_stops_and_the_server_hears_of_it(open_page: Opened) -> None:
    with Serving(slow_llm(0.02)) as serving:
        page = open_page(serving)
        page.get_by_role("radio", name="Prompt").check()
        page.locator("#tokens").fill("4000")
        page.locator("#text").fill("a")
        page.locator("#text").press("Control+Enter")
        page.locator("#out-0 span").nth(3).wait_for()
        assert page.get_by_role("button", name="Write").is_disabled()
        page.keyboard.press("Escape")
        page.locator("#note", has_text="Stopped.").wait_for()
        assert page.locator("#error").text_content() == ""
        assert len(page.locator("#out-0").text_content()) >= 4, "what was written stays"
        serving.wait_until_idle()
        assert page.get_by_role("button", name="Write").is_enabled()


@in_browser
def test_everything_is_reached_by_keyboard(served: Serving, open_page: Opened) -> None:
    page = open_page(served)
    assert page.evaluate("document.activeElement.id") == "text"
    reached = []
    for _ in range(9):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert reached[:6] == ["temperature", "tokens", "seed", "SUMMARY", "compare", "go"]
    assert "out-0" in reached, "so that a long text can be scrolled"
    outline = page.locator("#out-0").evaluate("one => (one.focus(), getComputedStyle(one).outlineStyle)")
    assert outline == "solid", "focus is seen"


@in_browser
def test_markup_is_shown_and_never_run(open_page: Opened) -> None:
    evil = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script><b>bold</b>"
    with Serving(scripted_llm(evil)) as serving:
        page = open_page(serving, may_fail=True)
        write(page, evil, kind="Chat", tokens=200)
        assert page.locator("#out-0").text_content() == evil
        assert page.locator("#asked").text_content() == evil
        refusal = {"status": 400, "content_type": "application/json", "body": json.dumps({"error": {"message": evil}})}
        page.route("**/v1/chat/completions", lambda route: route.fulfill(**refusal))
        page.locator("#text").fill("again")
        page.locator("#text").press("Control+Enter")
        page.locator("#error", has_text="does not take this").wait_for()
        assert evil in page.locator("#error").text_content()
        assert page.locator("main img, main script, main b:has-text('bold')").count() == 0
        assert page.evaluate("window.hacked") is None


@in_browser
def test_reasoning_is_shown_apart(open_page: Opened) -> None:
    with Serving(scripted_llm("<think>hmm</think>yes")) as serving:
        page = open_page(serving)
        write(page, "?", kind="Chat")
        assert joined(spans(page)) == [("plain reasoning", "hmm"), ("plain", "yes")]


@in_browser
def test_errors_are_told_in_plain_words(open_page: Opened) -> None:
    with Serving(scripted_llm("yes"), api_keys=("secret",)) as serving:
        page = open_page(serving, may_fail=True)
        error = page.locator("#error")
        page.locator("#model", has_text="an API key is needed").wait_for()
        page.locator("#go").click()
        error.get_by_text("This server wants an API key. Enter it under More settings.").wait_for()
        assert page.evaluate("document.activeElement.id") == "key"
        page.keyboard.type("secret")
        write(page, "?", kind="Chat")
        assert page.locator("#out-0").text_content() == "yes"
        assert error.text_content() == ""
        page.locator("#model", has_text="tiny").wait_for()

        def answered(until: str, **answer: Any) -> None:
            page.unroute_all()
            page.route("**/v1/chat/completions", lambda route: route.fulfill(**answer))
            page.locator("#text").fill("?")
            page.locator("#text").press("Control+Enter")
            error.get_by_text(until).wait_for()

        refusal = json.dumps({"error": {"message": "it has as many requests as it takes"}})
        answered("The server is busy: it has as many requests as it takes (in about 7 s)",
                 status=429, headers={"Retry-After": "7"}, content_type="application/json", body=refusal)  # fmt: skip
        answered("The server cannot answer: HTTP status 502", status=502, body="<html>")
        answered("The answer broke off before its end", status=200, content_type="text/event-stream",
                 body='data: {"choices":[{"index":0,"delta":{"content":"ye"}}]}\n\n')  # fmt: skip
        assert page.locator("#out-0").text_content() == "ye"
        page.unroute_all()
    page.locator("#text").fill("?")
    page.locator("#text").press("Control+Enter")
    error.get_by_text("The server cannot be reached. Is it still running?").wait_for()


@in_browser
def test_pings_and_pieces_of_events_are_read(open_page: Opened) -> None:
    """Comments between events, carriage returns, and letters of several bytes."""
    with Serving(scripted_llm("yes")) as serving:
        page = open_page(serving)
        body = ': ping\n\ndata: {"choices":[{"index":0,"delta":{"content":"grü"}}]}\r\n\r\n: ping\n\n'
        body += 'data: {"choices":[{"index":0,"delta":{"content":"ße 🙂"}}]}\n\ndata: [DONE]\n\n'
        answer = {"status": 200, "content_type": "text/event-stream", "body": body}
        page.route("**/v1/chat/completions", lambda route: route.fulfill(**answer))
        write(page, "?", kind="Chat")
        assert page.locator("#out-0").text_content() == "grüße 🙂"


@in_browser
def test_a_phone_needs_no_sideways_scrolling(served: Serving, open_page: Opened) -> None:
    page = open_page(served, width=375, has_touch=True, is_mobile=True)
    page.get_by_text("More settings").click()
    page.get_by_label("Then without speculation").check()
    write(page, tokens=40)
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    sides = [page.locator(f"#out-{place}").bounding_box() for place in (0, 1)]
    assert sides[1]["y"] > sides[0]["y"] + sides[0]["height"], "one below the other"
    for field in page.locator("input:not([type=radio]):not([type=checkbox]), textarea, select").all():
        assert float(field.evaluate("one => parseFloat(getComputedStyle(one).fontSize)")) >= 16, "else phones zoom in"
    for name in ("Write", "Stop"):
        assert page.get_by_role("button", name=name).bounding_box()["height"] >= 40, "a finger's width"


@in_browser
def test_light_and_dark(served: Serving, open_page: Opened) -> None:
    def brightness(page: Any) -> list[float]:
        """Of paper and ink."""
        return page.evaluate(
            "['backgroundColor', 'color'].map(name => getComputedStyle(document.body)[name].match(/[\\d.]+/g)"
            ".slice(0, 3).reduce((sum, one) => sum + Number(one), 0))"
        )

    light, dark = open_page(served, color_scheme="light"), open_page(served, color_scheme="dark")
    assert brightness(light)[0] > brightness(light)[1]
    assert brightness(dark)[0] < brightness(dark)[1]
    dark.get_by_label("Theme").select_option("Light")
    assert brightness(dark) == brightness(light)
    dark.reload()
    assert brightness(dark) == brightness(light), "the choice is remembered"
    dark.get_by_label("Theme").select_option("System")
    wait_for(lambda: brightness(dark)[0] < brightness(dark)[1])
