"""procrastinate, with its asynchronous psycopg connector.

Settings from https://procrastinate.readthedocs.io: "Execute multiple jobs at the same time" (concurrency, and several
workers "each using their own process"), "Delete finished jobs", "Defer multiple jobs at once", "Use an external
connection".
"""

import asyncio
import contextlib
import importlib.metadata
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

import procrastinate
import psycopg

import shared

NAME = "procrastinate"
VERSION = importlib.metadata.version("procrastinate")
SCHEMA = "peer_procrastinate"
OPTIONS = f"-c search_path={SCHEMA}"
CONCURRENCY = 10
# A worker fetches its jobs one after the other, so that only more workers fetch faster.
PROCESSES = 2
WORKER = f"concurrency {CONCURRENCY}, delete_jobs=always, LISTEN/NOTIFY"
SETTINGS = {
    "drain": f"{PROCESSES} worker processes, each with {WORKER}; filled by batch_defer_async",
    "latency": f"1 worker, {WORKER}; added by defer_async",
    "write": "defer_async on the caller's connection",
}


class Queue:
    UNSETTLED = f"SELECT FROM {SCHEMA}.procrastinate_jobs"

    def __init__(self, app: procrastinate.App, database: str) -> None:
        self.app = app
        self.database = database
        self.handler: Callable[[int], None] = lambda _order: None

        @app.task(name="bench")
        async def bench(order: int, text: str) -> None:
            self.handler(order)

        self.task = bench

    async def add_many(self, payloads: list[dict]) -> None:
        await self.task.batch_defer_async(*payloads)

    async def add(self, payload: dict) -> None:
        await self.task.defer_async(**payload)

    async def add_in(self, connection: psycopg.AsyncConnection, payload: dict) -> None:
        await self.task.configure(connection=connection).defer_async(**payload)

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[psycopg.AsyncConnection]:
        connect = psycopg.AsyncConnection.connect
        async with await connect(self.database, autocommit=True, options=OPTIONS) as connection:
            yield connection

    async def work(self, handler: Callable[[int], None]) -> Callable[[], Awaitable[None]]:
        self.handler = handler
        worker = asyncio.create_task(self.run())

        async def stop() -> None:
            worker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await worker

        return stop

    async def run(self) -> None:
        await self.app.run_worker_async(
            concurrency=CONCURRENCY, delete_jobs="always", install_signal_handlers=False
        )

    @contextlib.asynccontextmanager
    async def processes(self) -> AsyncIterator[Callable[[], None]]:
        command = [sys.executable, __file__, "worker", "--database", self.database]
        pipe = asyncio.subprocess.PIPE
        processes = [
            await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe) for _ in range(PROCESSES)
        ]
        for process in processes:
            await process.stdout.readline()

        def start() -> None:
            for process in processes:
                process.stdin.write(b"go\n")

        try:
            yield start
        finally:
            for process in processes:
                process.kill()
                await process.wait()


@contextlib.asynccontextmanager
async def queue(database: str) -> AsyncIterator[Queue]:
    connector = procrastinate.PsycopgConnector(
        conninfo=database, kwargs={"options": OPTIONS}, min_size=4, max_size=CONCURRENCY + 2
    )
    app = procrastinate.App(connector=connector)
    async with app.open_async():
        yield Queue(app, database)


@contextlib.asynccontextmanager
async def open(database: str, admin: psycopg.AsyncConnection) -> AsyncIterator[Queue]:
    await admin.execute(f"CREATE SCHEMA {SCHEMA}")
    async with queue(database) as opened:
        await opened.app.schema_manager.apply_schema_async()
        yield opened


async def worker(database: str) -> None:
    """A process of a drain: reports that it is ready, waits for the start signal, then works until it is killed or its parent ends."""
    async with queue(database) as opened:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        running = asyncio.create_task(opened.run())
        await asyncio.to_thread(sys.stdin.read)
        running.cancel()


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    asyncio.run(shared.main(sys.modules["__main__"]))
