"""Letters between the worker and the event loop: all come, in order, with as few wake-ups as there are steps."""

from __future__ import annotations

import asyncio
import threading

from forerun.server.jobs import Bell, Mailbox, Opened

LETTER = Opened()


def test_many_letters_of_one_step_ring_once() -> None:
    async def run() -> None:
        loop, rings = asyncio.get_running_loop(), list[object]()
        bell = Bell(loop)
        ring = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *given: rings.append(given) or ring(*given)  # type: ignore
        try:
            boxes = [Mailbox(bell) for _ in range(16)]
            reading = [asyncio.ensure_future(box.get()) for box in boxes]
            await asyncio.sleep(0)
            for number, box in enumerate(boxes):
                box.put(number, LETTER)
            assert [letter and letter[0] for letter in await asyncio.gather(*reading)] == list(range(16))
            assert len(rings) == 1
            boxes[0].put(7, LETTER)
            assert await boxes[0].get() == (7, LETTER)
            await asyncio.sleep(0)
            assert len(rings) == 2, "what comes later rings again"
        finally:
            del loop.call_soon_threadsafe

    asyncio.run(run())


def test_no_letter_of_any_thread_is_lost() -> None:
    num, boxes_of = 2_000, 4

    async def run() -> None:
        bell = Bell(asyncio.get_running_loop())
        boxes = [Mailbox(bell) for _ in range(boxes_of)]

        def write(box: Mailbox) -> None:
            for number in range(num):
                box.put(number, LETTER)

        threads = [threading.Thread(target=write, args=(box,)) for box in boxes]
        for thread in threads:
            thread.start()

        async def read(box: Mailbox) -> list[int]:
            return [letter[0] for _ in range(num) if (letter := await box.get(900.0)) is not None]

        found = await asyncio.gather(*(read(box) for box in boxes))
        for thread in threads:
            thread.join()
        for box in boxes:
            box.close()
        assert found == [list(range(num))] * boxes_of

    asyncio.run(run())


def test_who_waits_too_long_is_told_and_may_wait_on() -> None:
    async def run() -> None:
        box = Mailbox(Bell(asyncio.get_running_loop()))
        assert [await box.get(0.01) for _ in range(3)] == [None] * 3
        box.put(1, LETTER)
        assert await box.get(0.01) == (1, LETTER)
        waiting = asyncio.ensure_future(box.get(900.0))
        await asyncio.sleep(0.03)  # the timer of the one before goes off meanwhile
        assert not waiting.done()
        box.put(2, LETTER)
        assert await waiting == (2, LETTER)
        box.close()

    asyncio.run(run())


def test_a_reader_that_is_cancelled_leaves_the_letters_and_no_timer() -> None:
    async def run() -> None:
        box = Mailbox(Bell(asyncio.get_running_loop()))
        waiting = asyncio.ensure_future(box.get(900.0))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert waiting.cancelled()
        box.put(3, LETTER)
        assert await box.get() == (3, LETTER)
        box.close()
        assert box._timer is None

    asyncio.run(run())


def test_a_loop_that_is_closed_hears_nothing() -> None:
    async def make() -> Mailbox:
        return Mailbox(Bell(asyncio.get_running_loop()))

    box = asyncio.run(make())
    box.put(0, LETTER)
    box.put(1, LETTER)
    assert len(box._letters) == 2
