#!/usr/bin/env python3
"""Hours of requests of every kind through `fut run -i`: nothing may grow, drift or change.

  tests/soak.py [--seconds 7200] [--fut build/cpu/bin/fut] [--batch 16] [--rows 100] [--seed 1] [-- FLAGS OF fut run]

On a GPU: tests/soak.py --seconds 480 --fut build/cuda/bin/fut --batch 32 --rows 2000 --latency wall -- --device cuda

Rows have random prompts (of a few tokens up to more than the context holds), chat and raw, every sampling
setting, stop texts that cancel a reply in its middle, and mistakes. Every sixteenth row is the canary: one prompt
whose ids and log probabilities have to be the same bits at every check. Four fifths of the time go to one process,
whose memory and latency are sampled; the rest to short files that are killed, terminated and resumed, and have to
come out as without.

The long process begins with rows as long as they can be, so that all memory that a reply may need is in use when
they are done. From then on growth and drift are judged by a straight line through the means of 20 stretches of
time, against the error of its slope: a verdict is wrong once in a thousand times. --prove shows on made-up series
that it is able to tell. Exits with 0 where all is well, with 1 where something grew, drifted or changed.
"""
import argparse
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STRETCHES = 20
QUANTILE = 3.610  # of Student's t at 99.9 % with STRETCHES - 2 degrees of freedom
ALLOCATOR_STEP = 128.0  # KiB: glibc takes memory from the system in no smaller pieces (M_TOP_PAD)
CANARY = {'id': 'canary', 'prompt': 'Once upon a time there was a king who', 'raw': True, 'temperature': 0.8,
          'top_p': 0.9, 'seed': 7, 'max_tokens': 24, 'logprobs': 3, 'ignore_eos': True}
CANARY_EVERY = 16
MISTAKES = [('no json', 3), ('[1]', 3), ('{"id": 1}', 2), ('{"prompt": 5}', 3), ('{"prompt": "a", "top_p": 2}', 2),
            ('{"prompt": "a", "temprature": 1}', 2), ('{"prompt": "a", "stop": ["a", ""]}', 2)]


# ---- rows ----------------------------------------------------------------------------------------

class Rows:
    """Rows by number, the same for a seed."""

    def __init__(self, seed, batch):
        self.num_full = 2 * batch
        with open(os.path.join(ROOT, 'configs', 'calibration.txt'), encoding='utf-8') as file:
            self.text = file.read()
        self.seed = seed

    def row(self, number):
        """The line and the exit code that its error has; 0: none, None: it depends."""
        if number % CANARY_EVERY == 0:
            return json.dumps(CANARY), 0
        dice = random.Random(f'{self.seed} {number}')
        if number < self.num_full:  # nearly, or a little more than, the whole context
            start = dice.randrange(len(self.text) - 4000)
            return json.dumps({'prompt': self.text[start:start + dice.randrange(2000, 2700)], 'raw': True,
                               'max_tokens': 100, 'ignore_eos': True, 'logprobs': 5}), None
        if dice.random() < 0.06:
            return dice.choice(MISTAKES)
        row = {'id': number, 'seed': dice.randrange(2**63), 'max_tokens': 1 + int(dice.expovariate(1 / 20))}
        length = int(math.exp(dice.uniform(0, math.log(1500))))
        if dice.random() < 0.01:
            length = 20000  # does not fit
        start = dice.randrange(len(self.text) - length)
        prompt = self.text[start:start + length]
        if dice.random() < 0.4:
            row['messages'] = [{'role': 'user', 'content': prompt}]
        else:
            row.update(prompt=prompt, raw=dice.random() < 0.7)
        settings = {'temperature': dice.choice([0, 0.3, 0.8, 1.5]), 'top_k': dice.choice([0, 1, 5, 200]),
                    'top_p': dice.choice([1, 0.95, 0.5]), 'min_p': dice.choice([0, 0.05]),
                    'repetition_penalty': dice.choice([1, 1.1]), 'frequency_penalty': dice.choice([0, 0.5]),
                    'repeat_last_n': dice.choice([64, -1]), 'logprobs': dice.choice([1, 5]),
                    'ignore_eos': dice.random() < 0.3}
        row.update(dice.sample(sorted(settings.items()), dice.randrange(len(settings))))
        if dice.random() < 0.3:
            row['stop'] = dice.sample(['the', '.', 'e', ' said', '\n'], dice.randrange(1, 4))
        return json.dumps(row), 4 if length == 20000 else None

    def write(self, path, first, count):
        with open(path, 'w', encoding='utf-8') as file:
            for number in range(first, first + count):
                file.write(self.row(number)[0] + '\n')


