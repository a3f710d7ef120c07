"""A worker of a framework as a real process."""

import os
import pathlib
import signal
import subprocess
import sys
import time

from suite import PATIENCE_SECONDS

# How long a worker may take from SIGTERM to its end, in seconds. Celery's processes sometimes wait 30 s for each other, with any server.
STOP_SECONDS = 90


class Worker:
    """A process group that runs a command. As a context, it ends with the block."""

    def __init__(self, command, environment, log):
        self.log = pathlib.Path(log)
        here = os.path.dirname(os.path.abspath(__file__))
        path = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
        with open(self.log, "ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *command],
                env={**os.environ, **environment, "PYTHONPATH": path},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def __enter__(self):
        return self

    def __exit__(self, error, *_):
        if self.process.poll() is None:
            self.kill()
        if error:
            print(f"{self.log}:\n{self.log.read_text()[-4000:]}", file=sys.stderr)

    def stop(self):
        """Sends SIGTERM, and waits until the worker has ended in good order."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(STOP_SECONDS)
        assert status == 0, f"the worker ended with status {status} after SIGTERM: {self.log.read_text()[-2000:]}"

    def kill(self):
        """Kills the worker and all of its children at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def until(self, what, probe, seconds=PATIENCE_SECONDS):
        """Waits until `probe` returns something true. Fails when the worker ends meanwhile."""
        end = time.monotonic() + seconds
        while not probe():
            assert self.process.poll() is None, f"the worker ended with status {self.process.returncode}, before {what}"
            assert time.monotonic() < end, f"after {seconds} s, still not: {what}"
            time.sleep(0.1)
