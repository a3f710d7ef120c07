"""Unmodified Celery with its SQS transport (kombu) against a server that speaks SQS. See `suite.py` for how it is run.

The workers are processes of their own (`celery_tasks.py`).
"""

import collections
import contextlib
import importlib
import os
import pathlib
import sys
import tempfile
import time

import boto3

from ledger import Ledger
from suite import ENDPOINT, KEY, REGION, SECRET, case, equal, fresh, run
from workers import Worker

TASKS = 200
# How many messages a worker of two processes has at a time.
PREFETCHED = 8
# So many are sent after the first worker has stopped, which may have run all others by then.
KEPT_BACK = 20

folder = pathlib.Path(tempfile.mkdtemp(prefix="celery-"))
sqs = boto3.client("sqs", endpoint_url=ENDPOINT, region_name=REGION, aws_access_key_id=KEY, aws_secret_access_key=SECRET)


class Bench:
    """A queue, the tasks that are sent to it, and their ledger."""

    def __init__(self, name, predefined=False, visibility=10):
        self.prefix = fresh(name) + "-"
        self.ledger = Ledger(folder, name)
        self.log = folder / f"{name}.log"
        self.environment = {"PREFIX": self.prefix, "LEDGER": str(self.ledger.path), "VISIBILITY": str(visibility)}
        if predefined:
            queue = sqs.create_queue(QueueName=self.prefix + "celery", Attributes={"VisibilityTimeout": str(visibility)})
            self.environment["PREDEFINED"] = queue["QueueUrl"]
        # The module reads its settings when it is imported.
        os.environ.update(self.environment)
        sys.modules.pop("celery_tasks", None)
        self.tasks = importlib.import_module("celery_tasks")

    def worker(self, *options):
        command = ["celery", "-A", "celery_tasks", "worker", "--loglevel", "info", "--concurrency", "2"]
        command += ["--without-gossip", "--without-mingle", "--without-heartbeat", *options]
        return Worker(command, {**self.environment, "PREDEFINED": self.environment.get("PREDEFINED", "")}, self.log)

    def close(self):
        self.tasks.app.close()
        os.environ.pop("PREDEFINED", None)

    def left(self):
        """Returns how many messages the queue has, in all states."""
        url = sqs.get_queue_url(QueueName=self.prefix + "celery")["QueueUrl"]
        names = [f"ApproximateNumberOfMessages{what}" for what in ("", "NotVisible", "Delayed")]
        found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
        return sum(int(found[name]) for name in names)


def run_all(bench):
    """Sends tasks, stops the worker in their midst, and lets a second one do the rest."""
    for i in range(TASKS - KEPT_BACK):
        bench.tasks.number.delay(i)
    with bench.worker() as worker:
        worker.until("a quarter of the tasks has run", lambda: len(bench.ledger.lines("number")) >= TASKS // 4)
        worker.stop()
    before = len(bench.ledger.lines("number"))
    for i in range(TASKS - KEPT_BACK, TASKS):
        bench.tasks.number.delay(i)
    with bench.worker() as worker:
        worker.until("all tasks have run", lambda: len(set(bench.ledger.lines("number"))) == TASKS, 90)
        worker.until("no message is left", lambda: bench.left() == 0, 60)
        worker.stop()
    runs = collections.Counter(map(int, bench.ledger.lines("number")))
    equal([i for i in range(TASKS) if not runs[i]], [], f"tasks that never ran (the first worker ran {before})")
    # A worker that stops may not delete the last messages whose tasks it has run, with any server. They run again.
    again = [i for i in runs if runs[i] > 1]
    assert len(again) <= PREFETCHED and max(runs.values()) <= 2, f"{len(again)} tasks ran more than once: {again}"


@case
def celery_runs_200_tasks_of_a_queue_that_it_creates():
    with contextlib.closing(Bench("created")) as bench:
        run_all(bench)


@case
def celery_runs_200_tasks_of_a_predefined_queue():
    with contextlib.closing(Bench("predefined", predefined=True)) as bench:
        run_all(bench)


@case
def celery_keeps_a_countdown_and_retries():
    with contextlib.closing(Bench("later")) as bench, bench.worker() as worker:
        bench.tasks.at.apply_async((time.time(),), countdown=3)
        bench.tasks.flaky.delay()
        worker.until("the task has run three times", lambda: len(bench.ledger.lines("flaky")) == 3)
        worker.until("the task with a countdown has run", lambda: bench.ledger.lines("at"))
        worker.until("no message is left", lambda: bench.left() == 0)
        worker.stop()
        equal(bench.ledger.lines("flaky"), ["0", "1", "2"], "retries before each run")
        (late,) = bench.ledger.lines("at")
        assert 3_000 <= int(late) < 10_000, f"a task with a countdown of 3 s ran after {late} ms"


@case
def celery_runs_a_task_again_whose_worker_was_killed():
    with contextlib.closing(Bench("killed", visibility=5)) as bench:
        marker = folder / "marker"
        marker.touch()
        bench.tasks.stubborn.delay(str(marker))
        with bench.worker() as worker:
            worker.until("the task has begun", lambda: len(bench.ledger.lines("stubborn")) == 1)
            worker.kill()
        marker.unlink()
        with bench.worker() as worker:
            worker.until("another worker has run it", lambda: len(bench.ledger.lines("stubborn-done")) == 1)
            worker.until("no message is left", lambda: bench.left() == 0)
            worker.stop()
        equal(len(bench.ledger.lines("stubborn")), 2, "runs that were begun")


if __name__ == "__main__":
    run()
