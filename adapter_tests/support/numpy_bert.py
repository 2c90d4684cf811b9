"""BERT in NumPy, written from the papers, as an independent reference."""

import math

import numpy as np

erf = np.vectorize(math.erf)


def numpy_bert(values, config, input_ids, input_mask, token_type_ids, adapters, adapt=None):
    """Returns the (sequence output, pooled output) of BERT with adapters; values: name → array.

    `adapt` replaces the default adapters: a function of (output, residual, scope).
    """
    x = values["bert/embeddings/word_embeddings"][input_ids]
    x = x + values["bert/embeddings/token_type_embeddings"][token_type_ids]
    x = x + values["bert/embeddings/position_embeddings"][: input_ids.shape[1]]
    x = numpy_norm(values, x, "bert/embeddings")
    x = numpy_encoder(values, config, x, input_mask, adapters, adapt)
    return x, np.tanh(_dense(values, x[:, 0], "bert/pooler/dense"))


def numpy_encoder(values, config, x, input_mask, adapters, adapt=None):
    """Returns the output of the layers alone for the input x [B, S, D]."""

    def gelu(x):
        return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    def act(x):
        exact = config.hidden_act == "gelu_erf"
        return x / 2 * (1 + erf(x / np.sqrt(2))) if exact else gelu(x)

    def close(x, residual, name):
        x = _dense(values, x, name + "/dense")
        if adapters:
            w = {k: values[name + "/adapters/" + k] for k in ("weights1", "weights2")}
            b = {k: values[name + "/adapters/" + k] for k in ("biases1", "biases2")}
            x = x + gelu(x @ w["weights1"] + b["biases1"]) @ w["weights2"] + b["biases2"]
        if adapt:
            x = adapt(x, residual, name)
        return numpy_norm(values, x + residual, name)

    heads, size = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    for layer in range(config.num_hidden_layers):
        name = f"bert/encoder/layer_{layer}"
        q, k, v = (
            _dense(values, x, f"{name}/attention/self/{p}") for p in ("query", "key", "value")
        )
        context = np.zeros_like(x)
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            scores = np.einsum("bfh,bth->bft", q[..., part], k[..., part]) / np.sqrt(size)
            scores = np.where(input_mask[:, None, :] == 1, scores, -1e9)
            probs = np.exp(scores - scores.max(-1, keepdims=True))
            probs /= probs.sum(-1, keepdims=True)
            context[..., part] = np.einsum("bft,bth->bfh", probs, v[..., part])
        x = close(context, x, name + "/attention/output")
        x = close(act(_dense(values, x, name + "/intermediate/dense")), x, name + "/output")
    return x


def _dense(values, x, name):
    return x @ values[name + "/kernel"] + values[name + "/bias"]


def numpy_norm(values, x, name):
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-12)
    return x * values[name + "/LayerNorm/gamma"] + values[name + "/LayerNorm/beta"]
