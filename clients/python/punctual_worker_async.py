"""The same for handlers that are coroutines, of which one child runs several at once:

    from punctual_worker_async import work

    async def handle(job):
        await deliver(job.json())

    work(handle, slots=100)

Start the worker with as many slots as all children have: `--keep 2 --slots 200`. A cancel raises `asyncio.CancelledError`.
`job.enqueue` is to be awaited.
"""

import asyncio, threading

from punctual_worker import CALLS, Job, Pipe, answer, cancel, dead, end, retry, snooze  # noqa: F401


class Loop:
    def __init__(self, pipe, handler):
        self.pipe, self.handler, self.runs, self.calls, self.stopped = pipe, handler, {}, {}, asyncio.Event()
        self.room, self.thread, self.home = asyncio.Semaphore(CALLS), threading.get_ident(), asyncio.get_running_loop()
        self.home.add_reader(pipe.fd, self.read)

    def read(self):
        self.pipe.fill()
        frames, self.pipe.frames = self.pipe.frames, []
        for frame, body in frames:
            if frame["type"] == "job":
                job = Job(self.pipe, frame, body)
                job.results = []
                task = asyncio.ensure_future(self.run(job))
                self.runs[job.run] = task
                # Also if it is cancelled before it begins.
                task.add_done_callback(lambda task, job=job: self.end(job, task))
            elif frame["type"] == "cancel" and frame["run"] in self.runs:
                self.pipe.cancelled[frame["run"]] = frame["reason"]
                self.runs[frame["run"]].cancel()
            elif frame["type"] == "stop":
                self.stopped.set()
            elif frame.get("call") in self.calls and not self.calls[frame["call"]].done():
                self.calls[frame["call"]].set_result(frame)

    def look(self):
        """Reads what has arrived, for a handler that does not await. In another thread, the loop reads."""
        while threading.get_ident() == self.thread and self.pipe.has_more():
            self.read()

    async def run(self, job):
        # Kept, since a task that ends right after a cancel has no result.
        job.results = [await self.handler(job)]

    async def call(self, job):
        if asyncio.get_running_loop() is not self.home:
            # A thread that runs a loop of its own: only this one may touch its futures.
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.call(job), self.home))
        async with self.room:
            number = self.pipe.call(job)
            self.calls[number] = self.home.create_future()
            try:
                return answer(await self.calls[number])
            finally:
                del self.calls[number], self.pipe.answers[number]

    def end(self, job, task):
        del self.runs[job.run]
        if job.results:
            return end(self.pipe, job, job.results[0], None)
        end(self.pipe, job, None, asyncio.CancelledError() if task.cancelled() else task.exception())


def work(handler, slots=100):
    """Runs up to `slots` jobs at once until the worker ends."""
    pipe = Pipe()
    pipe.next("hello")
    pipe.write({"type": "ready", "protocol": 1, "slots": slots})

    async def serve():
        pipe.loop = Loop(pipe, handler)
        await pipe.loop.stopped.wait()

    asyncio.run(serve())
