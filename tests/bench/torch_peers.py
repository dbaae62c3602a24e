#!/usr/bin/env python3
"""PyTorch beside the engine: blocks and whole steps of Llama-3.1 in CUDA graphs, on one Hopper GPU.

    torch_peers.py [options] OUT.jsonl [CASE ...]   measures each case once, a line of JSON for each
    torch_peers.py [options] --serve [CASE ...]     keeps graphs and measures when asked to
    torch_peers.py --list                           the names of all cases

A CASE may be a pattern ('block-8b-*'); without one, all that need neither transformers nor tuning.

  block-SIZE-FLAVOUR-bBATCH   a block of a decode step at --context, BF16 or INT4 (tinygemm); the graph
                              goes over so many layers that no cache serves their weights
  step-8b-FLAVOUR-bBATCH      32 blocks, a BF16 head and the largest logit, whose token goes round
  prefill-SIZE-FLAVOUR-TxS    a block over S prompts of T tokens; FP8 with one scale (fp8) or one for
                              each token and output (fp8row), fast accumulation
  prefill-SIZE-FLAVOUR-mixed  the same over 17 prompts of 30 to 3000 tokens laid end to end, attention
                              over variable lengths; -padded: over 17 of 3000, operations counted as
                              for -mixed
  ...-tuned                   of either, compiled with max-autotune, which takes minutes
  gate-up-SIZE-FLAVOUR-T      that product and SwiGLU alone
  gemm-FLAVOUR-MxNxK          a product alone
  read, copy                  4 GiB: what memory gives
  hf-8b-b1                    the compiled step of transformers, without a graph of ours

--serve says {"ready": ...} and answers each line of standard input by a line of JSON:
  CASE MS      replays for at least MS milliseconds: median and extremes of a replay in
               microseconds. Builds the case first if need be: seconds to half a minute
  build CASE   builds it
  drop CASE    frees it, and weights that no other case uses
  clocks       what nvidia-smi says
  quit         as the end of input
Everything else that is printed, compilers' words among it, goes to standard error.

Memory, by counting: a block in BF16 and INT4 at most 11 GB (70B, batch 32), a whole step in both at most 39
(batch 32), read 4, and 4 more while it is built.
"""

import argparse
import fnmatch
import gc
import json
import math
import os
import statistics
import subprocess
import sys
import time
import traceback

try:
    import torch
    import torch._inductor.config

    import torch_blocks as blocks
except ImportError as error:
    sys.exit(f"torch_peers.py: {error}")

BATCHES = (1, 8, 32)
PREFILL_TOKENS = (512, 2048)
PREFILL_SEQUENCES = (1, 4, 8)
PREFILL_PACKS = tuple(f"{tokens}x{sequences}" for tokens in PREFILL_TOKENS
                      for sequences in PREFILL_SEQUENCES) + ("mixed", "padded")
GEMMS = ((8192, 8192, 8192), (4096, 28672, 4096), (4096, 4096, 14336), (8192, 57344, 8192),
         (8192, 8192, 28672), (16384, 28672, 4096))
# Layers of a graph, and how often it goes over them: so that a replay takes milliseconds, beside which
# the gap between two replays is nothing, and so that the second-level cache (60 MB) holds no weight until
# its turn comes again.
DECODE_LAYERS = {"8b": (8, 4), "70b": (4, 2)}
PREFILL_LAYERS = {"8b": 3, "70b": 2}
READ_BYTES = 4 << 30
NEEDS_TRANSFORMERS = "hf-8b-b1"


def case_names():
    """In an order in which neighbours share weights."""
    names = ["read", "copy"]
    for size in ("8b", "70b"):
        for flavour in ("int4", "bf16"):
            names += [f"block-{size}-{flavour}-b{batch}" for batch in BATCHES]
            if size == "8b":
                names += [f"step-{size}-{flavour}-b{batch}" for batch in BATCHES]
        for flavour in ("fp8", "fp8row", "bf16"):
            names += [f"prefill-{size}-{flavour}-{pack}{tuned}"
                      for pack in PREFILL_PACKS for tuned in ("", "-tuned")]
        names += [f"gate-up-{size}-{flavour}-{tokens}"
                  for flavour in ("bf16", "fp8") for tokens in (4096, 8192, 16384)]
    for flavour in ("bf16", "fp8"):
        names += [f"gemm-{flavour}-{m}x{n}x{k}" for m, n, k in GEMMS]
    return names + [NEEDS_TRANSFORMERS]


