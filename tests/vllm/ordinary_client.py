"""An ordinary asyncio client, as load generators are: usage: ordinary_client.py URL USERS REQUESTS

Prints the TTFT of every request in seconds, as JSON. A user's next request follows its last. Runs
inside the vLLM environment, which has aiohttp.
"""

import asyncio
import json
import sys
import time

import aiohttp

PROMPT = "User {user} asks for the time of day, for turn {turn}: " + "and then once more " * 10


async def ask(session: aiohttp.ClientSession, url: str, prompt: str) -> float:
    """Time from the call to the first event, which is what such a client can see."""
    body = {
        "model": "tiny", "prompt": prompt, "max_tokens": 32, "ignore_eos": True, "stream": True,
    }  # fmt: skip
    began, first = time.perf_counter(), None
    async with session.post(f"{url}/v1/completions", json=body) as reply:
        reply.raise_for_status()
        async for line in reply.content:
            if first is None and line.startswith(b"data: "):
                first = time.perf_counter()
    assert first is not None, "a reply without an event"
    return first - began


async def main(url: str, users: int, requests: int) -> list[float]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def user(number: int) -> list[float]:
            prompts = [PROMPT.format(user=number, turn=i) for i in range(requests // users)]
            return [await ask(session, url, prompt) for prompt in prompts]

        every = await asyncio.gather(*map(user, range(users)))
        return [seconds for seconds_of_user in every for seconds in seconds_of_user]


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))))
