# Thin: each target is a script in ci/, which says in its first lines what it does.
.DEFAULT_GOAL := help
.PHONY: help demo demonstration test slow coverage rehearsals soak search agents user-view mutants lint format bench matrix clean
CORPUS ?=

help:  ## show the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 16

demo:  ## install, check and rehearse a buggy script and its fixed twin, train the reference trainer on two ranks
	@ci/demo.sh

demonstration:  ## leakage between two encoders with CLUB, without, and with the original defaults; some minutes
	@ci/demonstration.sh $(ARGS)

test:  ## install, then run all tests; ARGS="tests/source -x" are passed on to pytest
	@ci/test.sh $(ARGS)

slow:  ## the tests that start whole jobs, seconds each, which `make test` leaves out; .ci/run runs both
	@ci/test.sh -m slow $(ARGS)

coverage:  ## all tests once more, with the branches counted that they take: in ranks, in what these start, in rehearsed scripts
	@ci/coverage.sh $(ARGS)

rehearsals:  ## both halves of every pair of fixtures rehearsed for real, most of an hour; ARGS="--part 1/6", or names of pairs
	@ci/rehearsals.sh $(ARGS)

soak:  ## minutes of random kills and faults, in jobs and on warm worlds; ARGS=tests/testing/test_soak.py is passed on to pytest
	@ci/soak.sh $(ARGS)

search:  ## hypothesis looks for new examples, for as many rounds as asked; ARGS="20 tests/source" are rounds and tests
	@ci/search.sh $(ARGS)

agents:  ## one run under torchrun with one agent, with two, in two network namespaces, with a rank and an agent killed
	@ci/agents.sh

user-view:  ## the pytest plugin as a user meets it: the built wheel, a small project, each kind of failure
	@ci/user_view.sh

mutants:  ## plant defects in correct scripts and see whether the checker finds them; ARGS="--select DDP201"
	@ci/mutants.sh $(ARGS)

lint:  ## ruff, mypy and the rules of the house on this repository
	@ci/lint.sh

format:  ## let ruff format the code
	@ci/lint.sh --fix

bench:  ## speed beside TorchFix and ruff: make bench CORPUS=path/to/python/files
	@ci/bench.sh "$(CORPUS)"

matrix:  ## the wheel, without torch, on each Python from 3.10 to 3.13 that is found
	@ci/matrix.sh

clean:  ## remove environments, builds, caches and what runs left behind
	@ci/clean.sh
