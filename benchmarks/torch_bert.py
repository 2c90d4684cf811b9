"""Contestants: BERT on PyTorch, with the packages `adapters` or `peft`."""

import os

import torch
import transformers

import worker
import workload

# "eager" is faster than "sdpa", which has no kernel with dropout: by 15% for a step of MiniLM-L6,
# by 5% for BERT-Base's, and slightly without dropout.
ATTENTION = "eager"


def random_model(sizes):
    """Returns a BERT with a classifier and random weights; `sizes` is from `workload.MODELS`."""
    config = transformers.BertConfig(
        **sizes, num_labels=workload.NUM_LABELS, attn_implementation=ATTENTION
    )
    return transformers.BertForSequenceClassification(config)


def with_lora(model):
    """Adds LoRA of rank 8 to queries and values, trained with the head, in training mode."""
    import peft  # Not at the top: a process without LoRA should not import it.

    lora = peft.LoraConfig(task_type="SEQ_CLS", r=8, lora_alpha=16, lora_dropout=0.1)
    return peft.get_peft_model(model, lora).train()


def adapted(model):
    """Adds Houlsby's adapters, trained with LayerNorms and head, in training mode."""
    import adapters

    adapters.init(model)
    # The package's "houlsby" uses swish and a reduction factor of 16.
    houlsby = adapters.DoubleSeqBnConfig(
        non_linearity="gelu",
        reduction_factor=model.config.hidden_size / workload.ADAPTER_SIZE,
    )
    model.add_adapter("task", config=houlsby)
    model.train_adapter("task")
    for name, parameter in model.named_parameters():
        if "LayerNorm" in name or not name.startswith("bert."):
            parameter.requires_grad = True
    return model.train()


def optimizer_of(model):
    """Returns (AdamW of the trained parameters, the list of them)."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(trained, lr=workload.LEARNING_RATE, fused=True), trained


def autocast(precision, device="cpu"):
    """Returns the context for a forward pass in a precision."""
    return torch.autocast(device, torch.bfloat16, enabled=precision == "bfloat16")


def train_step(model, optimizer, trained, batch, precision):
    """Runs one step; returns the loss, a float."""
    with autocast(precision):
        loss = model(**batch).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(trained, 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()


def use_all_cores():
    """Sets one thread for each core that this process may use."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))


def random_batch(sizes):
    """Returns `workload.features` with HuggingFace's names."""
    arrays = workload.features(sizes["vocab_size"])
    names = {
        "input_ids": "input_ids",
        "attention_mask": "input_mask",
        "token_type_ids": "segment_ids",
        "labels": "label_ids",
    }
    return {name: torch.from_numpy(arrays[ours]).long() for name, ours in names.items()}


def _forward(model, batch, precision, cast_weights):
    """Returns a function that computes the probabilities once."""
    model.eval()
    batch = {name: values for name, values in batch.items() if name != "labels"}
    if cast_weights:
        model.to(getattr(torch, precision))

    @torch.inference_mode()
    def run():
        with autocast("float32" if cast_weights else precision):
            return model(**batch).logits.softmax(-1)

    return run


def main():
    parser = workload.parser(__doc__)
    parser.add_argument("--method", choices=["adapters", "lora"], default="adapters")
    parser.add_argument(
        "--cast_weights", action="store_true", help="hold the weights in --precision (forward)"
    )
    parser.add_argument("--compile", action="store_true", help="with torch.compile")
    arguments = parser.parse_args()
    use_all_cores()
    sizes = workload.MODELS[arguments.model]
    model = random_model(sizes)
    model = with_lora(model) if arguments.method == "lora" else adapted(model)
    if arguments.compile:
        model.compile()
    batch = random_batch(sizes)
    if arguments.work == "step":
        optimizer, trained = optimizer_of(model)

        def run():
            return train_step(model, optimizer, trained, batch, arguments.precision)
    else:
        run = _forward(model, batch, arguments.precision, arguments.cast_weights)
    worker.serve(run, facts={"version": "PyTorch " + torch.__version__})


if __name__ == "__main__":
    main()
