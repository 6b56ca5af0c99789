# The commands to know: `make demo`, `make test`, `make check`. `make` alone lists all.

# Any Python from 3.11 on; only `.venv` is made with it, all else runs inside. Unless given it is the quickest python3.11
# of the PATH: one that was compiled without profiles takes up to 1.5 times as long, and the services with it.
FIRST_PYTHON := $(shell command -v python3.11 || command -v python3)
WORK := import ctypes, ssl, sys, time; sum(i & 7 for i in range(10 ** 6)); print(time.process_time(), sys.executable)
PYTHON ?= $(or $(shell IFS=:; for round in 1 2 3; do for folder in $$PATH; do \
	"$$folder/python3.11" -c "$(WORK)"; done; done 2>/dev/null | sort -n | head -n 1 | cut -d " " -f 2-),$(FIRST_PYTHON))
# TORCH_BACKEND=cpu takes PyTorch's smaller CPU wheels where their index can be reached.
TORCH_BACKEND ?=

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
EXTRAS := gateway,worker,cli,kubernetes,tracing,dev
DECODER := services/worker/kernels/cpu
# What services load when they start. Imported once where the environment is made, it is there compiled.
STARTED := services.gateway.__main__, services.kvmanager.__main__, services.scheduler.__main__, services.worker.build, services.worker.serving

# Python keeps what it has compiled, whatever the caller's environment says: a worker starts in half the time.
unexport PYTHONDONTWRITEBYTECODE

# uv makes the environment: the one at hand if it runs, else one of our own below build/.
UV_VERSION := 0.13.8
UV := $(shell uv --version >/dev/null 2>&1 && echo uv || echo build/uv/bin/uv)

# What the demo runs its burst on, and on a slow machine.
DEMO_MODELS := models/random/S models/random/XS

# What `make images` builds and from what, see there.
IMAGES ?=
BASE ?=
TAG ?=
TORCH ?=
SAVE ?=
# What `make test-kubernetes` runs, see there.
ONLY ?=
WRITE ?=

# QUICK=1 is a look at the figures in two minutes; FULL=1 takes hours: three seeds, thrice the jobs,
# and leaves the conclusions out, which are about the middle scale.
QUICK ?=
FULL ?=

.PHONY: help install front demo test check sanitize figures bench monitoring proto images test-kubernetes test-keda lock clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-16s %s\n", $$1, $$2}'

install: $(INSTALLED) front ## make .venv with the exact versions of requirements.lock, and build the REST front

front: $(INSTALLED)
	$(BIN)/python rest/build.py --uv $(UV)

demo: $(INSTALLED) front $(DEMO_MODELS:%=%/model.safetensors) ## serve the bundled model, stream a completion, run a burst under FCFS and FastServe, draw pictures
	$(BIN)/python -m services.cli.bench.demo --model $(word 1,$(DEMO_MODELS)) --model-if-slow $(word 2,$(DEMO_MODELS))

# The same bytes each time; weights are written last.
models/random/%/model.safetensors: | $(INSTALLED)
	$(BIN)/python -m models.make_random --preset $*

test: $(INSTALLED) front ## run the whole test suite
	$(BIN)/pytest

check: $(INSTALLED) ## format, lint, types, import rings, proto lint, stubs current, manifests valid
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python protos/generate.py --check --uv $(UV)
	mkdir -p build
	$(BIN)/python protos/generate.py --image build/protos.binpb
	$(BIN)/buf lint build/protos.binpb --path fastserve --config protos/buf.yaml
	$(BIN)/python -m deploy.manifests.check

# The sanitizers' library must come first in a process; Python's own leaks are not ours.
sanitize: $(INSTALLED) ## run the tests of the compiled decoder with address and undefined-behaviour sanitizers
	LD_PRELOAD=$$(c++ -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 \
		$(BIN)/pytest -n 0 -p tests.worker.kernels.cpu.sanitized_library \
		tests/worker/kernels/cpu/test_native_decoder.py tests/worker/model/test_exact.py tests/worker/model/test_parity.py \
		tests/worker/model/test_shares.py tests/worker/kernels/cpu/test_int8_weights.py \
		tests/worker/kernels/cpu/test_chosen_tokens.py tests/worker/sampling

figures: $(INSTALLED) ## simulate both evaluations: docs/evaluation/ (the papers'), docs/policy/ (the default's); QUICK=1, FULL=1
	$(BIN)/python -m evaluation.default_policy $(if $(QUICK),--quick)
	$(BIN)/fastserve figures $(if $(QUICK),--quick) $(if $(FULL),--full) --out docs/evaluation

bench: $(INSTALLED) front ## measure this machine, results under benchmarks/results/
	$(BIN)/python -m benchmarks.run

monitoring: $(INSTALLED) ## check rules and dashboard with promtool and a real Prometheus over a live server; PICTURE=FILE draws it
	$(BIN)/python -m deploy.grafana.check $(if $(PICTURE),--picture $(PICTURE))

proto: $(INSTALLED) ## make the stubs anew
	$(BIN)/python protos/generate.py --uv $(UV)

# BASE=IMAGE is their base; TORCH=mounted leaves torch out of the worker's; IMAGES="gateway scheduler" builds those only.
images: $(INSTALLED) front ## build the container images and print their sizes
	$(BIN)/python -m deploy.images.build $(IMAGES) $(if $(BASE),--base $(BASE)) $(if $(TAG),--tag $(TAG)) \
		$(if $(TORCH),--torch $(TORCH)) $(if $(SAVE),--save $(SAVE))

# As root, on Linux. ONLY=install,leader runs these scenarios; WRITE=1 writes tests/kubernetes/RESULTS.md.
test-kubernetes: $(INSTALLED) front ## run manifests and images on a cluster of this machine's own, driven with kubectl
	$(BIN)/python -m tests.kubernetes --uv $(UV) $(if $(ONLY),--only "$(ONLY)") $(if $(WRITE),--write)

test-keda: $(INSTALLED) front ## the same cluster, its groups scaled by KEDA's own operator, which takes long to build
	$(BIN)/python -m tests.kubernetes --uv $(UV) --only keda

lock: $(INSTALLED) ## resolve requirements.lock anew from pyproject.toml, keeping versions that still fit
	$(UV) pip compile --quiet --universal --python-version 3.11 --all-extras --no-header --no-annotate \
		pyproject.toml -o requirements.lock

clean: ## remove what was made, .venv too
	rm -rf $(VENV) build dist out models/random .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info
	find deploy models protos services tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

build/uv/bin/uv:
	$(or $(FIRST_PYTHON),$(PYTHON)) -m pip install --quiet --disable-pip-version-check --target build/uv uv==$(UV_VERSION)

$(BIN)/python: | $(filter build/uv/bin/uv,$(UV))
	$(UV) venv --quiet --python "$(PYTHON)" $(VENV)

# The C++ of the worker's decoder is compiled here; a worker compiles it at its start where this was not done.
# One resolution for the environment and the project: the lock holds the versions of what the extras need, and more for other systems.
$(INSTALLED): requirements.lock pyproject.toml $(wildcard $(DECODER)/*.cpp $(DECODER)/*.h) | $(BIN)/python
	$(UV) pip install --quiet --python $(BIN)/python $(if $(TORCH_BACKEND),--torch-backend $(TORCH_BACKEND)) \
		--constraint requirements.lock --editable ".[$(EXTRAS)]"
	$(BIN)/python -m services.worker.kernels.cpu.compiled
	$(BIN)/python -c "import $(STARTED)"
	touch $@
