"""Relays connections, delaying each byte by a number of milliseconds, like a long-distance network.

Usage: delay_relay.py FROM TO MILLISECONDS. FROM: a port, of all addresses, or the path of a Unix socket; TO: such a
path, or HOST:PORT. Prints a line once it listens. It reads no more from a side than the other side accepts, beyond the
bytes in flight.
"""
import asyncio
import sys

PIECE = 256 << 10
ON_THE_WAY = 32 << 20  # bytes in one direction, at most: those of 2.5 Gbit/s and 100 ms


async def relay(reader, writer, delay):
    loop = asyncio.get_running_loop()
    way = asyncio.Queue(ON_THE_WAY // PIECE)

    async def take():
        while True:
            piece = await reader.read(PIECE)
            await way.put((loop.time() + delay, piece))
            if not piece:
                return

    taking = asyncio.create_task(take())
    try:
        while True:
            due, piece = await way.get()
            await asyncio.sleep(max(due - loop.time(), 0))
            if not piece:
                return
            writer.write(piece)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        taking.cancel()
        writer.close()


async def main():
    here, there, delay = sys.argv[1], sys.argv[2], float(sys.argv[3]) / 1000

    async def connected(reader, writer):
        host, _, port = there.rpartition(":")
        inner_reader, inner_writer = await (asyncio.open_connection(host, int(port)) if host else asyncio.open_unix_connection(there))
        await asyncio.gather(relay(reader, inner_writer, delay), relay(inner_reader, writer, delay))

    server = await (asyncio.start_server(connected, None, int(here)) if here.isdigit() else asyncio.start_unix_server(connected, here))
    print("listening", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
