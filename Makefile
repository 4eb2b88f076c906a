# One file a user needs: every target makes the pinned environment first.
#
# VENV may come from the environment, so that several work trees share one.
# SEED, TEST, PRESET, WAVES and BOARD go through to the program that the target runs.

VENV    ?= .venv
PYTHON3 ?= python3
STAMP   := $(VENV)/.stamp-$(shell cksum < requirements.lock | cut -d' ' -f1)
PY      := $(VENV)/bin/python

export SEED TEST PRESET WAVES BACKEND BOARD

.DEFAULT_GOAL := help
.PHONY: help env sim test demo verilog lint mutants-quick bench lock clean distclean

help: ## this list
	@echo "MRC open reference: make TARGET [VARIABLE=value ...]"
	@sed -n 's/^\([a-z][a-z-]*\):.*## /\1\t/p' Makefile | while IFS="$$(printf '\t')" read -r t h; do printf '  %-14s %s\n' "$$t" "$$h"; done

env: $(STAMP) ## make the pinned Python environment (VENV=folder, .venv unless told)

sim: $(STAMP) ## system regression, RTL in lockstep with the model, report in build/report (SEED= TEST= PRESET= WAVES=1)
	@$(PY) -m sim.regress

test: $(STAMP) ## everything before a commit: requirements, model and block tests, system regression
	@$(PY) -m sim.test

demo: $(STAMP) ## train a small network whose gradients cross the simulated fabric (BACKEND=rtl|model SEED=)
	@$(PY) -m sim.demo

verilog: $(STAMP) ## build/verilog/mrc_nic.v, linted and checked for latches (PRESET=)
	@$(PY) -m sim.verilog

lint: $(STAMP) ## ruff, mypy, import rules, tree hygiene, Verilog lint
	@$(PY) -m sim.lint

mutants-quick: $(STAMP) ## hand-made faults in RTL and model: every one must be caught
	@$(PY) -m sim.mutants

bench: $(STAMP) ## packets per clock, simulation speed
	@$(PY) -m sim.bench

lock: $(STAMP) ## resolve requirements.in into requirements.lock (for maintainers)
	@$(PY) -m sim.lock

clean: ## remove everything generated (build/ and caches), not the environment
	@rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +

distclean: clean ## clean, and the environment too when it is ./.venv
	@rm -rf .venv

# The stamp's name carries the checksum of the lock: a changed lock makes the environment anew in place.
$(STAMP): requirements.lock
	@PYTHON3="$(PYTHON3)" sh sim/make_env.sh "$(VENV)" requirements.lock
	@rm -f $(VENV)/.stamp-*
	@touch $@
