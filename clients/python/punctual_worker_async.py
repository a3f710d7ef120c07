"""The same for handlers that are coroutines, of which one child runs several at once:

    from punctual_worker_async import work

    async def handle(job):
        await deliver(job.json())

    work(handle, slots=100)

Start the worker with as many slots as all children have: `--keep 2 --slots 200`. A cancel raises `asyncio.CancelledError`.
`job.enqueue` is to be awaited.
"""

import asyncio

from punctual_worker import Job, Pipe, answer, cancel, dead, end, retry, snooze  # noqa: F401


CALLS = 200  # enqueues at once; a worker allows 1,000


class Loop:
    def __init__(self, pipe, handler):
        self.pipe, self.handler, self.runs, self.calls, self.stopped = pipe, handler, {}, {}, asyncio.Event()
        self.room = asyncio.Semaphore(CALLS)
        asyncio.get_running_loop().add_reader(pipe.fd, self.read)

    def read(self):
        self.pipe.fill()
        frames, self.pipe.frames = self.pipe.frames, []
        for frame, body in frames:
            if frame["type"] == "job":
                job = Job(self.pipe, frame, body)
                task = asyncio.ensure_future(self.run(job))
                self.runs[job.run] = task
                # Also if it is cancelled before it begins.
                task.add_done_callback(lambda task, job=job: self.end(job, task))
            elif frame["type"] == "cancel" and frame["run"] in self.runs:
                self.runs[frame["run"]].cancel()
            elif frame["type"] == "stop":
                self.stopped.set()
            elif frame.get("call") in self.calls and not self.calls[frame["call"]].done():
                self.calls[frame["call"]].set_result(frame)

    async def run(self, job):
        return await self.handler(job)

    async def call(self, job):
        async with self.room:
            number = self.pipe.call(job)
            self.calls[number] = asyncio.get_running_loop().create_future()
            try:
                return answer(await self.calls[number])
            finally:
                del self.calls[number]

    def end(self, job, task):
        del self.runs[job.run]
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        end(self.pipe, job, None if error else task.result(), error)


def work(handler, slots=100):
    """Runs up to `slots` jobs at once until the worker ends."""
    pipe = Pipe()
    pipe.next(lambda frame: frame["type"] == "hello")
    pipe.write({"type": "ready", "protocol": 1, "slots": slots})

    async def serve():
        pipe.loop = Loop(pipe, handler)
        await pipe.loop.stopped.wait()

    asyncio.run(serve())
