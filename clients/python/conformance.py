"""The worker that the conformance test of pipe workers drives: each kind of job is one case."""

import datetime, os, signal, sys, threading, time
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from punctual_worker import cancel, dead, retry, snooze, work


def begun(job):
    """Makes a file, since notes are stored now and then only."""
    with open(job.json()["begun"], "w") as file:
        file.write("begun\n")


def threads(job):
    """Enqueues from threads, beside one that looks whether the run has to end. Returns how many jobs there are."""
    over = threading.Event()

    def watch():
        while not over.is_set() and not job.cancelled:
            time.sleep(0)

    with ThreadPoolExecutor(9) as pool:
        pool.submit(watch)
        try:
            return len(set(pool.map(lambda i: job.enqueue("next", i, queue="other")["id"], range(300))))
        finally:
            over.set()


def forked(job):
    """Returns how many calls a forked process is refused."""
    calls = [lambda: job.cancelled, lambda: job.log("a"), lambda: job.progress(1), lambda: job.enqueue("next", queue="other")]
    pid, refused = os.fork(), 0
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    for call in calls:
        try:
            call()
        except RuntimeError:
            refused += 1
    os._exit(refused)


def handle(job):
    print("this goes to stderr")
    match job.kind:
        case "result":
            return {"id": job.id, "queue": job.queue, "attempt": job.attempt, "tags": job.tags, "got": job.json()}
        case "length":
            return {"length": len(job.payload), "sum": sum(job.payload)}
        case "bytes":
            return b"\x00\xff"
        case "retry":
            raise retry("busy")
        case "later":
            raise retry("busy", after=60)
        case "pause":
            raise retry("busy", after=60, pause=True)
        case "snooze":
            raise snooze(60)
        case "dead":
            raise dead("no such user")
        case "cancel":
            raise cancel()
        case "fail":
            raise RuntimeError("it broke")
        case "notes":
            job.progress(1, 2, "half")
            job.log("a line")
        case "enqueue":
            return {"status": job.enqueue("next", {"a": 1}, queue="other")["status"]}
        case "refused":
            job.enqueue("next", queue="")
        case "threads":
            return threads(job)
        case "forked":
            return forked(job)
        case "odd":
            return {"at": datetime.datetime.now()}
        case "polite":
            begun(job)
            while not job.cancelled:
                time.sleep(0.01)
            raise retry(f"ended early: {job.cancelled}")
        case "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            begun(job)
            time.sleep(600)
        case "slow":
            begun(job)
            while not os.path.exists(job.json()["until"]):
                time.sleep(0.01)
        case "crash":
            print("last words", file=sys.stderr)
            os._exit(3)
        case "garbage":
            os.write(job._pipe.fd, b"Hello, world\n")
            time.sleep(600)
        case "half":
            os.write(job._pipe.fd, b"\x00\x00\x00\x09{")
            os._exit(0)


work(handle)
