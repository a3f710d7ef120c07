"""The tasks of `celery_case.py`, as a worker imports them. Each run of a task appends a line to a file, which the case reads.

Environment, besides that of `suite.py`: LEDGER (the file), PREFIX (of queues), PREDEFINED (the URL of the queue, or nothing to let
Celery create it), VISIBILITY (seconds).
"""

import os
import time
import urllib.parse

from celery import Celery

from ledger import note

ENDPOINT = urllib.parse.urlsplit(os.environ["SQS_ENDPOINT"])
KEY = os.environ["AWS_ACCESS_KEY_ID"]
SECRET = os.environ["AWS_SECRET_ACCESS_KEY"]
QUEUE = os.environ["PREFIX"] + "celery"

app = Celery(
    "celery_tasks",
    broker=f"sqs://{urllib.parse.quote(KEY, safe='')}:{urllib.parse.quote(SECRET, safe='')}@{ENDPOINT.netloc}",
)
app.conf.update(
    task_default_queue=QUEUE,
    task_ignore_result=True,
    # Both need a broker that broadcasts: on AWS that is SNS.
    worker_enable_remote_control=False,
    worker_send_task_events=False,
    broker_connection_retry_on_startup=True,
    broker_transport_options={
        "region": "us-east-1",
        "is_secure": False,
        "wait_time_seconds": 2,
        "visibility_timeout": int(os.environ.get("VISIBILITY", "60")),
        "queue_name_prefix": "",
    },
)
if os.environ.get("PREDEFINED"):
    app.conf.broker_transport_options["predefined_queues"] = {
        QUEUE: {"url": os.environ["PREDEFINED"], "access_key_id": KEY, "secret_access_key": SECRET}
    }


@app.task
def number(i):
    note("number", i)


@app.task
def at(sent):
    note("at", int((time.time() - sent) * 1000))


@app.task(bind=True, max_retries=3)
def flaky(self):
    note("flaky", self.request.retries)
    if self.request.retries < 2:
        raise self.retry(countdown=1)


@app.task(acks_late=True)
def stubborn(marker):
    """Waits as long as the marker exists: the case kills the worker meanwhile."""
    note("stubborn", os.getpid())
    while os.path.exists(marker):
        time.sleep(0.05)
    note("stubborn-done", os.getpid())
