"""The floor: only a step's matrix products, one after another, in TensorFlow or PyTorch."""

import worker
import workload


def in_tensorflow(products, precision):
    """Returns a function that computes all products once, with our sessions' settings."""
    from adapter_bert.shell import environment  # noqa: F401  First: it sets TensorFlow's environment.

    # isort: split
    import tensorflow.compat.v1 as tf

    from adapter_bert.ops import devices

    tf.disable_eager_execution()
    matrices = {}

    def matrix(name, shape):
        # Variables, because TensorFlow would fold products of constants.
        if name not in matrices:
            value = tf.cast(tf.random.normal(shape), precision)
            matrices[name] = tf.get_variable(name, initializer=value)
        return matrices[name]

    results = [
        tf.matmul(matrix(*p.left), matrix(*p.right), p.transpose_left, p.transpose_right)
        for p in products
    ]
    session = tf.Session(config=devices.session_config())
    session.run(tf.global_variables_initializer())
    computed = [result.op for result in results]
    return (lambda: session.run(computed)), "TensorFlow " + tf.__version__


def in_torch(products, precision):
    """Returns a function that computes all products once, on all cores."""
    import os

    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.set_grad_enabled(False)
    shapes = dict(operand for p in products for operand in (p.left, p.right))
    matrices = {
        name: torch.randn(shape).to(getattr(torch, precision)) for name, shape in shapes.items()
    }

    def operand(name, transposed):
        return matrices[name].transpose(-1, -2) if transposed else matrices[name]

    pairs = [
        (operand(p.left[0], p.transpose_left), operand(p.right[0], p.transpose_right))
        for p in products
    ]

    def run():
        for left, right in pairs:
            torch.matmul(left, right)

    return run, "PyTorch " + torch.__version__


def main():
    parser = workload.parser(__doc__)
    parser.add_argument("--library", choices=["tensorflow", "torch"], required=True)
    parser.add_argument("--only_first", action="store_true", help="see workload.products")
    arguments = parser.parse_args()
    products = workload.products(
        workload.MODELS[arguments.model],
        backward=arguments.work == "step",
        only_first=arguments.only_first,
    )
    build = in_tensorflow if arguments.library == "tensorflow" else in_torch
    run, version = build(products, arguments.precision)
    flops = sum(product.flops for product in products)
    worker.serve(run, facts={"version": version, "flops": flops})


if __name__ == "__main__":
    main()