def matching(patterns):
    names = case_names()
    if not patterns:
        return [name for name in names
                if name != NEEDS_TRANSFORMERS and not name.endswith("-tuned")]
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            sys.exit(f"torch_peers.py: no case '{pattern}'; see --list")
    return [name for name in names if any(fnmatch.fnmatchcase(name, p) for p in patterns)]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="OUT.jsonl | CASE")
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--context", type=int, default=2048, help="of decode [2048]")
    parser.add_argument("--cache", metavar="FOLDER",
                        help="where compiled code is kept [$TORCHINDUCTOR_CACHE_DIR]")
    parser.add_argument("--attention", metavar="NAME",
                        help="'masked', 'unmasked, grouped', ...: not the fastest, but this one")
    parser.add_argument("--coordinate-descent", action="store_true",
                        help="tunes the compiler's own kernels longer")
    parser.add_argument("--seconds", type=float, default=1.0,
                        help="how long a case is replayed without --serve, warm-up the same [1]")
    return parser.parse_args()


def clocks():
    fields = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu")
    try:
        text = subprocess.run(
            ["nvidia-smi", "--query-gpu=" + ",".join(fields), "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=20, check=True).stdout
        return dict(zip(fields, (float(word) for word in text.splitlines()[0].split(","))))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        return {"error": str(error)}


class Case:
    """A graph, and all that must live as long as it does."""

    def __init__(self, replay, count=1, keep=(), weights=None, **facts):
        self.replay = replay
        self.count = count  # of blocks in a replay
        self.keep = keep
        self.weights = weights  # key of what it takes from the store
        self.facts = facts      # numbers `bytes` and `flops` are those of a block


class Peers:
    """Builds cases, shares weights among them, replays."""

    def __init__(self, options):
        self.options = options
        self.cases = {}
        self.layers = {}  # (size, flavour) -> list of layers

    # ---- building

    def build(self, name):
        if name in self.cases:
            return self.cases[name]
        if name not in case_names():
            raise ValueError(f"no case '{name}'")
        torch._dynamo.reset()  # what was compiled for other cases: their graphs do without it
        words = name.split("-")
        makers = {"read": self.read, "copy": self.copy, "block": self.decode_blocks,
                  "step": self.decode_step, "prefill": self.prefill, "gate": self.gate_up,
                  "gemm": self.gemm, "hf": self.transformers_step}
        begin = time.time()
        with torch.no_grad():
            case = makers[words[0]](*words[1:])
        case.facts["built_s"] = round(time.time() - begin, 1)
        self.cases[name] = case
        return case

    def drop(self, name, and_weights=True):
        if self.cases.pop(name, None) is None:
            raise ValueError(f"'{name}' is not built")
        if and_weights:
            self.drop_weights()
        gc.collect()
        torch.cuda.empty_cache()

    def drop_weights(self, but=None):
        """Of all layers that no case uses."""
        used = {case.weights for case in self.cases.values()} | {but}
        self.layers = {key: layers for key, layers in self.layers.items() if key in used}

    def take_layers(self, size, flavour, count):
        self.drop_weights(but=(size, flavour))
        layers = self.layers.setdefault((size, flavour), [])
        shape = blocks.SHAPES[size]
        while len(layers) < count:
            layers.append(blocks.make_layer(shape, flavour))
        return layers[:count]

    def compile(self, function, tuned=True):
        more = {"mode": "max-autotune-no-cudagraphs"} if tuned else {}
        return torch.compile(function, fullgraph=True, dynamic=False, **more)

    def decode_state(self, shape, batch, count):
        """Caches of `count` layers, and what all layers share: position, cos, sin, mask."""
        context = self.options.context
        size = (batch, shape["kv_heads"], context, blocks.HEAD_DIM)
        caches = [tuple(torch.randn(size, device=blocks.DEVICE, dtype=torch.bfloat16) for _ in "kv")
                  for _ in range(count)]
        position = torch.tensor([context - 1], device=blocks.DEVICE)
        mask = torch.ones(1, 1, 1, context, device=blocks.DEVICE, dtype=torch.bool)
        return caches, (position, *blocks.angles(1), mask)

    def decode_attention(self, shape, batch, caches, mask):
        """The fastest way to attend over these caches."""
        forms = blocks.DECODE_ATTENTION
        q = torch.randn(batch, shape["q_heads"], 1, blocks.HEAD_DIM, device=blocks.DEVICE,
                        dtype=torch.bfloat16)

        def all_caches(attend):
            return lambda: [attend(q, k, v, mask) for k, v in caches]

        return self.fastest({name: all_caches(attend) for name, attend in forms.items()},
                            wanted=self.options.attention)

    def decode_blocks(self, size, flavour, batch):
        count, passes = DECODE_LAYERS[size]
        shape, batch = blocks.SHAPES[size], int(batch[1:])
        layers = self.take_layers(size, flavour, count)
        caches, shared = self.decode_state(shape, batch, count)
        form = self.decode_attention(shape, batch, caches, shared[-1])
        block = self.compile(blocks.decode_block(shape, flavour, batch,
                                                      blocks.DECODE_ATTENTION[form]))
        x = torch.randn(batch, 1, shape["hidden"], device=blocks.DEVICE, dtype=torch.bfloat16)

        def run():
            y = x
            for i in range(count * passes):
                y = block(y, layers[i % count], *caches[i % count], *shared)
            return y

        replay, kept = graphed(run)
        return Case(replay, count * passes, (kept, run), (size, flavour), attention=form)

    def decode_step(self, size, flavour, batch):
        shape, batch = blocks.SHAPES[size], int(batch[1:])
        count = shape["layers"]
        layers = self.take_layers(size, flavour, count)
        embedding = blocks.random_bf16(shape["vocab"], shape["hidden"]).mul_(0.02)
        head = blocks.make_bf16(shape["vocab"], shape["hidden"])
        gain = torch.ones(shape["hidden"], device=blocks.DEVICE, dtype=torch.bfloat16)
        caches, shared = self.decode_state(shape, batch, count)
        form = self.decode_attention(shape, batch, caches, shared[-1])
        block = self.compile(blocks.decode_block(shape, flavour, batch,
                                                      blocks.DECODE_ATTENTION[form]))
        largest = self.compile(lambda y, weight: blocks.multiply_bf16(
            blocks.normalised(y, gain), weight).argmax(-1))
        tokens = torch.zeros(batch, 1, device=blocks.DEVICE, dtype=torch.long)

        def run():
            y = embedding[tokens]
            for layer, cache in zip(layers, caches):
                y = block(y, layer, *cache, *shared)
            tokens.copy_(largest(y, head))

        replay, kept = graphed(run)
        return Case(replay, 1, (kept, run), (size, flavour), attention=form)

    def prefill(self, size, flavour, pack, tuned=None):
        if pack == "mixed":
            return self.packed_prefill(size, flavour, tuned)
        lengths = blocks.MIXED
        if pack == "padded":
            tokens, sequences = max(lengths), len(lengths)
        else:
            tokens, sequences = (int(word) for word in pack.split("x"))
            lengths = (tokens,) * sequences
        shape, count = blocks.SHAPES[size], PREFILL_LAYERS[size]
        layers = self.take_layers(size, flavour, count)
        cos, sin = blocks.angles(tokens)
        q, k_cache, v_cache = self.prefill_heads(shape, sequences, tokens)
        contexts = blocks.PREFILL_ATTENTION

        def attend_in(context):
            def run():
                with context():
                    return blocks.causal(*(t.transpose(1, 2) for t in (q, k_cache, v_cache)))
            return run

        form = self.fastest({name: attend_in(context) for name, context in contexts.items()},
                            wanted=self.options.attention)
        block = self.compile(blocks.prefill_block(shape, flavour, tokens, sequences),
                             tuned=bool(tuned))
        x = blocks.random_bf16(sequences * tokens, shape["hidden"])[None]
        with contexts[form]():
            return self.prefill_case(block, layers, (x, k_cache, v_cache, cos, sin), lengths, form,
                                     (size, flavour))

    def packed_prefill(self, size, flavour, tuned):
        lengths = blocks.MIXED
        shape, count = blocks.SHAPES[size], PREFILL_LAYERS[size]
        layers = self.take_layers(size, flavour, count)
        packed = blocks.Packed(lengths)
        cos, sin = (torch.cat([t[:tokens] for tokens in lengths])
                    for t in blocks.angles(packed.longest))
        q, k_cache, v_cache = self.prefill_heads(shape, packed.tokens)
        forms = blocks.VARLEN_ATTENTION

        def attend_by(attend):
            return lambda: attend(packed, q, k_cache, v_cache)

        form = self.fastest({name: attend_by(attend) for name, attend in forms.items()},
                            wanted=self.options.attention)
        block = self.compile(blocks.packed_prefill_block(shape, flavour, packed, forms[form]),
                             tuned=bool(tuned))
        x = blocks.random_bf16(packed.tokens, shape["hidden"])[None]
        return self.prefill_case(block, layers, (x, k_cache, v_cache, cos, sin), lengths, form,
                                 (size, flavour))

    @staticmethod
    def prefill_heads(shape, *leading):
        """Random q, and room for k and v."""
        return (torch.randn(*leading, shape[which], blocks.HEAD_DIM, device=blocks.DEVICE,
                            dtype=torch.bfloat16) for which in ("q_heads", "kv_heads", "kv_heads"))

    @staticmethod
    def prefill_case(block, layers, arguments, lengths, form, weights):
        x, *others = arguments
        shape = blocks.SHAPES[weights[0]]

        def run():
            y = x
            for layer in layers:
                y = block(y, layer, *others)
            return y

        replay, kept = graphed(run)
        products, attention = blocks.layer_flops(shape, lengths)
        return Case(replay, len(layers), (kept, run), weights, attention=form,
                    flops=products + attention, product_flops=products)

    def gate_up(self, _, size, flavour, tokens):
        shape, tokens = blocks.SHAPES[size], int(tokens)
        make, multiply = blocks.FLAVOURS[flavour]
        ffn = shape["ffn"]
        weight = make(2 * ffn, shape["hidden"])
        x = blocks.random_bf16(tokens, shape["hidden"])

        def swiglu(rows, matrix):
            y = multiply(rows, matrix)
            return torch.nn.functional.silu(y[:, :ffn]) * y[:, ffn:]

        compiled = self.compile(swiglu, tuned=False)
        replay, kept = graphed(lambda: compiled(x, weight))
        flops = 4 * tokens * ffn * shape["hidden"]
        return Case(replay, 1, (kept, compiled, x, weight), flops=flops)

    def gemm(self, flavour, sizes):
        m, n, k = (int(word) for word in sizes.split("x"))
        x, weight = blocks.random_bf16(m, k), blocks.random_bf16(n, k)
        if flavour == "bf16":
            def run():
                return torch.nn.functional.linear(x, weight)
        else:
            x, weight = x.to(torch.float8_e4m3fn), weight.to(torch.float8_e4m3fn).t()
            one = torch.ones((), device=blocks.DEVICE)

            def run():
                return blocks.scaled_product(x, weight, one, one)

        replay, kept = graphed(run)
        return Case(replay, 1, (kept, run), flops=2 * m * n * k)

    def read(self):
        """Reading and nothing else: the fastest of a few ways to add up a large tensor."""
        data = torch.empty(READ_BYTES // 4, device=blocks.DEVICE, dtype=torch.int32).random_()
        numbers = data.view(torch.bfloat16).view(-1, 8192)
        vector = torch.ones(8192, device=blocks.DEVICE, dtype=torch.bfloat16)
        wide = torch.zeros(READ_BYTES // 4, device=blocks.DEVICE)
        ways = {"product with a vector": lambda: torch.mv(numbers, vector),
                "sum of float32": lambda: wide.sum(),
                "sums of rows": lambda: wide.view(-1, 8192).sum(-1),
                "largest of float32": lambda: wide.amax()}
        for number, size, warps in ((132 * 8, 8192, 8), (132 * 4, 16384, 16), (1 << 16, 16384, 8)):
            name = f"Triton, {number} blocks, {size} numbers"
            ways[name] = triton_reader(data, number, size, warps)
        way = self.fastest(ways)
        replay, kept = graphed(ways[way])
        return Case(replay, 1, (kept, ways[way]), way=way, bytes=READ_BYTES)

    def copy(self):
        source = torch.empty(READ_BYTES // 8, device=blocks.DEVICE, dtype=torch.int32).random_()
        target = torch.empty_like(source)
        replay, kept = graphed(lambda: target.copy_(source))
        return Case(replay, 1, (kept, source, target), bytes=READ_BYTES)

    def transformers_step(self, _size, _batch):
        from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

        shape = blocks.SHAPES["8b"]
        config = LlamaConfig(
            hidden_size=shape["hidden"], intermediate_size=shape["ffn"],
            num_hidden_layers=shape["layers"], num_attention_heads=shape["q_heads"],
            num_key_value_heads=shape["kv_heads"], vocab_size=shape["vocab"],
            max_position_embeddings=131072, rope_theta=500000.0)
        torch.set_default_dtype(torch.bfloat16)
        with torch.device(blocks.DEVICE):
            model = LlamaForCausalLM(config).eval()
        torch.set_default_dtype(torch.float32)
        depth = self.options.context // 4
        cache = StaticCache(config=config, max_cache_len=self.options.context, max_batch_size=1,
                            device=blocks.DEVICE, dtype=torch.bfloat16)
        ids = torch.randint(0, 128000, (1, depth), device=blocks.DEVICE)
        model(ids, past_key_values=cache, cache_position=torch.arange(depth, device=blocks.DEVICE),
              use_cache=True)
        position = torch.tensor([depth], device=blocks.DEVICE)
        token = torch.zeros(1, 1, device=blocks.DEVICE, dtype=torch.long)
        step = torch.compile(
            lambda t, p: model(t, past_key_values=cache, cache_position=p, position_ids=p[None],
                               use_cache=True).logits[:, -1].argmax(-1, keepdim=True),
            mode="reduce-overhead")

        def replay():
            with torch.no_grad():
                torch.compiler.cudagraph_mark_step_begin()
                step(token, position).clone()

        for _ in range(8):
            replay()
        torch.cuda.synchronize()
        return Case(replay, 1, (model, cache, step), depth=depth)

    def fastest(self, ways, wanted=None):
        """The name of the way that takes least, each as a graph; what cannot be done is left out."""
        if wanted in ways:
            return wanted
        times, reasons = {}, []
        for name, run in ways.items():
            try:
                replay, kept = graphed(run)
                times[name] = statistics.median(replay_times(replay, 20))
                del replay, kept
            except Exception as error:  # whatever a backend has against it
                reasons.append(f"{name}: {error}")
        torch.cuda.empty_cache()
        if not times:
            raise RuntimeError("; ".join(reasons)[:1000])
        print({name: round(us, 1) for name, us in times.items()}, reasons, file=sys.stderr)
        return min(times, key=times.get)

    # ---- measuring

    def measure(self, name, milliseconds):
        case = self.build(name)
        times = replay_times(case.replay, milliseconds)
        us = statistics.median(times)
        result = {"case": name, "us": round(us, 3), "us_least": round(min(times), 3),
                  "us_most": round(max(times), 3), "replays": len(times), "blocks": case.count,
                  "us_block": round(us / case.count, 3), **case.facts}
        if "bytes" in result:
            result["TBps"] = round(result.pop("bytes") / us / 1e6, 3)
        for key, figure in (("flops", "TFLOPs"), ("product_flops", "product_TFLOPs")):
            if key in result:
                result[figure] = round(result.pop(key) * case.count / us / 1e6, 1)
        result["reserved_GB"] = round(torch.cuda.memory_reserved() / 1e9, 1)
        return result

    def answer(self, line):
        words = line.split()
        if words == ["clocks"]:
            return {"clocks": clocks()}
        if len(words) == 2 and words[0] == "build":
            return {"built": words[1], **self.build(words[1]).facts,
                    "reserved_GB": round(torch.cuda.memory_reserved() / 1e9, 1)}
        if len(words) == 2 and words[0] == "drop":
            self.drop(words[1])
            return {"dropped": words[1]}
        if len(words) == 2:
            return self.measure(words[0], float(words[1]))
        raise ValueError(f"'{line}' asks for nothing")


def graphed(run):
    """A recorded `run`, ready to be replayed, and what must be kept for that."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(4):  # compiles, and chooses algorithms
            run()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = run()
    return graph.replay, (graph, results)


def replay_times(replay, milliseconds):
    """Microseconds of each replay: one first, then as many as should fill the time."""
    times, target = [], 1000 * milliseconds
    while not times or sum(times) < target:
        count = 1
        if times:
            count = min(1000, math.ceil((target - sum(times)) * len(times) / sum(times)))
        borders = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        borders[0].record()
        for border in borders[1:]:
            replay()
            border.record()
        borders[-1].synchronize()
        times += [1000 * a.elapsed_time(b) for a, b in zip(borders, borders[1:])]
    return times


def triton_reader(data, number, size, warps):
    import torch_reader

    sink = torch.empty(number, device=blocks.DEVICE, dtype=torch.int32)
    return lambda: torch_reader.read[(number,)](data, sink, data.numel(), SIZE=size,
                                                num_warps=warps)


def serve(peers, names, channel):
    def say(result):
        channel.write(json.dumps(result) + "\n")
        channel.flush()

    def attempt(line):
        try:
            return peers.answer(line)
        except Exception as error:  # a case that cannot be built must not end the others
            traceback.print_exc()
            return {"line": line, "error": f"{type(error).__name__}: {error}"[:500]}

    built = [attempt(f"build {name}") for name in names]
    say({"ready": True, "torch": torch.__version__, "cuda": torch.version.cuda,
         "device": torch.cuda.get_device_name(), "built": built})
    for line in iter(sys.stdin.readline, ""):
        if line.strip() == "quit":
            break
        if line.strip():
            say(attempt(line.strip()))


def measure_all(peers, names, path, channel):
    with open(path, "a", encoding="utf-8") as out:
        for name in names:
            try:
                peers.measure(name, 1000 * peers.options.seconds)
                result = peers.measure(name, 1000 * peers.options.seconds)
            except Exception as error:
                traceback.print_exc()
                result = {"case": name, "error": f"{type(error).__name__}: {error}"[:500]}
            result["clocks"] = clocks()
            line = json.dumps(result) + "\n"
            out.write(line)
            out.flush()
            channel.write(line)
            channel.flush()
            if name in peers.cases:
                peers.drop(name, and_weights=False)  # the next case may use them


def main():
    options = parse_arguments()
    if options.list:
        print("\n".join(case_names()))
        return
    if not options.serve and not options.names:
        sys.exit("torch_peers.py: where to? see --help")
    names = options.names if options.serve else options.names[1:]
    names = matching(names) if names or not options.serve else []
    # Standard output is for answers alone, whatever libraries print.
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    if options.cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.abspath(options.cache)
    torch._inductor.config.coordinate_descent_tuning = options.coordinate_descent
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    peers = Peers(options)
    if options.serve:
        serve(peers, names, channel)
    else:
        measure_all(peers, names, options.names[0], channel)


if __name__ == "__main__":
    main()
