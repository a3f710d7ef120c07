"""Runs jobs of punctual: `punctual work --exec 'python3 worker.py' --keep 4`. The protocol is in docs/pipe-workers.md.

    from punctual_worker import work, retry

    def handle(job):
        if not deliver(job.json()):
            raise retry("the receiver is busy", after=5)

    work(handle)
"""

import inspect, itertools, json, os, select, struct, sys, threading, traceback

TEXT_MAX = 4096  # characters of an error or a line; the store keeps less
RESULT_MAX = 64 * 1024
CALLS = 200  # enqueues at once; a worker allows 1,000


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
    """A job and its run. The fields of its frame are attributes: `id`, `kind`, `attempt`, `headers`, … `payload` has bytes.
    Threads of the handler may share it. A process that the handler forks may not: its calls raise RuntimeError."""

    def __init__(self, pipe, frame, payload):
        self.__dict__.update({"group": None, "tags": [], "headers": {}}, **frame)
        self.payload, self._pipe = payload, pipe

    def json(self):
        return json.loads(self.payload)

    @property
    def cancelled(self):
        """Why the run has to end soon: "timeout", "cancelled" or "stop"; else None."""
        return self._pipe.why(self.run)

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
        self.numbers, self.answers, self.room = itertools.count(1), {}, threading.Semaphore(CALLS)
        self.loop, self.lock, self.pid = None, threading.Lock(), os.getpid()
        # The thread that reads, and what it tells the others.
        self.reader, self.news = None, threading.Condition()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        # What is printed shows at once.
        sys.stdout.reconfigure(line_buffering=True)

    def own(self):
        """Refuses a forked process: it would take what its parent has to read."""
        if os.getpid() != self.pid:
            raise RuntimeError("a forked process cannot use the job of its parent")

    def write(self, frame, body=b""):
        self.own()
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
            with self.news:
                self.keep(frame, body)

    def keep(self, frame, body):
        if self.loop or frame["type"] in ("hello", "job", "stop"):
            self.frames.append((frame, body))
        elif frame["type"] == "cancel":
            self.cancelled[frame["run"]] = frame["reason"]
        elif frame.get("call") in self.answers:
            self.answers[frame["call"]] = frame

    def read(self, found, waits=True):
        """Returns what `found` finds. One thread reads at a time, and keeps what it gets for all; the others wait for it."""
        self.own()
        me = threading.get_ident()
        while True:
            try:
                with self.news:
                    while (it := found()) is None and waits and self.reader:
                        self.news.wait()
                    if it is not None or self.reader or not (waits or self.has_more()):
                        return it
                    self.reader = me
                self.fill()
            finally:
                if self.reader == me:
                    with self.news:
                        self.reader = None
                        self.news.notify_all()

    def has_more(self):
        return bool(select.select([self.fd], [], [], 0)[0])

    def why(self, run):
        """Returns why a run has to end, or None."""
        if self.loop:
            self.own()
            self.loop.look()
            return self.cancelled.get(run)
        return self.read(lambda: self.cancelled.get(run), waits=False)

    def next(self, *types):
        """Waits for a frame of these types."""

        def found():
            at = next((at for at, (frame, _) in enumerate(self.frames) if frame["type"] in types), None)
            return None if at is None else self.frames.pop(at)

        return self.read(found)

    def call(self, job):
        self.own()
        body, number = json.dumps(job).encode(), next(self.numbers)
        self.answers[number] = None
        self.write({"type": "enqueue", "call": number}, body)
        return number

    def enqueue(self, job):
        if self.loop:
            return self.loop.call(job)
        self.own()
        with self.room:
            number = self.call(job)
            try:
                return answer(self.read(lambda: self.answers[number]))
            finally:
                del self.answers[number]


def answer(frame):
    if frame["type"] == "refused":
        raise ValueError(f"{frame['code']}: {frame['message']}")
    return frame


def named(error):
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


def end(pipe, job, result, error):
    """Writes the verdict of a run. Without an error, its work is done, and no result makes it run again."""
    frame, body = {"type": "done"}, b""
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        # Its work is not done: nothing has run it.
        error = TypeError(f"the handler returned a {type(result).__name__}: await it, or use punctual_worker_async")
    if isinstance(error, Verdict):
        frame = error.frame
    elif error is not None:
        traceback.print_exception(type(error), error, error.__traceback__, file=sys.stderr)
        frame = {"type": "retry", "error": text(named(error))}
    elif result is not None:
        try:
            body = result if isinstance(result, bytes) else json.dumps(result, allow_nan=False).encode()
            frame["content_type"] = "application/octet-stream" if isinstance(result, bytes) else "application/json"
        except Exception as why:
            lost = text(f"the result was not kept, because it cannot be written as JSON: {named(why)}")
            print(f"job {job.id} is done, but {lost}", file=sys.stderr)
            pipe.write({"type": "log", "run": job.run, "text": lost})
        if len(body) > RESULT_MAX:
            frame, body = dead(f"the job was done, but its result has {len(body)} bytes, and {RESULT_MAX} is the most").frame, b""
    pipe.write(dict(frame, run=job.run), body)
    pipe.cancelled.pop(job.run, None)


def work(handler):
    """Runs one job after the other until the worker ends."""
    pipe = Pipe()
    pipe.next("hello")
    pipe.write({"type": "ready", "protocol": 1})
    while True:
        frame, body = pipe.next("job", "stop")
        if frame["type"] == "stop":
            return
        job, result, error = Job(pipe, frame, body), None, None
        try:
            result = handler(job)
        except Exception as e:
            error = e
        end(pipe, job, result, error)
