"""The tasks of `dramatiq_case.py`, as a worker imports them. Environment, besides that of `suite.py`: LEDGER and PREFIX."""

import os
import time

import dramatiq
from dramatiq.middleware import AgeLimit, Callbacks, Pipelines, Retries, ShutdownNotifications, TimeLimit
from dramatiq_sqs import SQSBroker

from ledger import note

broker = SQSBroker(
    namespace=os.environ["PREFIX"],
    dead_letter=True,
    visibility_timeout=60,
    middleware=[
        AgeLimit(),
        TimeLimit(),
        ShutdownNotifications(),
        Callbacks(),
        Pipelines(),
        Retries(min_backoff=1_000, max_backoff=1_000, max_retries=2),
    ],
    endpoint_url=os.environ["SQS_ENDPOINT"],
    region_name="us-east-1",
)
dramatiq.set_broker(broker)


@dramatiq.actor
def number(i):
    note("number", i)


@dramatiq.actor
def at(sent):
    note("at", int((time.time() - sent) * 1000))


@dramatiq.actor
def failing():
    note("failing", "x")
    raise RuntimeError("always")