class Judge:
    """Looks at replies. The first canary is what all others are held against."""

    def __init__(self, rows):
        self.rows, self.canary = rows, None
        self.problems, self.replies, self.canaries, self.mistakes, self.stops, self.tokens = [], 0, 0, 0, 0, 0

    def problem(self, text):
        if len(self.problems) < 20:
            self.problems.append(text)

    def look(self, line, number, index):
        reply = json.loads(line)
        code = self.rows.row(number)[1]
        error = reply.get('error', {}).get('code', 0)
        self.replies += 1
        if reply['index'] != index:
            self.problem(f'row {number}: index {reply["index"]} where {index} is due')
        if error != code and (code is not None or error not in (0, 4)):
            self.problem(f'row {number}: error {reply.get("error")}, expected {code}')
        if error:
            self.mistakes += 1
            return
        self.tokens += len(reply['ids'])
        self.stops += reply['finish_reason'] == 'stop'
        if number % CANARY_EVERY == 0:
            self.canaries += 1
            bits = {key: reply[key] for key in ('ids', 'text', 'logprobs', 'finish_reason')}
            self.canary = self.canary or bits
            if bits != self.canary:
                self.problem(f'row {number}: the canary changed: {reply["text"]!r}')


# ---- one long process ----------------------------------------------------------------------------

def resident_kib(pid):
    with open(f'/proc/{pid}/status', encoding='ascii') as file:
        return float(re.search(r'^RssAnon:\s*(\d+)', file.read(), re.M).group(1))


