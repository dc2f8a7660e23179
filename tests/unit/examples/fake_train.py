"""A stand-in for train.py that prints made-up losses at a steady pace."""

import argparse
import json
import os
import sys
import threading

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--seed", type=int, required=True)
parser.add_argument("--losses", required=True)
parser.add_argument("--quiet", action="store_true")
parser.add_argument("--accuracy", type=float, default=0.97)
parser.add_argument("--differ-in", default="", help="session whose last loss differs")
parser.add_argument("--fail", action="store_true")
options = parser.parse_args()

session = os.environ["LUPINE_SESSION"]
assert os.environ["LUPINE_SERVER"].startswith("tcp://127.0.0.1:")
print("a line that is no record", flush=True)
pace = threading.Event()
for step in range(options.steps):
    pace.wait(0.01)
    loss = 1.0 / (step + 1)
    if session == options.differ_in and step == options.steps - 1:
        loss += 1e-16
    print(json.dumps({"step": step, "loss": loss.hex()}), flush=True)
if options.fail:
    sys.exit("out of luck")
print(json.dumps({"accuracy": options.accuracy, "replayed_calls": 7}), flush=True)
