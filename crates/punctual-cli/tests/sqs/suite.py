"""A list of cases, and how they are run: `ok NAME` for each that passes. The first that fails ends the program with status 1.

Environment: SQS_ENDPOINT (http://HOST:PORT), AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY. Arguments of a program: names of cases
(default: all). It never makes a server: `scripts/sqs` does.
"""

import os
import sys
import time
import traceback
import uuid

ENDPOINT = os.environ["SQS_ENDPOINT"]
KEY = os.environ["AWS_ACCESS_KEY_ID"]
SECRET = os.environ["AWS_SECRET_ACCESS_KEY"]
REGION = "us-east-1"

# How long a case waits for something that must happen, in seconds. Nothing takes this long unless it is broken.
PATIENCE_SECONDS = 30

_cases = {}


def case(function):
    """Adds a function to the list. Its name is the name of the case."""
    _cases[function.__name__.replace("_", "-")] = function
    return function


def fresh(name, suffix=""):
    """Returns a name of a queue that no earlier run has used."""
    return f"{name}-{uuid.uuid4().hex[:8]}{suffix}"


def equal(found, expected, what):
    """Fails unless both are equal."""
    assert found == expected, f"{what}: expected {expected!r}, found {found!r}"


def until(what, probe):
    """Calls `probe` until it returns something true, and returns that. Fails after PATIENCE_SECONDS."""
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        found = probe()
        if found:
            return found
        assert time.monotonic() < end, f"after {PATIENCE_SECONDS} s, still not: {what}"
        time.sleep(0.1)


def run():
    """Runs the cases that the arguments name, or all."""
    names = sys.argv[1:] or list(_cases)
    unknown = [name for name in names if name not in _cases]
    if unknown:
        sys.exit(f"there is no case {unknown[0]}: the cases are {', '.join(_cases)}")
    for name in names:
        try:
            _cases[name]()
        except Exception as error:
            traceback.print_exc()
            message = str(error) or type(error).__name__
            print(f"FAILED {name}: {message}", flush=True)
            sys.exit(1)
        print(f"ok {name}", flush=True)
    print(f"{len(names)} passed, 0 failed", flush=True)
