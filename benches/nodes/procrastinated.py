"""procrastinate: URL DEPTH JOBS AT_ONCE; prints the seconds that the first JOBS of DEPTH + JOBS jobs took."""

import asyncio
import logging
import os
import sys
import time

import procrastinate

logging.disable(logging.CRITICAL)


async def main(url, depth, jobs, at_once):
    connector = procrastinate.PsycopgConnector(conninfo=url, min_size=1, max_size=int(at_once) + 2)
    app = procrastinate.App(connector=connector)
    left = int(jobs)
    begun = 0.0

    @app.task(name="nothing")
    async def nothing():
        nonlocal left
        left -= 1
        if left == 0:
            print(time.monotonic() - begun, flush=True)
            os._exit(0)

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        waiting = int(depth) + int(jobs)
        for first in range(0, waiting, 1000):
            await nothing.batch_defer_async(*[{}] * min(1000, waiting - first))
        begun = time.monotonic()
        await app.run_worker_async(concurrency=int(at_once), install_signal_handlers=False)


asyncio.run(main(*sys.argv[1:]))
