"""Measures training steps and forward passes of ours and of PyTorch on a GPU.

    python benchmarks/gpu_program.py --folder=DIR      # with TensorFlow, on any machine
    python benchmarks/gpu.py --folder=DIR --jax=JAX_PYTHON --peers=PEERS_PYTHON

JAX_PYTHON has jax[cuda13]==0.11.2, PEERS_PYTHON has requirements-peers.txt with PyTorch for CUDA.
Ours is the program that XLA makes of the whole step; it runs through JAX, not in TensorFlow.
"""

import contextlib
import itertools
from concurrent import futures

import harness
import workload

_MODES = {"torch.compile": "default", "torch.compile, CUDA graphs": "reduce-overhead"}
_BUILDERS = 4  # Peers that build and compile at the same time.
_SCALE = 1000 / workload.GPU_STEPS  # From seconds of a call to milliseconds of a step.
_HOW = (
    f"Times are of one step or pass. A run is {workload.GPU_STEPS}, enqueued without waiting, after"
    " as many untimed ones."
)


def contestants(work, values):
    """Returns (ours, the peers), lists of `harness.Contestant` for a `GpuWork`."""
    ours, peers = [], []

    def add_ours(name, *options):
        program = f"--program={values.folder}/{work.name}"
        ours.append(harness.peer(f"ours, {name}", values.jax, "gpu_jax.py", program, *options))

    def add_peer(precision, compiled=None, *options):
        name = work._replace(precision=precision).name
        options = [f"--work={name}", f"--model={values.model}", *options]
        label = "TF32" if precision == "float32" and "--tf32" in options else precision
        if compiled:
            label, options = f"{label}, {compiled}", [*options, f"--compile={_MODES[compiled]}"]
        peers.append(harness.peer(f"PyTorch, {label}", values.peers, "gpu_torch.py", *options))

    if work.kind == "forward":
        add_ours("bfloat16", "--tf32")
        for precision in ("bfloat16", "float16"):
            for compiled in (None, "torch.compile, CUDA graphs"):
                add_peer(precision, compiled)
    elif work.precision == "bfloat16":
        add_ours("bfloat16", "--tf32")
        for compiled in (None, *_MODES):
            add_peer("bfloat16", compiled, "--tf32")
    else:
        add_ours("TF32", "--tf32")
        add_ours("float32")
        for compiled in (None, "torch.compile"):
            add_peer("float32", compiled, "--tf32")
        add_peer("float32")
    return ours, peers


def measure(values):
    """Returns a dict from each work without its precision to its list of `harness.Timing`."""
    with contextlib.ExitStack() as stack:

        def start(contestant):
            process = stack.enter_context(contextlib.closing(harness.Worker(contestant)))
            first = process.ask("first")["seconds"]
            harness.log(f"{' '.join(contestant.command[2:])}: {first:.1f} s (first)")
            return process, first

        # Ours one by one, as XLA chooses kernels by their time.
        with futures.ThreadPoolExecutor(1) as one, futures.ThreadPoolExecutor(_BUILDERS) as many:
            building = {}
            for work in workload.GPU_WORKS:
                ours, peers = contestants(work, values)
                tasks = [one.submit(start, each) for each in ours]
                tasks += [many.submit(start, each) for each in peers]
                building.setdefault(work._replace(precision=""), []).extend(tasks)
        return {
            work: _take_turns([task.result() for task in tasks], values.repeats)
            for work, tasks in building.items()
        }


def _take_turns(started, repeats):
    seconds = [[] for _ in started]
    for _ in range(repeats):
        for (process, _), times in zip(started, seconds):
            times.append(process.ask("run")["seconds"])
    return [
        harness.Timing(process.name, first, times, process.ask("memory")["bytes"], process.facts)
        for (process, first), times in zip(started, seconds)
    ]


def describe(model, work, timings):
    """Returns Markdown lines: the contestants, and how their losses compare with TensorFlow's."""
    base = next(timing.median for timing in timings if timing.name == "ours, bfloat16")
    kind = "training step" if work.kind == "step" else "forward pass"
    what = f"{model}, {work.task}, {work.method}, {work.batch_size} × {work.length}"
    header = ["contestant", "median", "min", "ours in bfloat16 takes", "peak memory"]
    rows = [
        [
            timing.name,
            f"{_SCALE * timing.median:.2f} ms",
            f"{_SCALE * min(timing.seconds):.2f} ms",
            f"{base / timing.median:.2f}×",
            f"{timing.bytes / 1e9:.2f} GB",
        ]
        for timing in timings
    ]
    lines = ["", f"### One {kind}: {what}", "", *harness.table(header, rows), ""]
    for timing in timings:
        pairs = list(zip(timing.facts.get("losses", []), timing.facts.get("expected", [])))
        if pairs:
            apart = max(abs(ours / expected - 1) for ours, expected in pairs)
            lines.append(f"- {timing.name}: losses at most {apart:.1e} from TensorFlow's on a CPU.")
    return lines


def main():
    parser = harness.arguments(__doc__)
    parser.add_argument("--folder", required=True, help="of gpu_program.py")
    parser.add_argument("--jax", required=True, help="Python with jax[cuda13]")
    parser.add_argument("--model", choices=sorted(workload.MODELS), default="bert-base")
    values = harness.parse(parser)
    measured = measure(values)
    lines = [line for item in measured.items() for line in describe(values.model, *item)]
    timings = list(itertools.chain.from_iterable(measured.values()))
    versions = harness.versions_of(timings)
    versions += [timing.facts["device"] for timing in timings if "device" in timing.facts]
    how = f"{values.repeats} runs of each contestant, in turns; medians. {_HOW}"
    harness.publish(values, f"gpu {values.model}", "On a GPU", lines[1:], versions, how)


if __name__ == "__main__":
    main()
