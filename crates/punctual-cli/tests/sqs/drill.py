"""The drill: senders and receivers in processes of their own, and a server that is killed with SIGKILL at random times.

    drill.py PROGRAM STORE [--kills N] [--messages N] [--senders N] [--receivers N] [--seed N] [--steal]

Each message has a number. A sender repeats a send that failed, so a message may be in the queue twice. A receiver repeats a
deletion that failed. Some messages are poison: receivers give them back, until the server moves them to a dead-letter queue, which has
a receiver of its own. At the end:

* each number whose send was accepted was received and deleted, from one of the queues, or it counts as lost
* no message was received after an accepted deletion that was within the message's visibility timeout
* no message was received that was not sent
* each poison message is a dead letter, and once

A fault ends the program with status 1. With --steal, one more process receives and deletes some messages in secret: the drill must
then report them as lost, or it shows nothing.
"""

import argparse
import collections
import http.client
import json
import multiprocessing
import pathlib
import random
import sys
import tempfile
import time

from server import Server, credentials, end_in_order
from signed import Connection, Refused

REGION = "us-east-1"
BATCH = 10
# How long a received message stays hidden, in seconds. Longer than a kill and a restart, so that few deletions come too late.
VISIBILITY_SECONDS = 20
# How long one call may take, in seconds. Longer than a long poll.
CALL_SECONDS = 30
# After an error, in seconds.
PAUSE_SECONDS = 0.05
# How long all of it may take at most, in seconds: a limit for a server that hangs, plus a time for each message.
HANG_SECONDS = 300
SECONDS_PER_MESSAGE = 0.01
# How long a kill waits at most after its share of the messages was handled, in seconds.
KILL_SPREAD_SECONDS = 0.3
# One batch in so many is sent as single messages.
ALONE_EVERY = 20
# One message in so many is poison.
POISON_EVERY = 50
# How often a message is received before it is a dead letter.
RECEIVES_MAX = 3


class Shared:
    """What all processes see: a byte for each message, and counters."""

    def __init__(self, messages):
        self.messages = messages
        self.sent = multiprocessing.RawArray("b", messages)
        self.deleted = multiprocessing.RawArray("b", messages)
        self.progress = multiprocessing.Value("L", 0)
        self.senders_left = multiprocessing.Value("L", 0)
        self.stop = multiprocessing.Event()

    def add(self, number):
        with self.progress.get_lock():
            self.progress.value += number


def again(connection, shared, counts, what, target, **parameters):
    """Calls until there is an answer. Counts failures: `what-failed`. Returns None when the drill is stopped."""
    while not shared.stop.is_set():
        try:
            return connection.call(target, **parameters)
        except (OSError, http.client.HTTPException):
            counts[f"{what} failed"] += 1
        except Refused as refused:
            # A server that starts or stops may say so. Any other refusal is a fault.
            if refused.status < 500:
                raise
            counts[f"{what} refused"] += 1
        time.sleep(PAUSE_SECONDS)
    return None


def send(connection, shared, url, numbers, counts):
    """Sends messages of these numbers until each is accepted."""
    entries = {str(i): {"Id": str(i), "MessageBody": f"message {i}"} for i in numbers}
    while entries:
        if len(entries) == 1:
            ((key, entry),) = entries.items()
            if again(connection, shared, counts, "send", "SendMessage", QueueUrl=url, MessageBody=entry["MessageBody"]) is None:
                return
            accepted = [key]
        else:
            answer = again(connection, shared, counts, "send", "SendMessageBatch", QueueUrl=url, Entries=list(entries.values()))
            if answer is None:
                return
            accepted = [entry["Id"] for entry in answer.get("Successful", [])]
            counts["entries failed"] += len(answer.get("Failed", []))
        for key in accepted:
            shared.sent[int(key)] = 1
            del entries[key]
        shared.add(len(accepted))


