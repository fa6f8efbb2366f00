"""A step of the trainer, with everything that belongs to it, against a bare forward and backward pass of the same model on the same batch; what compiled layers save; and how fast records become batches."""
import argparse, contextlib, copy, logging, tempfile, time, warnings
from pathlib import Path

import numpy as np
import torch
from lightning.pytorch.callbacks import Callback

from uitars_nb.core.actions import ACTION_SPACE, Action
from uitars_nb.core.figures import Figure, figure, machine, median_interval, ratio, record_figures, typical
from uitars_nb.core.grammar import describe
from uitars_nb.core.runs import write_json
from uitars_nb.flywheel.corpus import Corpus, vocabulary, write_corpus
from uitars_nb.flywheel.examples import TrainingExample
from uitars_nb.flywheel.streams import Batches, Collate, BatchNumbers, Stream, loader, padding
from uitars_nb.model.allocation import padding_multiple
from uitars_nb.model.nano.nano import new_policy
from uitars_nb.model.policy import Policy
from uitars_nb.model.rendering import Example
from uitars_nb.model.nano.tokenizer import make_tokenizer
from uitars_nb.train.devices import compile_layers
from uitars_nb.train.feed import Feed
from uitars_nb.train.sft import SFT, SFTConfig, choose_precision, freeze, make_trainer
from uitars_nb.train.supervised import batch_losses, run_policy, time_step, zero_over_outputs

ROUNDS = dict(quick=6, default=12, full=30)
STEPS, BATCH, RECORDS = 1, 32, 512   # steps of a round; records of a batch and of the corpus
COMMAND = 'python -m tests.bench sft'


def small_policy():
    "The small policy at its full size."
    return Policy(*new_policy(make_tokenizer([describe(ACTION_SPACE)])), 'ui-tars-2', 'small')


def page(rng):
    "A screen of flat boxes, packed about as small as MiniWoB++'s."
    screen = np.full((210, 160, 3), 255, np.uint8)
    for x, y, w, h in rng.integers(0, 150, (40, 4)) // [1, 1, 6, 12]: screen[y:y + h + 1, x:x + w + 1] = rng.integers(0, 256, 3)
    return screen


def record(policy, rng, i):
    "A decision of the lengths that demonstrations have: later steps have longer prompts."
    past = rng.integers(0, 400, int(rng.exponential(40))).astype(np.int32)
    messages = [dict(role='user', content=[dict(type='text', text='Click on the "Submit" button.'[:int(rng.integers(10, 30))])]), dict(role='assistant', content=[dict(type='ids', ids=past, text='')]),
                dict(role='user', content=[dict(type='image', image=page(rng))])]
    reply = policy.dialect.write('click button "Submit"', [Action('click', dict(point=(5 * int(rng.integers(200)), 340)))], (160, 210))
    return TrainingExample(Example(policy.render(messages), np.append(policy.encode(reply), policy.processor.tokenizer.eos_token_id).astype(np.int32)), 'bench', i, dict(targets=np.eye(140, dtype=np.int8)[i % 140]))


class Turns(Callback):
    "After each round of the trainer's steps, as many bare passes over the same batches, in a model of their own."
    def __init__(self, policy, rounds, bf16):
        self.policy, self.rounds, self.bf16 = policy, rounds, bf16
        self.batches, self.ours, self.bare = [], [], []
        self.since = None

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.batches.append(batch)
        if len(self.batches) < STEPS: return
        if self.since is not None: self.ours.append([(now - then) / STEPS for now, then in zip(clocks(), self.since)])
        began = clocks()
        for b in self.batches: self.one_pass(b)
        self.bare.append([(now - then) / STEPS for now, then in zip(clocks(), began)])
        if trainer.global_step >= (self.rounds + 2) * STEPS: trainer.should_stop = True
        self.batches, self.since = [], clocks()

    def one_pass(self, batch):
        with torch.autocast('cpu', torch.bfloat16) if self.bf16 else contextlib.nullcontext():
            out = run_policy(self.policy, batch)
            loss = sum(batch_losses(out, batch).values())
        loss.backward()
        self.policy.model.zero_grad(set_to_none=True)


def clocks(): return time.perf_counter(), time.process_time()


