"""Messages per second of a server that speaks SQS, and of emulators beside it, by one client program, in one run.

    speed.py [NAME=COMMAND…] [--clients N] [--messages N] [--bytes N] [--rounds N]

Environment: SQS_ENDPOINT, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY. The command of an emulator has `{port}`.

Each client is a process with one connection. All begin a phase at the same time: sends of one message, sends of ten, and receives of
up to ten with their deletion. A client signs each request and reads each answer, on the same cores as the server. The best round of
each phase counts. Servers take turns, round by round.
"""

import argparse
import contextlib
import multiprocessing
import os
import shlex
import sys
import tempfile
import time
import uuid

from server import Server, end_in_order, free_port
from signed import Connection

REGION = "us-east-1"
BATCH = 10
CALL_SECONDS = 120
# How often in a row a client may receive nothing before it ends, if messages are missing.
EMPTY_MAX = 5


def send(connection, url, number, body):
    for _ in range(number):
        connection.call("SendMessage", QueueUrl=url, MessageBody=body)
    return number


def send_batch(connection, url, number, body):
    entries = [{"Id": str(i), "MessageBody": body} for i in range(BATCH)]
    for _ in range(number // BATCH):
        answer = connection.call("SendMessageBatch", QueueUrl=url, Entries=entries)
        assert len(answer["Successful"]) == BATCH, answer
    return number // BATCH * BATCH


def receive_and_delete(connection, url, number, body):
    done = empty = 0
    while empty < EMPTY_MAX and done < number:
        found = connection.call("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=BATCH, WaitTimeSeconds=0).get("Messages", [])
        if not found:
            empty += 1
            continue
        empty = 0
        entries = [{"Id": str(i), "ReceiptHandle": message["ReceiptHandle"]} for i, message in enumerate(found)]
        answer = connection.call("DeleteMessageBatch", QueueUrl=url, Entries=entries)
        assert len(answer["Successful"]) == len(found), answer
        done += len(found)
    return done


PHASES = {"send": send, "send 10": send_batch, "receive 10 and delete": receive_and_delete}


def client(phase, endpoint, url, number, body, barrier, results):
    connection = connect(endpoint)
    connection.call("GetQueueUrl", QueueName=url.rsplit("/", 1)[1])
    barrier.wait()
    begin = time.monotonic()
    done = PHASES[phase](connection, url, number, body)
    results.put((done, begin, time.monotonic()))


def measure(phase, endpoint, url, clients, messages, body):
    """Returns the messages per second of one phase, from the first client's begin to the last one's end."""
    barrier, results = multiprocessing.Barrier(clients), multiprocessing.Queue()
    arguments = (phase, endpoint, url, messages // clients, body, barrier, results)
    children = [multiprocessing.Process(target=client, args=arguments, daemon=True) for _ in range(clients)]
    for child in children:
        child.start()
    answers = [results.get(timeout=CALL_SECONDS * 10) for _ in children]
    for child in children:
        child.join()
    done = sum(number for number, *_ in answers)
    assert done == messages // clients * clients or phase.startswith("receive"), f"{phase}: {done} of {messages} messages"
    assert done >= messages * 0.9, f"{phase}: only {done} of {messages} messages"
    return done / (max(end for *_, end in answers) - min(begin for _, begin, _ in answers))


def connect(endpoint):
    return Connection(endpoint, os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"], REGION, CALL_SECONDS)


def round_of(endpoint, options):
    """Measures all phases once. Returns the rate of each: of two receives, the better one."""
    connection, rates = connect(endpoint), dict.fromkeys(PHASES, 0.0)
    for phases in (("send", "receive 10 and delete"), ("send 10", "receive 10 and delete")):
        url = connection.call("CreateQueue", QueueName=f"speed-{uuid.uuid4().hex[:8]}")["QueueUrl"]
        for phase in phases:
            rate = measure(phase, endpoint, url, options.clients, options.messages, "x" * options.bytes)
            rates[phase] = max(rates[phase], rate)
        connection.call("DeleteQueue", QueueUrl=url)
    return rates


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("emulators", nargs="*", metavar="NAME=COMMAND")
    parser.add_argument("--clients", type=int, default=4, help="processes with a connection each (default: 4)")
    parser.add_argument("--messages", type=int, default=20_000, help="of each phase and round (default: 20,000)")
    parser.add_argument("--bytes", type=int, default=200, help="of each message (default: 200)")
    parser.add_argument("--rounds", type=int, default=3, help="of each server (default: 3)")
    options = parser.parse_args()
    # Each client has a number of whole batches, so that all phases have as many messages.
    options.messages -= options.messages % (options.clients * BATCH)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="speed-"))
        servers = {"punctual": os.environ["SQS_ENDPOINT"]}
        for emulator in options.emulators:
            name, command = emulator.split("=", 1)
            port = free_port()
            server = Server(shlex.split(command.replace("{port}", str(port))), port, f"{folder}/{name}.log")
            servers[name] = stack.enter_context(server).endpoint
        best = {name: dict.fromkeys(PHASES, 0.0) for name in servers}
        for number in range(options.rounds):
            for name, endpoint in servers.items():
                begin = time.monotonic()
                rates = round_of(endpoint, options)
                print(f"round {number + 1} of {options.rounds}, {name}: {time.monotonic() - begin:.0f} s", file=sys.stderr)
                best[name] = {phase: max(best[name][phase], rates[phase]) for phase in PHASES}
    print(f"messages/s, best of {options.rounds} rounds, {options.clients} clients, {options.messages} messages of {options.bytes} bytes")
    first = next(iter(servers))
    for phase in PHASES:
        figures = []
        for name in servers:
            ratio = f" ({best[first][phase] / best[name][phase]:.1f} times)" if name != first else ""
            figures.append(f"{name} {best[name][phase]:,.0f}{ratio}")
        print(f"{phase:>22}: {', '.join(figures)}")


if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    end_in_order()
    main()
