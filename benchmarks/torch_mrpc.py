"""Contestants: training and predicting on MRPC with PyTorch, complete processes.

Training is in random order, predicting in the file's order. Batches are padded to their longest
pair. Both tokenize all texts at once with HuggingFace's Rust tokenizer.
"""

import worker

worker.mark("python")

import argparse
import os

import torch
import transformers
from torch.nn.utils.rnn import pad_sequence

import mrpc
import torch_bert
import workload


def examples_of(rows, bert_dir):
    """Returns a list of dicts of unpadded lists, with the model's names."""
    tokenizer = transformers.BertTokenizerFast.from_pretrained(bert_dir)
    first, second, labels = zip(*rows)
    encoded = tokenizer(list(first), list(second), truncation=True, max_length=workload.LENGTH)
    names = ("input_ids", "attention_mask", "token_type_ids")
    return [
        dict(zip(names, values), labels=label)
        for *values, label in zip(*(encoded[name] for name in names), labels)
    ]


def collate(examples):
    """Returns a batch, padded to its longest example."""
    batch = {
        name: pad_sequence([torch.tensor(example[name]) for example in examples], batch_first=True)
        for name in ("input_ids", "attention_mask", "token_type_ids")
    }
    return dict(batch, labels=torch.tensor([example["labels"] for example in examples]))


def load(bert_dir):
    """Returns the pretrained model with adapters."""
    model = transformers.BertForSequenceClassification.from_pretrained(
        bert_dir, num_labels=workload.NUM_LABELS, attn_implementation=torch_bert.ATTENTION
    )
    return torch_bert.adapted(model)


def train(model, examples, values):
    """Trains one epoch with a mark per step; saves trained parameters and Adam's state."""
    loader = torch.utils.data.DataLoader(
        examples, workload.BATCH_SIZE, shuffle=True, drop_last=True, collate_fn=collate
    )
    optimizer, trained = torch_bert.optimizer_of(model)
    schedule = transformers.get_linear_schedule_with_warmup(
        optimizer, len(loader) // 10, len(loader)
    )
    for step, batch in enumerate(loader):
        if step == values.max_steps:
            break
        loss = torch_bert.train_step(model, optimizer, trained, batch, "bfloat16")
        schedule.step()
        worker.mark("step", loss=loss)
    state = {name: p for name, p in model.named_parameters() if p.requires_grad}
    path = os.path.join(values.output_dir, "model.pt")
    torch.save({"model": state, "optimizer": optimizer.state_dict()}, path)


def predict(model, examples, values):
    """Writes the probabilities of all examples, in order."""
    model.eval()
    if values.cast_weights:
        model.to(torch.bfloat16)
    worker.mark("session")
    rows = []
    with torch.inference_mode():
        for batch in torch.utils.data.DataLoader(examples, workload.BATCH_SIZE, collate_fn=collate):
            batch.pop("labels")
            with torch_bert.autocast("float32" if values.cast_weights else "bfloat16"):
                rows += model(**batch).logits.float().softmax(-1).tolist()
            worker.mark("step")
    with open(os.path.join(values.output_dir, "test_results.tsv"), "w") as writer:
        writer.writelines("\t".join(map(str, row)) + "\n" for row in rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", choices=["train", "predict"])
    parser.add_argument("--glue_dir", required=True)
    parser.add_argument("--bert_dir", required=True, help="HuggingFace's files")
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--cast_weights", action="store_true", help="weights in bfloat16 (predict)")
    parser.add_argument("--max_steps", type=int, help="stop before the epoch's end (train)")
    values = parser.parse_args()
    torch_bert.use_all_cores()
    worker.mark("imports", version="PyTorch " + torch.__version__)
    split = "train" if values.work == "train" else "test"
    examples = examples_of(mrpc.read(values.glue_dir, split), values.bert_dir)
    worker.mark("data")
    model = load(values.bert_dir)
    worker.mark("graph")
    if values.work == "train":
        worker.mark("session")
        train(model, examples, values)
    else:
        predict(model, examples, values)
    worker.mark("end")


if __name__ == "__main__":
    main()
