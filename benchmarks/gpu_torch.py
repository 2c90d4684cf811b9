"""Contestant: the same step or forward pass on PyTorch, with the package `adapters`, on a GPU.

python benchmarks/gpu_torch.py --work=step-text-adapters-bfloat16-32x128 --compile=default

A step in bfloat16 is autocast's; a forward pass holds its weights in the precision.
"""

import argparse

import torch
import transformers

import torch_bert
import worker
import workload

_CLASSES = {
    "text": transformers.BertForSequenceClassification,
    "squad": transformers.BertForQuestionAnswering,
}
_NAMES = {
    "input_ids": "input_ids",
    "attention_mask": "input_mask",
    "token_type_ids": "segment_ids",
    "labels": "label_ids",
    "start_positions": "start_positions",
    "end_positions": "end_positions",
}


def build(work, sizes, device):
    """Returns (the model in training mode, its batch) of a `workload.GpuWork`."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        **sizes, num_labels=workload.NUM_LABELS, attn_implementation="sdpa"
    )
    model = _CLASSES[work.task](config)
    model = torch_bert.adapted(model) if work.method == "adapters" else model.train()
    arrays = workload.gpu_features(work, sizes["vocab_size"])
    batch = {
        name: torch.from_numpy(arrays[ours]).long().to(device)
        for name, ours in _NAMES.items()
        if ours in arrays
    }
    return model.to(device), batch


def stepper(model, batch, precision):
    """Returns a function that trains a step without waiting for it, and returns the loss."""
    optimizer, trained = torch_bert.optimizer_of(model)

    def step():
        with torch_bert.autocast(precision, batch["input_ids"].device.type):
            loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def predictor(model, batch, precision):
    """Returns a function that computes the probabilities without waiting for them."""
    model.eval().to(getattr(torch, precision))
    batch = {name: values for name, values in batch.items() if name != "labels"}

    @torch.inference_mode()
    def predict():
        return model(**batch).logits.softmax(-1)

    return predict


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", required=True, help="name of a `workload.GpuWork`")
    parser.add_argument("--model", choices=sorted(workload.MODELS), default="bert-base")
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--compile", help="mode of torch.compile")
    parser.add_argument("--steps", type=int, default=workload.GPU_STEPS)
    arguments = parser.parse_args()
    work, device = workload.work_of(arguments.work), "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high" if arguments.tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = arguments.tf32
    model, batch = build(work, workload.MODELS[arguments.model], device)
    if arguments.compile:
        model.compile(mode=arguments.compile)
    once = (stepper if work.kind == "step" else predictor)(model, batch, work.precision)

    def run():
        for _ in range(arguments.steps):
            if arguments.compile:
                torch.compiler.cudagraph_mark_step_begin()
            result = once()
        return result.cpu()

    facts = {"version": "PyTorch " + torch.__version__}
    worker.serve(run, facts=facts, memory=torch.cuda.max_memory_allocated)


if __name__ == "__main__":
    main()
