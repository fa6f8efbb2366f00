# Two commands do everything: `make run` and `make test`. Each installs what is missing first.
.DEFAULT_GOAL := help
.PHONY: help setup windows run test test-all lab docs bench experiments readme export constraints clean
BIN := .venv/bin
ARGS ?=
# a test that fails is run once more; the summary lists it as RERUN
SPREAD := -n logical --dist loadgroup --reruns 1 --durations 10
EXPERIMENTS ?= ppo_grpo clip_higher dynamics async_rollout value_pretraining_chains decoupled_gae value_pretraining

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup:  ## Install what is missing: system packages, .venv, a Chromium
	@.ci/setup

windows: setup  ## Wine, for Windows programs on the desktop (100 MB to fetch, 700 MB on the disk)
	@.ci/setup windows

run: setup  ## The main job: demonstrations, SFT, RL, evaluation, report (options: ARGS="--help")
	@$(BIN)/uitars-nb run $(ARGS)

test: setup  ## What has to hold, in a quarter of an hour of two cores: export, house rules, notebooks, pytest, README, site
	@$(BIN)/python -m pytest $(SPREAD) $(ARGS)

test-all: setup  ## All tests, those marked slow too: hours (ARGS="-m slow": these alone)
	@$(BIN)/python -m pytest $(SPREAD) -m '' $(ARGS)

lab: setup  ## JupyterLab on notebooks and reports, opened at nbs/index.ipynb
	@$(BIN)/jupyter lab --LabApp.default_url=/lab/tree/nbs/index.ipynb $(if $(filter 0,$(shell id -u)),--allow-root) $(ARGS)

docs: setup  ## Build the site into _docs/
	@$(BIN)/python .ci/site/build.py $(ARGS)

bench: setup  ## Measure what sandbox, tools, engine and trainers take, against the goals; writes reports/*/summary.json
	@$(BIN)/python -m tests.bench $(ARGS)

experiments: setup  ## The ablations of reinforcement learning at full size, half a day of two cores; what is done is not done again (EXPERIMENTS="ppo_grpo dynamics")
	@for o in corridor chains; do [ -d runs/$$o/sft/policy ] || $(BIN)/uitars-nb run --config nbs/experiments/params/$$o.yaml || exit 1; done
	@for o in $(EXPERIMENTS); do mkdir -p reports/$$o; $(BIN)/papermill nbs/experiments/$$(echo $$o | sed 's/_chains$$//; s/_controls$$//').ipynb reports/$$o/$$o.ipynb -f nbs/experiments/params/$$o.yaml --cwd . || exit 1; done

readme: setup  ## Run nbs/index.ipynb and make README.md from it
	@$(BIN)/python .ci/readme.py

policy-gif: setup  ## Play a task by the shipped policy and make the picture of README.md from it
	@$(BIN)/uitars-nb eval --policy pix2act59 --suite miniwob/click-checkboxes --episodes 1 --out runs/picture
	@$(BIN)/uitars-nb show runs/picture click-checkboxes --gif nbs/images/policy.gif

export: setup  ## Modules from notebooks, notebooks cleaned
	@cd nbs && ../$(BIN)/nbdev_export && ../$(BIN)/nbdev_clean

constraints:  ## Pin the versions that are installed now
	@$(BIN)/python .ci/constraints.py > constraints.new && mv constraints.new constraints.txt

clean:  ## Remove what can be made again (not .venv, not runs)
	@rm -rf _docs _proc build dist .pytest_cache .hypothesis *.egg-info
	@find nbs tests uitars_nb .ci \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +
