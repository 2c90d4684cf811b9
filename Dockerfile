# serve.py without TensorFlow. /bert has bert_config.json, vocab.txt and backbone.onnx, which
# `python convert_checkpoint.py to_onnx BERT_DIR` makes; /adapters has the task adapters:
#
#   docker build -t adapter-bert .
#   docker run -p 127.0.0.1:8501:8501 -v /path/to/bert:/bert:ro -v /path/to/adapters:/adapters \
#       -e ADAPTER_BERT_TOKEN adapter-bert
FROM python:3.13-slim
WORKDIR /app
COPY locks/requirements-serving.txt ./
RUN pip install --no-cache-dir --require-hashes -r requirements-serving.txt
COPY serve.py tokenization.py ./
COPY adapter_bert ./adapter_bert
ENV BERT_BASE_DIR=/bert PYTHONDONTWRITEBYTECODE=1
USER 1000:1000
EXPOSE 8501
# Not through a proxy that Docker's configuration may set. With 100,000 tasks, /readyz has status 503
# for the first minutes.
HEALTHCHECK --start-period=10m CMD ["env", "no_proxy=*", "python", "-c", "from urllib import request; request.urlopen('http://127.0.0.1:8501/readyz')"]
ENTRYPOINT ["python", "serve.py", "--host=0.0.0.0", "--adapter_dir=/adapters"]
