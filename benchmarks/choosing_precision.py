"""Measures what --precision=auto selects at each start, and the time of a step and a pass.

    python benchmarks/choosing_precision.py

MiniLM's sizes, batch 32, 128 tokens. During half of the starts, one core is busy with other work.
"""

import collections
import json
import statistics
import subprocess
import sys

import harness

_SIZES = (384, 1536)
_START = f"""
import json, sys, time
sys.path.insert(0, {harness.ROOT!r})
from adapter_bert.common import devices
start = time.perf_counter()
seconds = devices.product_seconds{_SIZES}
cost = time.perf_counter() - start
devices.product_seconds = lambda *sizes: seconds
chosen = devices.choose_precision("auto", False, {_SIZES})
print(json.dumps([seconds, cost, chosen]))
"""
_BUSY = "while True: pass"


def starts(count):
    """Returns `count` processes' results: a list of (seconds by precision, cost, choice)."""
    command = [sys.executable, "-c", _START]
    return [
        json.loads(subprocess.check_output(command, stderr=subprocess.DEVNULL))
        for _ in range(count)
    ]


def describe(name, runs):
    """Returns a row of medians of the products' milliseconds and the cost, and the choices."""
    full, half = (
        statistics.median(1000 * seconds[precision] for seconds, _, _ in runs)
        for precision in ("float32", "bfloat16")
    )
    cost = statistics.median(1000 * cost for _, cost, _ in runs)
    chosen = collections.Counter(choice for _, _, choice in runs)
    choices = ", ".join(f"{choice} {count} of {len(runs)}" for choice, count in chosen.items())
    return [
        name,
        f"{full:.2f} ms",
        f"{half:.2f} ms",
        f"{full / half:.2f}×",
        choices,
        f"{cost:.0f} ms",
    ]


def main():
    parser = harness.arguments(__doc__, peers=False)
    parser.add_argument(
        "--starts", type=int, default=10, help="processes that choose, of each kind"
    )
    values = harness.parse(parser)
    rows, versions = [], []
    for work, what in (("step", "a training step"), ("forward", "a forward pass")):
        timings = harness.take_turns(
            [
                harness.project_script(
                    name,
                    "own_model.py",
                    "--model=minilm-l6",
                    "--work=" + work,
                    "--precision=" + name,
                )
                for name in ("float32", "bfloat16")
            ],
            values.repeats,
        )
        full, half = (timing.median for timing in timings)
        rows.append([what, f"{full:.3g} s", f"{half:.3g} s", f"{full / half:.2f}×", "", ""])
        versions += harness.versions_of(timings)
    rows.append(describe("the start's measurement", starts(values.starts)))
    busy = subprocess.Popen([sys.executable, "-c", _BUSY])
    try:
        rows.append(describe("the same beside a busy core", starts(values.starts)))
    finally:
        busy.kill()
        busy.wait()
    header = ["", "float32", "bfloat16", "bfloat16 is faster", "chosen", "cost"]
    title = "What --precision=auto measures and chooses (MiniLM)"
    harness.publish(values, "choosing_precision", title, harness.table(header, rows), versions)


if __name__ == "__main__":
    main()
