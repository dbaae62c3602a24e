#!/usr/bin/env python3
"""The engine and PyTorch in turn on one GPU, so that both see the same clocks, power and neighbours.

    alternate.py [options] [POINT ...]

A POINT is SIZE:BATCH, a block of a decode step (8b:1, 70b:32), or step:BATCH, a whole step of 8B with
greedy sampling; all of these by default. For each, torch_peers.py --serve (BF16 and INT4) and
fut bench --serve run for --warm-up milliseconds, then --rounds times for --round milliseconds each in
turn. Ours of a block is a step's layers, over their number.

prefill-SIZE:PACK is a block over prompts (prefill-8b:4x2048, four of 2048 tokens; prefill-70b:mixed,
17 of 30 to 3000), against FP8 with one scale and, unless --no-tuned, the same compiled with
max-autotune; mixed ones against variable-length and padded attention. prefill-8b stands for all of its
packs. What PyTorch compiles first takes minutes: it is kept in --cache, and what each took is said. No
point begins after --seconds.

Prints a line for each point as it is done, all of them again last, and writes one line of JSON for each
with --out. Exits with 1 where a point failed or was left out, and with 2 where it was called wrongly.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

POINTS = ["8b:1", "8b:8", "8b:32", "70b:1", "70b:8", "70b:32", "step:1", "step:8", "step:32"]
PACKS = ["1x512", "1x2048", "4x2048", "8x2048", "mixed"]
PREFILL_POINTS = [f"prefill-{size}:{pack}" for size in ("8b", "70b") for pack in PACKS]
FLAVOURS = ("bf16", "int4")
PRODUCT = "gemm-fp8-8192x8192x8192"  # what PyTorch's own products do on the same card
READ_MS = 200
CLOCK_FIELDS = ("clocks.sm", "clocks.mem", "power.draw")
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


class Failure(Exception):
    pass


class Server:
    """A program that answers a line by a line of JSON."""

    def __init__(self, name, command, log):
        self.name = name
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=log, text=True, bufsize=1)
        self.hello = self.read()

    def read(self):
        for line in self.process.stdout:
            if line.startswith("{"):
                answer = json.loads(line)
                if "error" in answer:
                    raise Failure(f"{self.name}: {answer['error']}")
                return answer
        raise Failure(f"{self.name} ended with {self.process.wait()}")

    def ask(self, line):
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # read() says how it ended
        return self.read()

    def close(self):
        try:
            self.process.stdin.close()
            self.process.wait(timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()


class Clocks:
    """What nvidia-smi reads twice a second while others run."""

    def __init__(self):
        command = ["nvidia-smi", "--query-gpu=" + ",".join(CLOCK_FIELDS),
                   "--format=csv,noheader,nounits", "--loop-ms=500"]
        try:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True,
                                            stderr=subprocess.DEVNULL)
        except OSError:
            self.process = None

    def end(self):
        """Median, least and most of each; empty where there is nothing to read."""
        if self.process is None:
            return {}
        self.process.terminate()
        text, _ = self.process.communicate()
        samples = []
        for line in text.splitlines():
            try:
                samples.append([float(word) for word in line.split(",")])
            except ValueError:
                continue  # cut off, or "[N/A]"
        columns = list(zip(*(s for s in samples if len(s) == len(CLOCK_FIELDS))))
        return {field: [statistics.median(column), min(column), max(column)]
                for field, column in zip(CLOCK_FIELDS, columns)}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("points", nargs="*", metavar="POINT")
    parser.add_argument("--fut", default=os.path.join(ROOT, "build/cuda/bin/fut"))
    parser.add_argument("--configs", default=os.path.join(ROOT, "configs"), metavar="FOLDER",
                        help="with llama-3.1-8b.json and llama-3.1-70b.json")
    parser.add_argument("--peers", default=os.path.join(HERE, "torch_peers.py"), metavar="FILE")
    parser.add_argument("--cache", metavar="FOLDER", help="where PyTorch keeps compiled code")
    parser.add_argument("--device", default="cuda", help="ours [cuda]")
    parser.add_argument("--precision", default="int4", help="ours [int4]")
    parser.add_argument("--prefill-precision", default="int4", help="ours over prompts [int4]")
    parser.add_argument("--prefill-layers", type=int, default=8, metavar="N",
                        help="ours over prompts are blocks of so many layers [8]")
    parser.add_argument("--no-tuned", dest="tuned", action="store_false")
    parser.add_argument("--seconds", type=float, metavar="S", help="no point begins after so many")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--round", type=int, default=100, metavar="MS")
    parser.add_argument("--warm-up", type=int, default=2000, metavar="MS")
    parser.add_argument("--out", metavar="FILE", help="a line of JSON for each point is added to it")
    parser.add_argument("--log", metavar="FILE", help="what the programs say on standard error")
    options = parser.parse_args()
    points = []
    for point in options.points or POINTS:
        points += [p for p in PREFILL_POINTS if point == p.split(":")[0]] or [point]
        if points[-1] not in POINTS + PREFILL_POINTS:
            parser.error(f"no point '{point}'; there are {', '.join(POINTS + PREFILL_POINTS)}")
    options.points = points
    return options


def is_prefill(point):
    return point.startswith("prefill-")


def cases_of(options, point):
    """What PyTorch measures for a point, by the name of the column."""
    kind, which = point.split(":")
    if not is_prefill(point):
        size, case = ("8b", "step") if kind == "step" else (kind, "block")
        return {flavour: f"{case}-{size}-{flavour}-b{which}" for flavour in FLAVOURS}
    size = kind.split("-")[1]
    if which == "mixed":
        packs = {"fp8": "mixed", "padded": "padded"}
    else:
        sequences, tokens = which.split("x")
        packs = {"fp8": f"{tokens}x{sequences}"}
    cases = {name: f"prefill-{size}-fp8-{pack}" for name, pack in packs.items()}
    if options.tuned:
        cases["tuned"] = cases["fp8"] + "-tuned"
    return cases


def start_ours(options, point, log):
    kind, which = point.split(":")
    size = "8b" if kind == "step" else kind.split("-")[-1]
    command = [options.fut, "bench", "--device", options.device, "--temp", "0", "--serve",
               "-o", "jsonl", "--dummy", os.path.join(options.configs, f"llama-3.1-{size}.json")]
    if is_prefill(point):
        command += ["--precision", options.prefill_precision, "--prompts", which,
                    "--layers", str(options.prefill_layers)]
    else:
        command += ["--precision", options.precision, "-b", which, "-d", str(options.context)]
    try:
        return Server("fut", command, log)
    except OSError as error:
        raise Failure(str(error)) from None


def summary(values):
    return {"us": statistics.median(values), "us_least": min(values), "us_most": max(values)}


def measure(options, peers, ours, cases, what):
    """Rounds in turn; whoever was last begins the next one. Microseconds by name."""
    key = {"layers": "us_layer", "step": "us"}[what]

    def run(name, milliseconds):
        if name == "ours":
            return ours.ask(f"{what} {milliseconds}")[key]
        return peers.ask(f"{cases[name]} {milliseconds}")["us_block"]

    names = [*cases, "ours"]
    for name in names:
        run(name, options.warm_up)
    clocks = Clocks()
    times = {name: [] for name in names}
    for turn in range(options.rounds):
        for name in names[turn % len(names):] + names[:turn % len(names)]:
            times[name].append(run(name, options.round))
    return {name: summary(values) for name, values in times.items()}, clocks.end()


def add_products(result, peers, ours, times):
    """Of prompts, bound by arithmetic: operations a second, beside those of products alone."""
    flops = ours.ask("layers 1")["flops_layer"]
    result["flops"] = flops
    result["PFLOPs"] = {name: flops / of["us"] / 1e9 for name, of in times.items()}
    result["ours_roof_PFLOPs"] = ours.ask("roof")["product_roof_flops_per_second"] / 1e15
    result["peer_product_PFLOPs"] = peers.ask(f"{PRODUCT} {READ_MS}")["TFLOPs"] / 1e3


def run_point(options, peers, point, log):
    begin = time.time()
    what = "step" if point.startswith("step:") else "layers"
    cases, attention, missing, built = {}, {}, {}, {}
    for flavour, name in cases_of(options, point).items():
        try:
            answer = peers.ask(f"build {name}")
            attention[flavour], built[flavour] = answer.get("attention"), answer.get("built_s")
            cases[flavour] = name
        except Failure as failure:  # the other may still be there
            missing[flavour] = str(failure)
    if not cases:
        raise Failure("; ".join(missing.values()))
    try:
        ours = start_ours(options, point, log)
        try:
            times, clocks = measure(options, peers, ours, cases, what)
            result = {"point": point, **times, "attention": attention, "clocks": clocks}
            if is_prefill(point):
                add_products(result, peers, ours, times)
            else:
                result["ours_read_TBps"] = ours.ask("roof")["read_roof_bytes_per_second"] / 1e12
        finally:
            ours.close()
        if not is_prefill(point):
            result["peer_read_TBps"] = peers.ask(f"read {READ_MS}")["TBps"]
        result["faster"] = min(cases, key=lambda flavour: times[flavour]["us"])
        result["ratio"] = times[result["faster"]]["us"] / times["ours"]["us"]
    finally:
        for name in cases.values():
            peers.ask(f"drop {name}")
    result.update(missing=missing, built_s=built, rounds=options.rounds, round_ms=options.round,
                  seconds=round(time.time() - begin, 1))
    if not is_prefill(point):
        result["context"] = options.context
    return result


def line_of(result):
    def figure(name):
        if name not in result:
            return f"{name} failed"
        times = result[name]
        spread = 100 * (times["us_most"] - times["us_least"]) / times["us"]
        return f"{name} {times['us']:.1f} (+-{spread / 2:.1f}%)"

    peers = [*result["built_s"], *result["missing"]]
    words = [f"{result['point']:<8}", figure("ours"), "us,",
             ", ".join(figure(name) for name in peers) + ":", f"{result['ratio']:.2f}x the faster;"]
    if "PFLOPs" in result:
        rates = ", ".join(f"{name} {rate:.3f}" for name, rate in result["PFLOPs"].items())
        words += [f"{rates} PFLOP/s; products alone {result['ours_roof_PFLOPs']:.2f} (ours),",
                  f"{result['peer_product_PFLOPs']:.2f} (cuBLASLt); built in",
                  ", ".join(f"{name} {took} s" for name, took in result["built_s"].items())]
    else:
        words += [f"read {result['ours_read_TBps']:.2f}, {result['peer_read_TBps']:.2f} TB/s"]
    for field, unit in (("clocks.sm", "MHz"), ("clocks.mem", "MHz"), ("power.draw", "W")):
        if field in result["clocks"]:
            words.append(f"{result['clocks'][field][0]:.0f} {unit}")
    return " ".join(words)


def main():
    options = parse_arguments()
    log = open(options.log, "a", encoding="utf-8") if options.log else None
    command = [sys.executable, options.peers, "--serve", "--context", str(options.context)]
    if options.cache:
        command += ["--cache", options.cache]
    lines, failed, begin = [], False, time.time()
    try:
        peers = Server("torch_peers.py", command, log)
    except Failure as failure:
        sys.exit(f"alternate.py: {failure}")
    try:
        for point in options.points:
            try:
                if options.seconds is not None and time.time() - begin > options.seconds:
                    raise Failure(f"left out: {options.seconds:.0f} s are over")
                result = run_point(options, peers, point, log)
                lines.append(line_of(result))
            except Failure as failure:
                result = {"point": point, "error": str(failure)}
                lines.append(f"{point:<8} FAILED: {failure}")
                failed = True
            print(lines[-1], flush=True)
            if options.out:
                with open(options.out, "a", encoding="utf-8") as out:
                    out.write(json.dumps(result) + "\n")
    finally:
        peers.close()
    print("\n" + "\n".join(lines))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
