"""Contestant: a forward pass of PEFT whose batch mixes tasks, each with its LoRA (rank 8)."""

import torch

import torch_bert
import worker
import workload


def main():
    parser = workload.parser(__doc__, work=False, first_adapted_layer=False)
    parser.add_argument("--tasks", type=int, required=True, help="in the model and in each batch")
    arguments = parser.parse_args()
    torch_bert.use_all_cores()
    sizes = workload.MODELS[arguments.model]
    model = torch_bert.with_lora(torch_bert.random_model(sizes))
    names = ["default", *(f"task {index}" for index in range(1, arguments.tasks))]
    for name in names[1:]:
        model.add_adapter(name, model.peft_config["default"])
    model.eval().to(getattr(torch, arguments.precision))
    batch = torch_bert.random_batch(sizes)
    del batch["labels"]
    if arguments.tasks > 1:  # A single task has a faster way.
        batch["adapter_names"] = [names[i % len(names)] for i in range(workload.BATCH_SIZE)]

    @torch.inference_mode()
    def run():
        return model(**batch).logits.softmax(-1)

    worker.serve(run, facts={"version": "PyTorch " + torch.__version__})


if __name__ == "__main__":
    main()