def sender(connect, shared, url, numbers, results):
    connection, counts = connect(), collections.Counter()
    for at in range(0, len(numbers), BATCH):
        some = numbers[at : at + BATCH]
        if (at // BATCH) % ALONE_EVERY:
            send(connection, shared, url, some, counts)
        else:
            for number in some:
                send(connection, shared, url, [number], counts)
    with shared.senders_left.get_lock():
        shared.senders_left.value -= 1
    results.put((counts, []))


def is_poison(number):
    return number % POISON_EVERY == 0


def batch_of(messages, **more):
    return [{"Id": key, "ReceiptHandle": message["ReceiptHandle"], **more} for key, message in messages.items()]


def receiver(connect, shared, url, spares_poison, results):
    """Receives and deletes until the drill is stopped. Notes each receive and each deletion, with their times."""
    connection, counts, log = connect(), collections.Counter(), []
    while not shared.stop.is_set():
        asked = time.monotonic()
        answer = again(
            connection,
            shared,
            counts,
            "receive",
            "ReceiveMessage",
            QueueUrl=url,
            MaxNumberOfMessages=BATCH,
            WaitTimeSeconds=1,
            VisibilityTimeout=VISIBILITY_SECONDS,
        )
        found = (answer or {}).get("Messages", [])
        if not found:
            continue
        got = time.monotonic()
        numbers = {message["MessageId"]: int(message["Body"].removeprefix("message ")) for message in found}
        left = {str(i): message for i, message in enumerate(found)}
        poison = {key: left.pop(key) for key in list(left) if spares_poison and is_poison(numbers[left[key]["MessageId"]])}
        deleted = {}
        while left:
            answer = again(connection, shared, counts, "delete", "DeleteMessageBatch", QueueUrl=url, Entries=batch_of(left))
            if answer is None:
                break
            now = time.monotonic()
            counts["entries failed"] += len(answer.get("Failed", []))
            for entry in answer.get("Successful", []):
                message = left.pop(entry["Id"])
                # A later deletion may be of a stale receipt, which is accepted and changes nothing.
                deleted[message["MessageId"]] = now if now - asked < VISIBILITY_SECONDS else None
                counts["deletions that came late"] += deleted[message["MessageId"]] is None
        if poison:
            # One that was not given back is visible again after its timeout.
            entries = batch_of(poison, VisibilityTimeout=0)
            again(connection, shared, counts, "change", "ChangeMessageVisibilityBatch", QueueUrl=url, Entries=entries)
        for message in found:
            number = numbers[message["MessageId"]]
            log.append((url, number, message["MessageId"], got, deleted.get(message["MessageId"])))
            if deleted.get(message["MessageId"]):
                shared.deleted[number] = 1
        shared.add(len(deleted))
    results.put((counts, log))


def thief(connect, shared, url):
    """Receives and deletes one batch, and notes nothing."""
    connection, counts = connect(), collections.Counter()
    found = []
    while not found and not shared.stop.is_set():
        answer = again(connection, shared, counts, "receive", "ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=BATCH, WaitTimeSeconds=1)
        found = (answer or {}).get("Messages", [])
    if found:
        entries = batch_of({str(i): message for i, message in enumerate(found)})
        again(connection, shared, counts, "delete", "DeleteMessageBatch", QueueUrl=url, Entries=entries)


def left_over(connection, shared, url, counts):
    """Returns how many messages are in the queue, in all states."""
    names = [f"ApproximateNumberOfMessages{what}" for what in ("", "NotVisible", "Delayed")]
    found = again(connection, shared, counts, "look", "GetQueueAttributes", QueueUrl=url, AttributeNames=names)
    return sum(int(found["Attributes"][name]) for name in names)


def watch(server, shared, connection, urls, kills, seed, children):
    """Kills the server at random times until all kills are done, then waits until nothing is left. Returns the seconds it was away."""
    dice, counts, away = random.Random(seed), collections.Counter(), []
    whole = 2 * shared.messages
    at = sorted(dice.uniform(0.02, 0.95) for _ in range(kills))
    end = time.monotonic() + HANG_SECONDS + SECONDS_PER_MESSAGE * shared.messages
    while time.monotonic() < end:
        died = [child for child in children if child.exitcode not in (None, 0)]
        if died:
            raise RuntimeError(f"{died[0].name} ended with status {died[0].exitcode}")
        if at and shared.progress.value >= at[0] * whole:
            at.pop(0)
            time.sleep(dice.uniform(0, KILL_SPREAD_SECONDS))
            begin = time.monotonic()
            server.kill()
            server.start()
            away.append(time.monotonic() - begin)
            print(f"killed at {100 * shared.progress.value / whole:.0f} %, away for {away[-1]:.2f} s", flush=True)
        elif not at and not shared.senders_left.value and not any(left_over(connection, shared, url, counts) for url in urls):
            return away
        else:
            time.sleep(0.01 if at else 0.2)
    print(f"gave up after {HANG_SECONDS + SECONDS_PER_MESSAGE * shared.messages:.0f} s")
    return away


def judge(shared, counts, log, url):
    """Prints the figures, and returns the faults."""
    numbers = {number for _, number, *_ in log}
    copies = collections.defaultdict(list)
    for queue, number, message, got, gone in log:
        copies[queue, message].append((got, gone))
    sent = [i for i in range(shared.messages) if shared.sent[i]]
    lost = [i for i in sent if not shared.deleted[i] and i not in numbers]
    kept = [i for i in sent if not shared.deleted[i] and i in numbers]
    dead = {number for queue, number, *_ in log if queue != url}
    returned = [
        message
        for message, times in copies.items()
        if any(got > gone for got, _ in times for _, gone in times if gone is not None)
    ]
    messages = {message: number for queue, number, message, *_ in log if queue == url}
    twice = sum(1 for message, number in messages.items() if len(copies[url, message]) > 1 and not is_poison(number))
    again = len(messages) - len(set(messages.values()))
    print(f"sent {len(sent)} of {shared.messages}, deleted {sum(shared.deleted)}, received {len(log)} times, dead letters {len(dead)}")
    print(f"lost {len(lost)}, received after their deletion {len(returned)}, received twice {twice}, sent twice {again}")
    print(", ".join(f"{what} {counts[what]}" for what in sorted(counts) if counts[what]) or "no call failed")
    faults = []
    for what, found in (
        ("were sent and never received", lost),
        ("were received and not deleted in time", kept if counts["deletions that came late"] < len(kept) else []),
        ("were received and never sent", [i for i in numbers if not 0 <= i < shared.messages]),
        ("were received after they were deleted", returned),
        ("were never sent", [i for i in range(shared.messages) if not shared.sent[i]]),
        ("were poison and are no dead letters", [i for i in sent if is_poison(i) and i not in dead and i not in lost]),
    ):
        if found:
            faults.append(f"{len(found)} messages {what}, first {found[:5]}")
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("store")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--senders", type=int, default=2)
    parser.add_argument("--receivers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--steal", action="store_true", help="plant a loss, which must be found")
    options = parser.parse_args()
    print(f"{options.messages} messages, {options.kills} kills, seed {options.seed}", flush=True)

    key, secret = credentials(options.program, options.store)
    log_file = pathlib.Path(tempfile.mkdtemp(prefix="drill-")) / "server.log"
    begin = time.monotonic()
    with Server.punctual(options.program, options.store, log_file) as server:

        def connect():
            return Connection(server.endpoint, key, secret, REGION, CALL_SECONDS)

        shared, results = Shared(options.messages), multiprocessing.Queue()
        dead = connect().call("CreateQueue", QueueName="drill-dead")["QueueUrl"]
        arn = connect().call("GetQueueAttributes", QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": RECEIVES_MAX})
        url = connect().call("CreateQueue", QueueName="drill", Attributes={"RedrivePolicy": policy})["QueueUrl"]
        shared.senders_left.value = options.senders
        shares = [range(i, options.messages, options.senders) for i in range(options.senders)]
        children = [multiprocessing.Process(target=sender, args=(connect, shared, url, share, results)) for share in shares]
        receivers = [(url, True)] * options.receivers + [(dead, False)]
        children += [multiprocessing.Process(target=receiver, args=(connect, shared, *which, results)) for which in receivers]
        thieves = [multiprocessing.Process(target=thief, args=(connect, shared, url))] if options.steal else []
        for child in children + thieves:
            child.daemon = True
            child.start()
        try:
            away = watch(server, shared, connect(), [url, dead], options.kills, options.seed, children)
        finally:
            shared.stop.set()
        counts, log = collections.Counter(), []
        for _ in children:
            some, lines = results.get(timeout=CALL_SECONDS * 2)
            counts.update(some)
            log += lines
        for child in children:
            child.join(CALL_SECONDS)
        took = time.monotonic() - begin
        server.stop()
    faults = judge(shared, counts, log, url)
    print(json.dumps({"seconds": round(took, 1), "kills": len(away), "away_seconds": round(sum(away), 2)}))
    if len(away) < options.kills:
        faults.append(f"only {len(away)} of {options.kills} kills were done")
    for fault in faults:
        print(f"FAILED: {fault}")
    print(f"{0 if faults else 1} passed, {len(faults)} failed")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    end_in_order()
    main()
