# `make test` and `make demo` need Python (3.10 or newer), make and the package index; they make .venv themselves.

PYTHON ?= python3
RUN := .venv/bin/python
INSTALLED := .venv/.installed

.PHONY: test demo check install lint clean

test: $(INSTALLED)
	$(RUN) -m course.cli check
	$(RUN) -m pytest -q

demo: $(INSTALLED)
	$(RUN) -m mini_vllm.demo

check: $(INSTALLED)
	$(RUN) -m course.cli check

install: $(INSTALLED)

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "Python 3.10 or newer is needed, but $(PYTHON) is `$(PYTHON) --version 2>&1`. Try: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv .venv
	$(RUN) -m pip install --quiet --disable-pip-version-check -e ".[test,fast-cpu]"
	@touch $@

lint: $(INSTALLED)
	$(RUN) -m pip install --quiet --disable-pip-version-check ruff
	$(RUN) -m ruff check .

clean:
	rm -rf .venv
