"""Runs jobs of punctual: `punctual work --exec 'python3 worker.py' --keep 4`. The protocol is in docs/pipe-workers.md.

    from punctual_worker import work, retry

    def handle(job):
        if not deliver(job.json()):
            raise retry("the receiver is busy", after=5)

    work(handle)
"""

import json, os, select, struct, sys, threading, traceback

TEXT_MAX = 4096  # characters of an error or a line; the store keeps less
RESULT_MAX = 64 * 1024


class Verdict(Exception):
    """Ends a run. Any other exception is a retry by the job's backoff."""

    def __init__(self, **frame):
        super().__init__(frame.get("error", frame["type"]))
        self.frame = {name: value for name, value in frame.items() if value is not None}


def retry(error, after=None, pause=None):
    """Retries after so many seconds, or by the job's backoff. `pause=True`: its group waits as well, or its queue."""
    return Verdict(type="retry", error=text(error), after_ms=None if after is None else millis(after), pause=pause and True)


def snooze(after):
    """Runs the job again after so many seconds. No attempt is counted."""
    return Verdict(type="snooze", after_ms=millis(after))


def dead(error):
    return Verdict(type="dead", error=text(error))


def cancel():
    return Verdict(type="cancel")


def text(value):
    return str(value)[:TEXT_MAX].encode("utf-8", "replace").decode()


def count(n):
    return min(max(0, int(n)), 2**53)


def millis(seconds):
    return count(round(seconds * 1000))


class Job:
    """A job and its run. The fields of its frame are attributes: `id`, `kind`, `attempt`, `headers`, … `payload` has bytes."""

    def __init__(self, pipe, frame, payload):
        self.__dict__.update({"group": None, "tags": [], "headers": {}}, **frame)
        self.payload, self._pipe = payload, pipe

    def json(self):
        return json.loads(self.payload)

    @property
    def cancelled(self):
        """Why the run has to end soon: "timeout", "cancelled" or "stop"; else None."""
        self._pipe.look()
        return self._pipe.cancelled.get(self.run)

    def progress(self, done=None, total=None, message=None):
        numbers = {name: count(n) for name, n in (("done", done), ("total", total)) if n is not None}
        notes = numbers if message is None else dict(numbers, message=text(message))
        self._pipe.write(dict(notes, type="progress", run=self.run))

    def log(self, line):
        self._pipe.write({"type": "log", "run": self.run, "text": text(line)})

    def enqueue(self, kind, payload=None, **options):
        """Enqueues a job: the fields of a line of `punctual push --batch`. Returns the store's answer."""
        return self._pipe.enqueue(dict(options, kind=kind, payload=payload))


class Pipe:
    def __init__(self):
        # Frames come and go on a copy of stdin, so that no other code and no other process reads or writes there.
        self.fd, self.buffer, self.frames, self.cancelled = os.dup(0), bytearray(), [], {}
        self.calls, self.loop, self.lock, self.pid = 0, None, threading.Lock(), os.getpid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        # What is printed shows at once.
        sys.stdout.reconfigure(line_buffering=True)

    def write(self, frame, body=b""):
        if os.getpid() != self.pid:
            raise RuntimeError("a forked process cannot speak for the job of its parent")
        header = json.dumps(dict(frame, bytes=len(body)) if body else frame).encode()
        data = memoryview(struct.pack(">I", len(header)) + header + body)
        with self.lock:
            while data:
                data = data[os.write(self.fd, data) :]

    def fill(self):
        """Waits for bytes, and keeps the frames that are whole. Ends the process when its worker is gone."""
        more = os.read(self.fd, 1 << 16)
        if not more:
            os._exit(0)
        self.buffer += more
        while len(self.buffer) >= 4:
            start = 4 + struct.unpack_from(">I", self.buffer)[0]
            if len(self.buffer) < start:
                return
            frame = json.loads(self.buffer[4:start])
            end = start + frame.get("bytes", 0)
            if len(self.buffer) < end:
                return
            body = bytes(self.buffer[start:end])
            del self.buffer[:end]
            if frame["type"] == "cancel" and not self.loop:
                self.cancelled[frame["run"]] = frame["reason"]
            else:
                self.frames.append((frame, body))

    def look(self):
        while select.select([self.fd], [], [], 0)[0]:
            self.fill()

    def next(self, wanted):
        while True:
            for at, (frame, _) in enumerate(self.frames):
                if wanted(frame):
                    return self.frames.pop(at)
            self.fill()

    def call(self, job):
        self.calls += 1
        self.write({"type": "enqueue", "call": self.calls}, json.dumps(job).encode())
        return self.calls

    def enqueue(self, job):
        if self.loop:
            return self.loop.call(job)
        call = self.call(job)
        return answer(self.next(lambda frame: frame.get("call") == call)[0])


def answer(frame):
    if frame["type"] == "refused":
        raise ValueError(f"{frame['code']}: {frame['message']}")
    return frame


def end(pipe, job, result, error):
    """Writes the verdict of a run."""
    frame, body = {"type": "done"}, b""
    try:
        if error is not None:
            raise error
        if result is not None:
            body = result if isinstance(result, bytes) else json.dumps(result, allow_nan=False).encode()
            frame["content_type"] = "application/octet-stream" if isinstance(result, bytes) else "application/json"
        if len(body) > RESULT_MAX:
            frame, body = dead(f"the job was done, but its result has {len(body)} bytes, and {RESULT_MAX} is the most").frame, b""
    except Verdict as verdict:
        frame = verdict.frame
    except BaseException as error:
        traceback.print_exception(type(error), error, error.__traceback__, file=sys.stderr)
        try:
            frame = {"type": "retry", "error": text(f"{type(error).__name__}: {error}")}
        except Exception:
            frame = {"type": "retry", "error": type(error).__name__}
    pipe.write(dict(frame, run=job.run), body)
    pipe.cancelled.pop(job.run, None)


def work(handler):
    """Runs one job after the other until the worker ends."""
    pipe = Pipe()
    pipe.next(lambda frame: frame["type"] == "hello")
    pipe.write({"type": "ready", "protocol": 1})
    while True:
        frame, body = pipe.next(lambda frame: frame["type"] in ("job", "stop"))
        if frame["type"] == "stop":
            return
        job, result, error = Job(pipe, frame, body), None, None
        try:
            result = handler(job)
        except Exception as e:
            error = e
        end(pipe, job, result, error)
