"""A proxy that holds each request back: slow_proxy.py TARGET_PORT DELAY_S; prints its own port.

It passes bytes on as they come, both ways, after the first bytes of each request have waited.
"""

import asyncio
import sys


async def passing(
    source: asyncio.StreamReader, target: asyncio.StreamWriter, delay_s: float
) -> None:
    try:
        while data := await source.read(65536):
            if delay_s and data.startswith((b"POST", b"GET")):
                await asyncio.sleep(delay_s)
            target.write(data)
            await target.drain()
    except OSError:
        pass
    finally:
        target.close()


async def main() -> None:
    port, delay_s = int(sys.argv[1]), float(sys.argv[2])

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(
            passing(reader, inner_writer, delay_s), passing(inner_reader, writer, 0.0)
        )

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


asyncio.run(main())
