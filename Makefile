# `make test` and `make demo` need Python (3.10 or newer), make and the package index; they make .venv themselves.

PYTHON ?= python3
RUN := .venv/bin/python
PIP := $(RUN) -m pip install --quiet --disable-pip-version-check --no-compile
# The engine and the labs; and what the tests need beside them.
ENGINE_INSTALLED := .venv/.installed-engine
INSTALLED := .venv/.installed
# Hundreds of processes import the same modules: whatever the environment says, bytecode is written.
export PYTHONDONTWRITEBYTECODE =
# One worker per core: conftest.py keeps each on a core of its own.
WORKERS = $(shell $(PYTHON) -c 'import os; print(os.cpu_count() or 1)')
SITE_INSTALLED := .venv/.installed-site
CAPSTONE := phase-05-mlx-engine/capstone

.PHONY: test capstone thorough readme test-models orders test-gpu hostile serve-load serve-hostile browser grade-many grade-resume grade-each variants demo lint check check-far tables map hero notebooks lab site gradescope install clean

# `course check` runs the labs' own tests: on the solutions, the starters, the engine's modules and the mutants. mypy, which
# uses one core, runs at the same time. The first failure ends it. pytest runs on all cores: a worker begins with
# neighbouring tests, so that few fixtures are made twice, and takes over tests of other workers when it has none left.
# With a worker on each core, one thread per worker is enough for its products; two would wait for each other.
test: export OMP_NUM_THREADS = 1
test: export MKL_NUM_THREADS = 1
test: export OPENBLAS_NUM_THREADS = 1
# Large arrays in large pages, where Linux has them: a pool of K/V is then there in half the time.
test: export GLIBC_TUNABLES = glibc.malloc.hugetlb=1
# `course check` has put all solutions into the engine and compared every workload, the capstone's too: of the capstone's
# own tests only the first is left to run. (`make capstone` runs them all.)
# nbval, where it is not needed, would cost seconds in each of pytest's processes.
test: $(INSTALLED)
	$(MAKE) --no-print-directory -j2 lint check
	$(RUN) -m pytest -q -n $(WORKERS) --dist worksteal -p no:nbval mini_vllm course tools \
		$(CAPSTONE)/test_capstone.py::test_every_part_is_ones_own
	$(NBVAL)

capstone: $(INSTALLED)
	$(RUN) -m pytest -q -p no:nbval $(CAPSTONE)

# The pytest suites of `make test` in three random orders while another program uses every core, and once on one core.
orders: $(INSTALLED)
	$(RUN) tools/orders.py $(ORDERS)

# Every cell runs, and its output must be the one that is committed. A notebook is one worker's: its cells share a kernel.
SANITIZE := notebooks/$(if $(filter Linux,$(shell uname -s)),sanitize,sanitize-elsewhere).cfg
NBVAL := $(RUN) -m pytest -q -n $(WORKERS) --dist loadscope --nbval --nbval-current-env --nbval-cell-timeout 240 \
	--nbval-sanitize-with $(SANITIZE) notebooks

# Every command and snippet of the README, from top to bottom, as a reader would run them; the long ones shortened. First
# as a newcomer, with nothing installed but what the README's own commands install; then with everything installed.
readme: $(INSTALLED)
	$(RUN) tools/readme.py --fresh
	$(RUN) tools/readme.py

# The tests that need a pulled model: make test-models MODELS=folder, as MINI_VLLM_CACHE would name it.
MODELS ?= $(or $(MINI_VLLM_CACHE),$(HOME)/.cache/mini_vllm)
test-models: $(INSTALLED)
	MINI_VLLM_TEST_MODELS="$(MODELS)" $(RUN) -m pytest -q -p no:nbval -m needs_model mini_vllm course

# Four times as many of the random examples and schedules as `make test` tries.
thorough: $(INSTALLED)
	THOROUGH=4 $(RUN) -m pytest -q -n $(WORKERS) --dist worksteal -p no:nbval mini_vllm

# Every hostile submission at every level of sandbox that this machine offers. It takes minutes; `make test` has some.
hostile: $(INSTALLED)
	HOSTILE=all $(RUN) -m pytest -q -n $(WORKERS) --dist worksteal -p no:nbval course/grading/hostile

# The server under many clients that come and go, its memory over the rounds, and its API fuzzed for longer. It takes
# minutes; `make serve-load LOAD="--rounds 2" SERVE_EXAMPLES=30` is short.
SERVE_EXAMPLES ?= 300
serve-load: $(INSTALLED)
	$(RUN) tools/serve_load.py $(LOAD)
	SERVE_EXAMPLES=$(SERVE_EXAMPLES) $(RUN) -m pytest -q -s -p no:nbval mini_vllm/server/api/test_schema.py

# Attacks on a server process, and what its other callers notice. It takes a minute; `make serve-hostile ATTACKS=--quick`
# is short. Run it on an idle machine: it measures how soon /health answers.
serve-hostile: $(INSTALLED)
	$(RUN) tools/serve_hostile.py $(ATTACKS)

# The live page in Chromium, and what a redraw costs. `make browser BROWSER=short` tries less. CHROMIUM names another
# browser.
BROWSER = 1
browser: $(INSTALLED)
	BROWSER=$(BROWSER) $(RUN) -m pytest -q -p no:nbval mini_vllm/server/live/browser
	$(RUN) -m mini_vllm.server.live.browser.redraw

