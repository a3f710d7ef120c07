"""The handler of the drill `children`. It notes the steps of each run in a file that the children of all workers append to."""

import os, time

from punctual_worker import retry, snooze, work

NOTES = os.open(os.environ["DRILL_NOTES"], os.O_WRONLY | os.O_APPEND)
WORKER, PID = os.environ["DRILL_WORKER"], os.getpid()


def note(what, job):
    # One write, so that no kill leaves half a line. All processes of a machine share this clock.
    line = f"{what} {job.id} {job.fence} {job.attempt} {PID} {WORKER} {time.monotonic_ns()}\n"
    os.write(NOTES, line.encode())


def is_first_time(job):
    try:
        os.close(os.open(f"{os.environ['DRILL_NOTES']}.{job.id}", os.O_CREAT | os.O_EXCL))
        return True
    except FileExistsError:
        return False


def run(job):
    if job.kind == "flaky" and job.attempt == 1:
        raise retry("not at the first attempt")
    if job.kind == "sleepy" and is_first_time(job):
        raise snooze(0.1)
    if job.kind == "parent":
        options = {"queue": job.queue, "idempotency_key": f"child of {job.id}", "headers": {"parent": job.id}}
        job.enqueue("plain", job.json(), **options)
    if job.kind == "slow":
        job.progress(0, 20, "begun")
        for _ in range(20):
            time.sleep(0.02)
            note("tick", job)
    else:
        time.sleep(job.json()["n"] % 10 / 1000)
    return job.json()


def handle(job):
    note("begin", job)
    try:
        return run(job)
    finally:
        note("end", job)


work(handle)
