"""The three figures, and the line that is printed.

A queue brings:
    add_many(payloads)           adds jobs by its fastest documented way
    add(payload)                 adds one job in a transaction of its own
    add_in(connection, payload)  adds one job in the caller's transaction
    work(handler)                starts a worker in this process and gives a coroutine function that stops it
    processes()                  workers in processes of their own, as a context that gives what starts them
    connection()                 a connection of a writer, as a context
    UNSETTLED                    a query for whether any job is neither gone nor marked as done
"""

import argparse
import asyncio
import json
import time
from contextlib import AsyncExitStack

import psycopg

WARM_UP = 100


def payload(order: int = 4711) -> dict:
    """256 bytes as PostgreSQL prints them, as in our own figures; `order` tells one from another."""
    return {"order": order, "text": "x" * 230}


async def main(peer) -> None:
    """Measures what the arguments ask for and prints one line of JSON."""
    args = arguments()
    if args.figure == "worker":
        await peer.worker(args.database)
        return
    measure = {"drain": drain, "latency": latency, "write": write}[args.figure]
    async with await psycopg.AsyncConnection.connect(args.database, autocommit=True) as admin:
        await drop(admin, peer.SCHEMA)
        try:
            async with peer.open(args.database, admin) as queue:
                measured = await measure(queue, peer, admin, args)
            line = {
                "peer": peer.NAME,
                "version": peer.VERSION,
                "language": "Python",
                "figure": args.figure,
                **measured,
                "settings": peer.SETTINGS[args.figure],
            }
            print(json.dumps(line))
        finally:
            await drop(admin, peer.SCHEMA)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("figure", choices=["drain", "latency", "write", "worker"])
    parser.add_argument("--database", required=True)
    parser.add_argument("--events", type=int)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--writers", type=int)
    parser.add_argument("--transactions", type=int)
    return parser.parse_args()


async def drop(admin, schema: str) -> None:
    await admin.execute("SET client_min_messages = warning")
    await admin.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


async def settle(admin, schema: str) -> None:
    """Lets the server write out what it has, so that the figure does not pay for the filling."""
    cursor = await admin.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", [schema])
    for (table,) in await cursor.fetchall():
        await admin.execute(f'VACUUM ANALYZE {schema}."{table}"')
    await admin.execute("CHECKPOINT")


async def drain(queue, peer, admin, args) -> dict:
    for start in range(0, args.events, 1_000):
        await queue.add_many([payload() for _ in range(min(1_000, args.events - start))])
    await settle(admin, peer.SCHEMA)

    async with queue.processes() as start:
        began = time.perf_counter()
        start()
        while (await (await admin.execute(f"SELECT EXISTS ({queue.UNSETTLED})")).fetchone())[0]:
            await asyncio.sleep(0.005)
        seconds = time.perf_counter() - began
    return {"events": args.events, "seconds": seconds}


async def latency(queue, _peer, _admin, args) -> dict:
    count = round(args.rate * args.seconds)
    total = WARM_UP + count
    committed: dict[int, float] = {}
    started: dict[int, float] = {}
    handled = asyncio.Event()

    def handler(order: int) -> None:
        started[order] = time.perf_counter()
        if len(started) == total:
            handled.set()

    async def add(order: int) -> None:
        await queue.add(payload(order))
        committed[order] = time.perf_counter()

    stop = await queue.work(handler)
    began = time.perf_counter() + 1
    adding = []
    for order in range(total):
        await asyncio.sleep(max(0, began + order / args.rate - time.perf_counter()))
        adding.append(asyncio.create_task(add(order)))
    await asyncio.gather(*adding)
    await handled.wait()
    await stop()
    times = [max(0.0, started[i] - committed[i]) * 1_000 for i in range(WARM_UP, total)]
    return {"rate": args.rate, "count": count, **spread(times)}


def spread(times: list[float]) -> dict:
    times.sort()

    def at(share: float) -> float:
        return round(times[min(len(times) - 1, int(len(times) * share))], 3)

    return {"p50_ms": at(0.5), "p90_ms": at(0.9), "p99_ms": at(0.99), "max_ms": at(1)}


async def write(queue, peer, admin, args) -> dict:
    await admin.execute(f"CREATE TABLE {peer.SCHEMA}.business (id bigserial PRIMARY KEY, total bigint)")
    insert = f"INSERT INTO {peer.SCHEMA}.business (total) VALUES (%s)"

    async def one(connection) -> None:
        async with connection.transaction():
            await connection.execute(insert, [995], prepare=True)
            await queue.add_in(connection, payload())

    async with AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(queue.connection()) for _ in range(args.writers)]
        await asyncio.gather(*map(one, connections))
        await settle(admin, peer.SCHEMA)

        left = args.transactions

        async def writer(connection) -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await one(connection)

        began = time.perf_counter()
        await asyncio.gather(*map(writer, connections))
        seconds = time.perf_counter() - began
    return {"writers": args.writers, "transactions": args.transactions, "seconds": seconds}