# On a GPU: the kernels against the simple attention, our tokens against mlx-lm's, and the engine's own suites. Products
# of float32 are computed in float32: by default a GPU of NVIDIA's gives them three digits.
GPU_SUITES = mini_vllm/gpu mini_vllm/fast mini_vllm/test_engine.py mini_vllm/test_model_runner.py \
	mini_vllm/test_attention.py mini_vllm/test_async_engine.py mini_vllm/test_sampler.py mini_vllm/test_beam_search.py \
	mini_vllm/tests/test_sharing.py mini_vllm/tests/test_preemption.py mini_vllm/priority_preemption mini_vllm/models/test_network.py
test-gpu: $(INSTALLED)
	MLX_ENABLE_TF32=0 $(RUN) -m pytest -q -n $(WORKERS) -p no:nbval $(GPU_SUITES)

demo: $(ENGINE_INSTALLED)
	@$(RUN) -m mini_vllm.demo

lint: $(INSTALLED)
	$(RUN) -m ruff check .
	$(RUN) -m mypy
	$(RUN) -m check_jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml grading/classroom/*.yml
	$(RUN) -m check_jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml
	$(RUN) -m check_jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(RUN) -m check_jsonschema --builtin-schema vendor.citation-file-format CITATION.cff

check: $(INSTALLED)
	$(RUN) -m course.cli check

# The same through the grader's proxy, the files in sandboxes: solutions, starters and every mutant. And what each lab's
# file may use on the grader's side is called, with hostile arguments. Takes a while.
check-far: $(INSTALLED)
	$(RUN) -m course.authoring.check_in_sandbox $(LABS)
	$(RUN) -m course.cli check --surface $(LABS)

# A large made-up class, graded, killed in the middle and resumed. It takes half an hour; `make grade-many MANY="--files 4
# --courses 0 --kills 1 --after 8"` is short.
grade-many: $(INSTALLED)
	$(RUN) tools/grade_many.py $(MANY)

# A made-up class of 30 with every odd name, graded undisturbed, and again while it is killed ten times: the same grades.
# It takes minutes; run it on an idle machine.
grade-resume: $(INSTALLED)
	$(RUN) tools/grade_resume.py $(RESUME)

# How long one file of each lab takes to grade, on one core.
grade-each: $(INSTALLED)
	$(RUN) tools/grade_each.py $(LABS)

# About a thousand wrong solutions that were written from the labs' texts alone, each on the test that must catch it; and
# right ones that are unusual, which must pass. It takes minutes; `make variants LABS="2.1 3.3"` tries these labs.
variants: $(INSTALLED)
	$(RUN) tools/try_variants.py $(LABS)

# The tables of measured numbers in README and docs, made from the results in benchmarks/.
tables: $(INSTALLED)
	$(RUN) tools/tables.py

# The lines that docs/engine.md links to, set anew.
map: $(INSTALLED)
	$(RUN) tools/line_links.py docs/engine.md docs/course.md

# The picture on the front page, drawn anew from a run of the engine.
hero: $(INSTALLED)
	$(RUN) tools/hero.py

# Runs the notebooks and keeps their outputs.
notebooks: $(INSTALLED)
	$(RUN) tools/notebooks.py $(ONLY)

# An autograder for Gradescope, from what is committed: make gradescope LABS="2.1 2.2" [HIDDEN=folder]
gradescope:
	@test -n "$(LABS)" || { echo 'Which labs? As in: make gradescope LABS="2.1 2.2"'; exit 2; }
	@HIDDEN="$(HIDDEN)" grading/gradescope/make_zip.sh build/gradescope.zip $(LABS)

# Jupyter, opened on the tour. What is committed was made here: to trust it shows the pictures before anything is run.
LAB := .venv/.lab
lab: $(LAB)
	.venv/bin/jupyter trust notebooks/*.ipynb
	.venv/bin/jupyter lab --notebook-dir . notebooks/00-tour.ipynb

$(LAB): $(INSTALLED)
	@echo "Adding JupyterLab to .venv. Once."
	@$(PIP) -e ".[notebooks]"
	@touch $@

# The whole course as a site. It is made from the files as they are, and every link in it is followed.
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
	@$(PIP) -e ".[course,serve,fast-cpu]"
	@touch $@

# pip would compile everything, half of the time; most of it nobody imports. What the tests' processes import is compiled
# here, once: several that start together would each do it, and the labs' write no bytecode themselves.
$(INSTALLED): $(ENGINE_INSTALLED)
	@echo "Adding to .venv what the tests need: mlx-lm to compare with, hypothesis, mypy, matplotlib, nbval. Once."
	@$(PIP) -e ".[test,lint,fast-cpu]"
	@$(RUN) -c "import pytest, hypothesis.stateful, xdist, course.own_engine.process, matplotlib.figure, check_jsonschema"
	@$(RUN) -c "import mlx_lm.convert, mlx_lm.generate, ipykernel.kernelapp, nbval.plugin, course.cli, mini_vllm.cli"
	@touch $@

clean:
	rm -rf .venv build/pages build/doctrees build/site
