"""A server as a process, which programs start, kill and start again on the same port.

    server.py PROGRAM STORE COMMAND…

starts `PROGRAM serve --sqs` on a store, makes a token, and runs a command beside it, with SQS_ENDPOINT, AWS_ACCESS_KEY_ID and
AWS_SECRET_ACCESS_KEY set. Its status is that of the command. The server must survive it, and end in good order.
"""

import json
import os
import pathlib
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time

# How long a server may take to answer after its start, in seconds. After a kill, it also recovers its store.
START_SECONDS = 60
# How long it may take from SIGTERM to its end, in seconds.
STOP_SECONDS = 60


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def credentials(program, store):
    """Makes a token that may do everything. Returns its access key and its secret access key."""
    command = [program, "--store", store, "token", "new", "sdk", "--role", "admin", "--sqs", "-o", "json"]
    made = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if made.returncode != 0:
        raise RuntimeError(f"no token was made:\n{made.stderr}")
    token = json.loads(made.stdout)
    return token["id"], token["secret_access_key"]


class Server:
    """A command that serves on a port. As a context, it ends with the block."""

    def __init__(self, command, port, log):
        self.command, self.port, self.log = command, port, pathlib.Path(log)
        self.endpoint = f"http://127.0.0.1:{port}"
        self.process = None
        self.start()

    @classmethod
    def punctual(cls, program, store, log):
        port = free_port()
        return cls([program, "--store", store, "serve", "--sqs", "--listen", f"127.0.0.1:{port}"], port, log)

    def start(self):
        """Starts the command, and waits until it accepts connections."""
        with open(self.log, "ab") as output:
            self.process = subprocess.Popen(self.command, stdout=output, stderr=output, start_new_session=True)
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                self._check(time.monotonic() < end)
                time.sleep(0.02)

    def _check(self, in_time):
        if self.process.poll() is not None or not in_time:
            said = self.log.read_text()[-2000:]
            ended = f"ended with status {self.process.returncode}" if self.process.returncode is not None else "does not answer"
            self.kill()
            raise RuntimeError(f"{shlex.join(map(str, self.command))} {ended}:\n{said}")

    def kill(self):
        """Kills the process and its children at once."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    def stop(self):
        """Sends SIGTERM, and waits until the server has ended in good order."""
        if self.process.poll() is not None:
            raise RuntimeError(f"the server ended by itself, with status {self.process.returncode}: see {self.log}")
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(STOP_SECONDS)
        if status != 0:
            raise RuntimeError(f"the server ended with status {status} after SIGTERM:\n{self.log.read_text()[-2000:]}")

    def __enter__(self):
        return self

    def __exit__(self, error, *_):
        if error and self.process.poll() is not None:
            print(f"{self.log}:\n{self.log.read_text()[-4000:]}", file=sys.stderr)
        self.kill()


def end_in_order():
    """Makes SIGTERM leave all blocks, so that no server stays behind."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def main():
    end_in_order()
    program, store, *command = sys.argv[1:]
    # The token exists before the server starts: without one, a server checks no signatures.
    key, secret = credentials(program, store)
    with tempfile.TemporaryDirectory(prefix="sqs-") as folder, Server.punctual(program, store, f"{folder}/server.log") as server:
        environment = {"SQS_ENDPOINT": server.endpoint, "AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}
        status = subprocess.run(command, env={**os.environ, **environment}).returncode
        if status != 0:
            print(f"the server said:\n{server.log.read_text()[-4000:]}", file=sys.stderr)
        server.stop()
    sys.exit(status)


if __name__ == "__main__":
    main()
