"""The clients that people put in front: the official openai client and LangChain."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from tests.server.serving import PATIENCE_S, Serving, scripted_llm
from tests.server.test_calls import call_of
from tests.server.test_chats import HELLO, WEATHER

from forerun.llm import LLM


@pytest.fixture
def client(served: Serving) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", timeout=PATIENCE_S, max_retries=0)


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"


def test_chats_whole_and_streamed(client: openai.OpenAI, plain: LLM) -> None:
    expected = plain.generate(HELLO, seed=1, max_tokens=12)
    asked: Any = {"model": "tiny", "messages": HELLO, "seed": 1, "max_completion_tokens": 12}
    whole = client.chat.completions.create(**asked)
    assert whole.choices[0].message.content == expected.text
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 12
    text, usage = "", None
    for chunk in client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
    assert text == expected.text
    assert usage is not None
    assert usage.total_tokens == whole.usage.total_tokens


def test_completions_whole_and_streamed(client: openai.OpenAI, plain: LLM) -> None:
    expected = plain.generate("the water", temperature=0, max_tokens=12, logprobs=2)
    asked: Any = {"model": "tiny", "prompt": "the water", "temperature": 0, "max_tokens": 12}
    whole = client.completions.create(**asked, logprobs=2)
    assert whole.choices[0].text == expected.text
    assert whole.choices[0].logprobs is not None
    assert whole.choices[0].logprobs.token_logprobs == pytest.approx([one.logprob for one in expected.logprobs or ()])
    assert "".join(chunk.choices[0].text for chunk in client.completions.create(**asked, stream=True)) == expected.text


def test_the_async_client(served: Serving, plain: LLM) -> None:
    expected = [plain.generate(HELLO, seed=seed, max_tokens=9).text for seed in range(6)]

    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", timeout=PATIENCE_S) as one:

            async def stream(seed: int) -> str:
                asked: Any = {"model": "tiny", "messages": HELLO, "seed": seed, "max_tokens": 9, "stream": True}
                parts = await one.chat.completions.create(**asked)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in parts])

            return list(await asyncio.gather(*map(stream, range(6))))

    assert asyncio.run(ask()) == expected


def test_forced_calls_and_schemas(client: openai.OpenAI) -> None:
    asked: Any = {"model": "tiny", "messages": HELLO, "tools": [WEATHER], "tool_choice": "required", "seed": 3}
    asked["parallel_tool_calls"] = False  # a random model would call without end
    (call,) = client.chat.completions.create(**asked).choices[0].message.tool_calls or ()
    assert json.loads(call.function.arguments)["city"] in ("Oslo", "Rome")  # type: ignore[union-attr]
    with client.chat.completions.stream(**asked) as stream:
        final = stream.get_final_completion()
    (streamed,) = final.choices[0].message.tool_calls or ()
    assert streamed.function.arguments == call.function.arguments  # type: ignore[union-attr]


class Answer(BaseModel):
    good: bool
    many: bool


def test_pydantic_models_are_parsed(client: openai.OpenAI) -> None:
    asked: Any = {"model": "tiny", "messages": HELLO, "seed": 2, "max_tokens": 100}
    found = client.chat.completions.parse(**asked, response_format=Answer)
    assert isinstance(found.choices[0].message.parsed, Answer)


def test_errors_are_the_clients_own(client: openai.OpenAI) -> None:
    asked: Any = {"model": "tiny", "messages": HELLO}
    with pytest.raises(openai.NotFoundError, match="not served here"):
        client.chat.completions.create(**{**asked, "model": "gpt-9"})
    with pytest.raises(openai.BadRequestError, match="top_p"):
        client.chat.completions.create(**asked, top_p=2)
    with pytest.raises(openai.NotFoundError, match="not served here"):
        client.embeddings.create(model="tiny", input="a")
    with pytest.raises(openai.NotFoundError, match="/v1/chat/completions"):
        client.responses.create(model="tiny", input="a")


def langchain(serving: Serving, **settings: Any) -> ChatOpenAI:
    given = {"base_url": f"{serving.url}/v1", "api_key": "none", "model": "tiny", "temperature": 0, **settings}
    return ChatOpenAI(timeout=PATIENCE_S, **given)


def test_langchain(served: Serving, plain: LLM) -> None:
    chat = langchain(served, max_tokens=10)
    expected = plain.generate([{"role": "user", "content": "hi"}], temperature=0, max_tokens=10).text
    answer = chat.invoke("hi")
    assert answer.content == expected
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] == 10
    assert "".join(str(part.content) for part in chat.stream("hi")) == expected
    assert asyncio.run(chat.ainvoke("hi")).content == expected
    longer = chat.model_copy(update={"max_tokens": 400, "temperature": 1.0, "seed": 2})
    assert isinstance(longer.with_structured_output(Answer).invoke("hi"), Answer)
    forced = longer.bind_tools([WEATHER], tool_choice="required", parallel_tool_calls=False).invoke("hi")
    assert [call["name"] for call in forced.tool_calls] == ["weather"]


def test_langchain_finds_calls_that_the_model_chose() -> None:
    with Serving(scripted_llm("I look.\n" + call_of("weather", city="Oslo", days=1))) as one:
        bound = langchain(one).bind_tools([WEATHER])
        found = bound.invoke("hi")
        assert [(call["name"], call["args"]) for call in found.tool_calls] == [("weather", {"city": "Oslo", "days": 1})]
        streamed: Any = None
        for part in bound.stream("hi"):
            streamed = part if streamed is None else streamed + part
        assert [(call["name"], call["args"]) for call in streamed.tool_calls] == [
            ("weather", {"city": "Oslo", "days": 1})
        ]