def cpu_seconds(pid):
    with open(f'/proc/{pid}/stat', encoding='ascii') as file:
        fields = file.read().rpartition(')')[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')


class LongRun:
    """Samples of a process that replies until its time is over: memory, and what a token costs."""

    def __init__(self, command, judge, seconds, latency):
        self.memory, self.latency, self.filled = [], [], 0.0
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        errors = []
        reader = threading.Thread(target=lambda: errors.extend(self.process.stderr))
        reader.start()
        self.start, self.over = time.monotonic(), threading.Event()
        sampler = threading.Thread(target=self.sample_memory, args=(seconds,))
        sampler.start()
        cpu = at = 0.0
        tokens = 0
        for index, line in enumerate(self.process.stdout):
            before = judge.tokens
            judge.look(line, index, index)
            tokens += judge.tokens - before
            if index % 4:
                continue
            # What a token took since the last look.
            if not self.filled and index >= judge.rows.num_full:
                self.filled = time.monotonic() - self.start
            now, used = time.monotonic() - self.start, self.cpu()
            if at and tokens and index > judge.rows.num_full:
                spent = used - cpu if latency == 'cpu' else now - at
                self.latency.append((now, 1000 * spent / tokens))
            cpu, at, tokens = used, now, 0
        self.code = self.process.wait()
        self.over.set()
        reader.join()
        sampler.join()
        if self.code not in (0, 2, 3, 4, 143):  # that of the first bad row, or terminated
            judge.problem(f'the long run left with {self.code}: {"".join(errors)[-500:]}')

    def cpu(self):
        try:
            return cpu_seconds(self.process.pid)
        except (OSError, IndexError):
            return 0.0

    def sample_memory(self, seconds):
        while not self.over.wait(0.25):
            now = time.monotonic() - self.start
            try:
                size = resident_kib(self.process.pid)
                if self.filled:
                    self.memory.append((now, size))
            except (OSError, AttributeError):
                return  # it has left
            if now > seconds:
                self.process.terminate()
                return


# ---- verdicts ------------------------------------------------------------------------------------

def trend(samples):
    """What a straight line through the stretches rises by over all of them, and the error of that; None where
    there are too few samples."""
    if not samples:
        return None
    first, end = samples[0][0], samples[-1][0]
    width = (end - first) / STRETCHES
    stretches = [[] for _ in range(STRETCHES)]
    for at, value in samples:
        if width > 0:
            stretches[min(int((at - first) / width), STRETCHES - 1)].append(value)
    if any(len(stretch) < 3 for stretch in stretches):
        return None
    y = [sum(stretch) / len(stretch) for stretch in stretches]
    x = [(i + 0.5) / STRETCHES - 0.5 for i in range(STRETCHES)]
    spread = sum(v * v for v in x)
    mean = sum(y) / STRETCHES
    slope = sum(a * (b - mean) for a, b in zip(x, y)) / spread
    rest = sum((b - mean - slope * a) ** 2 for a, b in zip(x, y)) / (STRETCHES - 2)
    return slope, math.sqrt(rest / spread), mean


def verdict(name, unit, samples, resolution):
    """A line of report, and whether it is well."""
    found = trend(samples)
    if found is None:
        return f'{name}: {len(samples)} samples are too few for a verdict', True
    slope, error, mean = found
    grows = slope - QUANTILE * error > resolution
    return (f'{name}: mean {mean:.6g} {unit}, changed by {slope:+.4g} +- {error:.2g} {unit} over the run'
            f' ({len(samples)} samples); {"IT GROWS" if grows else "no growth"}: what is sure is'
            f' {max(0.0, slope - QUANTILE * error):.4g}, what cannot be excluded'
            f' {max(0.0, slope + QUANTILE * error):.4g}'), not grows


def prove():
    """Made-up series of which the answer is known."""
    dice = random.Random(5)
    times = [i / 4 for i in range(4000)]
    flat = [(t, 50000 + dice.gauss(0, 300)) for t in times]
    cases = [('flat', flat, True), ('falls', [(t, v - t) for t, v in flat], True),
             ('one step of the allocator', [(t, 50000.0 + (ALLOCATOR_STEP if t > 600 else 0)) for t in times], True),
             ('leaks', [(t, v + 0.6 * t) for t, v in flat], False),
             ('leaks from its middle on', [(t, v + max(0.0, t - 500)) for t, v in flat], False)]
    wrong = [name for name, samples, well in cases if verdict(name, 'KiB', samples, ALLOCATOR_STEP)[1] != well]
    false = sum(not verdict('', '', [(t, dice.gauss(1, 0.1)) for t in times[::8]], 0)[1] for _ in range(1000))
    if false > 8:  # one in a thousand: more than 8 of 1000 once in a million times
        wrong.append(f'{false} of 1000 that do not drift')
    print('wrong: ' + ', '.join(wrong) if wrong else 'growth is told from none')
    return 1 if wrong else 0


# ---- short files that are killed and resumed -----------------------------------------------------

def lasting(path):
    with open(path, encoding='utf-8') as file:
        lines = [json.loads(line) for line in file]
    for line in lines:
        line.pop('timings', None)
    return lines


def interrupted_rounds(command, judge, folder, until, count, dice):
    """Files of `count` rows, replied to at once and with interruptions; how many, and how many interruptions."""
    first, rounds, stops = 10**6, 0, 0
    prompts, whole, torn = (os.path.join(folder, name) for name in ('prompts', 'whole', 'torn'))
    while rounds == 0 or time.monotonic() < until:
        judge.rows.write(prompts, first, count)
        start = time.monotonic()
        run = command + ['-i', prompts, '--output-file']
        subprocess.run(run + [whole, '--overwrite'], stderr=subprocess.DEVNULL, check=False)
        took = time.monotonic() - start
        with open(whole, encoding='utf-8') as file:
            for index, line in enumerate(file):
                judge.look(line, first + index, index)
        if os.path.exists(torn):
            os.remove(torn)
        for kind in dice.sample([signal.SIGKILL, signal.SIGTERM, signal.SIGINT], 3):
            process = subprocess.Popen(run + [torn, '--resume'], stderr=subprocess.DEVNULL)
            try:
                process.wait(dice.uniform(0.1, 0.6) * took)
            except subprocess.TimeoutExpired:
                process.send_signal(kind)
                stops += 1
                code = process.wait()
                if code not in (0, 2, 3, 4, -kind if kind == signal.SIGKILL else 128 + kind):
                    judge.problem(f'round {rounds}: {kind.name} gave {code}')
        subprocess.run(run + [torn, '--resume'], stderr=subprocess.DEVNULL, check=False)
        if lasting(torn) != lasting(whole):
            judge.problem(f'round {rounds}: what was interrupted and resumed is not what runs at once')
        first += count
        rounds += 1
    return rounds, stops


def main():
    words = sys.argv[1:]
    flags = words[words.index('--') + 1:] if '--' in words else ['--device', 'cpu', '--precision', 'f32']
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--seconds', type=float, default=7200)
    parser.add_argument('--fut', default=os.path.join(ROOT, 'build', 'cpu', 'bin', 'fut'))
    parser.add_argument('--model', default=os.path.join(ROOT, 'configs', 'demo-6m'))
    parser.add_argument('--batch', type=int, default=16)
    parser.add_argument('--rows', type=int, default=100,
                        help='that are there for each second, more than are done; 550 bytes each, in a temporary folder')
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--latency', choices=['cpu', 'wall'], default='cpu',
                        help='processor time a token, which neighbours leave alone, or the time that passes')
    parser.add_argument('--prove', action='store_true', help='show that growth is told from none, and leave')
    options = parser.parse_args(words[:words.index('--')] if '--' in words else words)
    if options.prove:
        return prove()
    start = time.monotonic()
    is_long = options.seconds >= 60  # a shorter run shows that all this works, and no more
    judge = Judge(Rows(options.seed, options.batch if is_long else 0))
    command = [options.fut, 'run', '-m', options.model, '-b', str(options.batch), '-q'] + flags
    with tempfile.TemporaryDirectory() as folder:
        prompts = os.path.join(folder, 'long')
        judge.rows.write(prompts, 0, max(1000, int(options.rows * options.seconds)))
        long_run = LongRun(command + ['-i', prompts], judge, 0.8 * options.seconds, options.latency)
        lasted = time.monotonic() - long_run.start
        if is_long and lasted < 0.75 * options.seconds and long_run.code in (0, 2, 3, 4):
            judge.problem(f'rows were used up after {lasted:.0f} s: give it more of them (--rows)')
        rounds, stops = interrupted_rounds(command, judge, folder, start + options.seconds,
                                           3 * CANARY_EVERY if is_long else CANARY_EVERY + 1,
                                           random.Random(options.seed))
    memory, memory_is_well = verdict('memory', 'KiB', long_run.memory, ALLOCATOR_STEP)
    latency, latency_is_well = verdict(f'a token ({options.latency})', 'ms', long_run.latency, 0)
    print(f'{judge.replies} rows in {time.monotonic() - start:.0f} s: {judge.tokens} tokens, {judge.mistakes} rows'
          f' with mistakes, {judge.stops} replies cancelled by stop texts, {rounds} files interrupted {stops} times'
          f'\ncanary: {judge.canaries} checks\n{memory}\n{latency}')
    for problem in judge.problems:
        print('PROBLEM ' + problem)
    return 0 if memory_is_well and latency_is_well and not judge.problems and judge.canaries > 1 else 1


if __name__ == '__main__':
    sys.exit(main())