def overhead(policy, stream, rounds):
    "Seconds a step of both sides, a row a round: on the wall, and of the processor. And the precision."
    config = SFTConfig(steps=1_000_000, batch=BATCH, accelerator='cpu', keep_every=0)
    feed = Feed(stream, policy.processor)
    precision = choose_precision(policy, config, feed)
    other = Policy(copy.deepcopy(policy.model), policy.processor, policy.dialect)
    turns = Turns(other, rounds, precision.startswith('bf16'))
    with tempfile.TemporaryDirectory() as home, warnings.catch_warnings(action='ignore'):
        trainer = make_trainer(config, Path(home), precision, [turns], progress=False)
        trainer.callbacks = [o for o in trainer.callbacks if type(o).__name__ != 'Keep']
        trainer.fit(SFT(policy, config, feed.names), feed)
    return np.array(turns.ours[1:]), np.array(turns.bare[2:]), precision


def compiling(policy, stream, rounds, bf16, frozen=()):
    "Seconds of a forward and backward pass over the same batches, a row a round: as the model is, and with compiled layers."
    plain, quick = (Policy(copy.deepcopy(policy.model).train(), policy.processor, policy.dialect) for _ in range(2))
    for o in (plain, quick): freeze(o.model, frozen)
    batches, rows = Batches(stream, Collate(policy.processor, stream.facts.names, padding_multiple())), []
    with compile_layers(quick.model):
        for k in range(rounds + 2):   # the first compiles
            rows.append([sum(time_step(o, batches[i], bf16) for i in range(2)) for o in (plain, quick)])
    return np.array(rows[2:])


def data_rate(stream, policy, rounds, batches=10):
    "Records a second of one core, from the files to tensors, a number a round."
    it = iter(loader(Batches(stream, Collate(policy.processor, stream.facts.names)), BatchNumbers()))
    rates = []
    for _ in range(rounds + 1):
        start = time.process_time()
        for _ in range(batches): next(it)
        rates.append(batches * stream.batch / (time.process_time() - start))
    return rates[1:]


def main():
    p = argparse.ArgumentParser(COMMAND, description=__doc__)
    for size in ('quick', 'full'): p.add_argument(f'--{size}', action='store_const', const=size, dest='size', default='default')
    p.add_argument('--threads', type=int, help="of torch, by default all cores")
    args = p.parse_args()
    if args.threads: torch.set_num_threads(args.threads)
    logging.getLogger('lightning.pytorch').setLevel(logging.ERROR)
    rounds, rng, policy = ROUNDS[args.size], np.random.default_rng(0), small_policy()
    with tempfile.TemporaryDirectory() as home:
        write_corpus(home, (record(policy, rng, i) for i in range(RECORDS)), vocabulary=vocabulary(policy.processor))
        stream = Stream(dict(bench=Corpus(home)), batch=BATCH)
        rates, pad = data_rate(stream, policy, rounds), padding(stream.facts.length[[stream[k] for k in range(stream.pool)]])
        ours, bare, precision = overhead(policy, stream, rounds)
        gains = {k: compiling(policy, stream, rounds, precision.startswith('bf16'), frozen) for k, frozen in dict(all=(), decoder=('stem', 'closeup')).items()}
    facts = dict(command=COMMAND, machine=machine(torch=torch.__version__))
    figures = dict(sft_overhead=figure(ratio(ours[:, :1], bare[:, :1]), **facts), sft_overhead_cpu=figure(ratio(ours[:, 1:], bare[:, 1:]), unit="x its time on the processor", **facts),
                   sft_step_ms=figure(typical(1000 * ours[:, :1]), unit='ms', **facts), sft_data_rate=figure(median_interval(rates), unit='records/s of one core', **facts),
                   sft_padding=Figure(pad, n=stream.pool * BATCH, unit='share of all tokens', **facts))
    figures |= {f'sft_compiled_{k}': figure(ratio(o[:, :1], o[:, 1:]), unit='x', **facts) for k, o in gains.items()}
    record_figures('sft', figures)
    write_json('reports/sft/rounds.json', dict(step=ours.tolist(), bare=bare.tolist(), precision=precision, threads=torch.get_num_threads(), batch=BATCH, data_rate=rates, compiled={k: o.tolist() for k, o in gains.items()}))
    for id, fig in figures.items(): print(f'{id:20} {fig}' + ('' if fig.low is None else f'  [{fig.low:.3g}, {fig.high:.3g}]'))


if __name__ == '__main__': main()
