"""A stand-in for the session server: a gateway, a worker, and a worker in another session."""

import argparse
import signal
import socket
import subprocess
import sys
from pathlib import Path

SLEEPER = "import time; time.sleep(120)"

parser = argparse.ArgumentParser()
parser.add_argument("--bind", required=True)
parser.add_argument("--state", type=Path, required=True)
parser.add_argument("--device", required=True)
parser.add_argument("--exit-code", type=int, default=0)
parser.add_argument("--say", default="ready")
parser.add_argument("--leave-worker", action="store_true")
options = parser.parse_args()

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
host, _, port = options.bind.removeprefix("tcp://").rpartition(":")
listener = socket.create_server((host, int(port)))
workers = [
    subprocess.Popen([sys.executable, "-c", SLEEPER], start_new_session=own_session)
    for own_session in (False, True)
]
print(f"{options.say} tcp://{host}:{listener.getsockname()[1]}", flush=True)
signal.sigwait({signal.SIGTERM})
for worker in workers:
    if not options.leave_worker:
        worker.kill()
        worker.wait()
sys.exit(options.exit_code)
