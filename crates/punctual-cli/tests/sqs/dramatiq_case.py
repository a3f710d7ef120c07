"""Unmodified Dramatiq with dramatiq_sqs against a server that speaks SQS. See `suite.py` for how it is run.

The workers are processes of their own (`dramatiq_tasks.py`).
"""

import collections
import importlib
import os
import pathlib
import tempfile
import time

from ledger import Ledger
from suite import case, equal, fresh, run
from workers import Worker

MESSAGES = 200
# So many are sent after the first worker has stopped, which may have run all others by then.
KEPT_BACK = 20
PROCESSES = 2
# Of all processes. Each handles one message at a time.
THREADS = 8
COMMAND = ["dramatiq", "dramatiq_tasks", "--processes", str(PROCESSES), "--threads", str(THREADS // PROCESSES)]

folder = pathlib.Path(tempfile.mkdtemp(prefix="dramatiq-"))
ledger = Ledger(folder, "runs")
environment = {"PREFIX": fresh("dramatiq"), "LEDGER": str(ledger.path)}
os.environ.update(environment)
tasks = importlib.import_module("dramatiq_tasks")


def worker():
    return Worker(COMMAND, environment, folder / "worker.log")


def left(queue):
    """Returns how many messages a queue has, in all states."""
    queue.load()
    names = [f"ApproximateNumberOfMessages{what}" for what in ("", "NotVisible", "Delayed")]
    return sum(int(queue.attributes[name]) for name in names)


@case
def dramatiq_runs_200_messages_and_stops_in_between():
    for i in range(MESSAGES - KEPT_BACK):
        tasks.number.send(i)
    with worker() as first:
        first.until("a quarter has run", lambda: len(ledger.lines("number")) >= MESSAGES // 4)
        first.stop()
    for i in range(MESSAGES - KEPT_BACK, MESSAGES):
        tasks.number.send(i)
    with worker() as second:
        second.until("all have run", lambda: len(set(ledger.lines("number"))) == MESSAGES, 90)
        second.until("no message is left", lambda: left(tasks.broker.queues["default"]) == 0)
        second.stop()
    runs = collections.Counter(map(int, ledger.lines("number")))
    equal([i for i in range(MESSAGES) if not runs[i]], [], "messages that never ran")
    # A worker deletes a message after it ran. A worker that stops may give back some that have run just now.
    again = [i for i in runs if runs[i] > 1]
    assert len(again) <= THREADS and max(runs.values()) <= 2, f"{len(again)} messages ran more than once: {again}"


@case
def dramatiq_delays_retries_and_keeps_dead_letters():
    tasks.at.send_with_options(args=(time.time(),), delay=3_000)
    tasks.failing.send()
    with worker() as process:
        process.until("the message with a delay has run", lambda: ledger.lines("at"))
        process.until("a message has failed three times", lambda: len(ledger.lines("failing")) == 3)
        process.until("it is a dead letter", lambda: left(tasks.broker.dead_letter_queues["default"]) == 1)
        process.until("no message is left", lambda: left(tasks.broker.queues["default"]) == 0)
        process.stop()
    (late,) = ledger.lines("at")
    assert 3_000 <= int(late) < 10_000, f"a message with a delay of 3 s ran after {late} ms"


if __name__ == "__main__":
    run()
