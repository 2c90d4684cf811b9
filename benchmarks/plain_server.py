"""A minimal server around one ONNX Runtime session, as a user would write it.

    python plain_server.py MODEL_ONNX VOCAB_FILE

It answers like `serve.py`, row by row, and ignores the task in the path.
"""

import os
import sys

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import socket

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse
from starlette.routing import Route

import tokenization
from adapter_bert.serving.inference.onnx_runtime import onnxruntime

_MAX_LENGTH = 128


def main(model_file, vocab_file):
    session = onnxruntime.InferenceSession(model_file)
    tokenizer = tokenization.FullTokenizer(vocab_file, do_lower_case=True)

    def answer(instance):
        first = ["[CLS]", *tokenizer.tokenize(instance["text"]), "[SEP]"]
        second = [*tokenizer.tokenize(instance["text_b"]), "[SEP]"]
        ids = np.array([tokenizer.convert_tokens_to_ids(first + second)[:_MAX_LENGTH]])
        segments = np.array([([0] * len(first) + [1] * len(second))[:_MAX_LENGTH]])
        feed = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": segments}
        (probabilities,) = session.run(["probabilities"], feed)
        return {"probabilities": probabilities[0].tolist()}

    async def predict(request):
        instances = (await request.json())["instances"]
        answers = [await run_in_threadpool(answer, instance) for instance in instances]
        return JSONResponse({"predictions": answers})

    application = Starlette(routes=[Route("/v1/models/{task}:predict", predict, methods=["POST"])])
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"Serving at http://127.0.0.1:{listener.getsockname()[1]}/", flush=True)
    config = uvicorn.Config(application, log_level="error", access_log=False)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main(*sys.argv[1:])
