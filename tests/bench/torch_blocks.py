"""What torch_peers.py measures: a block of Llama-3.1 and its steps in PyTorch, on random weights.

A weight is a tuple of tensors and a function that multiplies by it; a layer is four of them and two
gains. Blocks are plain functions of tensors, so that torch.compile sees nothing else.
"""

import contextlib
import math

import torch
import torch.nn.functional as F

HEAD_DIM = 128
GROUP = 128  # inputs that share a scale of INT4 weights
SHAPES = {
    "8b": dict(hidden=4096, q_heads=32, kv_heads=8, ffn=14336, layers=32, vocab=128256),
    "70b": dict(hidden=8192, q_heads=64, kv_heads=8, ffn=28672, layers=80, vocab=128256),
}
DEVICE = "cuda"


# ---- weights: make(outputs, inputs) -> tensors, multiply(x, tensors) -> x times the transpose


def random_bf16(outputs, inputs):
    return torch.randn(outputs, inputs, device=DEVICE, dtype=torch.bfloat16)


def make_bf16(outputs, inputs):
    return (random_bf16(outputs, inputs).mul_(1 / math.sqrt(inputs)),)


def multiply_bf16(x, weight):
    return F.linear(x, weight[0])


def make_int4(outputs, inputs):
    """tinygemm's: codes of four bits, a BF16 scale and zero for each group of a row."""
    codes = torch.randint(0, 256, (outputs, inputs // 2), device=DEVICE, dtype=torch.uint8)
    scales_and_zeros = torch.zeros(inputs // GROUP, outputs, 2, device=DEVICE, dtype=torch.bfloat16)
    scales_and_zeros[..., 0] = 0.01
    return torch.ops.aten._convert_weight_to_int4pack(codes, 8), scales_and_zeros


def multiply_int4(x, weight):
    rows = x.reshape(-1, x.shape[-1])
    y = torch.ops.aten._weight_int4pack_mm(rows, weight[0], GROUP, weight[1])
    return y.reshape(*x.shape[:-1], -1)


def make_fp8(outputs, inputs):
    """One scale for the matrix and a fixed one for what comes in: the fastest that PyTorch has."""
    scale = torch.full((), 1 / math.sqrt(inputs), device=DEVICE)
    x_scale = torch.full((), 0.02, device=DEVICE)
    codes = random_bf16(outputs, inputs).to(torch.float8_e4m3fn).t()
    return codes, scale, x_scale, 1 / x_scale


def multiply_fp8(x, weight):
    codes, scale, x_scale, inverse = weight
    rows = x.reshape(-1, x.shape[-1]).float()
    rows = (rows * inverse).clamp(-448, 448).to(torch.float8_e4m3fn)
    return scaled_product(rows, codes, x_scale, scale).reshape(*x.shape[:-1], -1)


def make_fp8row(outputs, inputs):
    """A scale for each output, and for each token as it comes."""
    scales = torch.full((1, outputs), 1 / math.sqrt(inputs), device=DEVICE)
    return random_bf16(outputs, inputs).to(torch.float8_e4m3fn).t(), scales


def multiply_fp8row(x, weight):
    rows = x.reshape(-1, x.shape[-1]).float()
    x_scales = rows.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 448
    codes = (rows / x_scales).to(torch.float8_e4m3fn)
    return scaled_product(codes, weight[0], x_scales, weight[1]).reshape(*x.shape[:-1], -1)


def scaled_product(x, weight, x_scale, weight_scale):
    return torch._scaled_mm(x, weight, scale_a=x_scale, scale_b=weight_scale,
                            out_dtype=torch.bfloat16, use_fast_accum=True)


FLAVOURS = {
    "bf16": (make_bf16, multiply_bf16),
    "int4": (make_int4, multiply_int4),
    "fp8": (make_fp8, multiply_fp8),
    "fp8row": (make_fp8row, multiply_fp8row),
}


def make_layer(shape, flavour):
    """(qkv, o, gate and up, down, gain of attention, gain of the FFN)."""
    make = FLAVOURS[flavour][0]
    hidden, heads = shape["hidden"], shape["q_heads"] * HEAD_DIM
    gain = torch.ones(hidden, device=DEVICE, dtype=torch.bfloat16)
    return (
        make(heads + 2 * shape["kv_heads"] * HEAD_DIM, hidden),
        make(hidden, heads),
        make(2 * shape["ffn"], hidden),
        make(hidden, shape["ffn"]),
        gain,
        gain.clone(),
    )


# ---- what lies between the products


def normalised(x, gain, eps=1e-5):
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype) * gain


def rotated(x, cos, sin):
    """x [..., tokens, heads, HEAD_DIM]; cos and sin [tokens, 1, HEAD_DIM / 2]."""
    half = HEAD_DIM // 2
    low, high = x[..., :half].float(), x[..., half:].float()
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1).to(x.dtype)


def angles(tokens):
    angle = torch.randn(tokens, 1, HEAD_DIM // 2, device=DEVICE)
    return angle.cos(), angle.sin()


# Ways to attend from one query of each head, q [batch, q heads, 1, HEAD_DIM]. The cache is full, so that
# the mask hides nothing and may be left out; a loop that grows its cache in place would need it.
def masked(q, k, v, mask):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


def unmasked(q, k, v, mask):
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def grouped(q, k):
    """The queries that share a KV head as if they were tokens."""
    return q.reshape(q.shape[0], k.shape[1], -1, HEAD_DIM)


def masked_grouped(q, k, v, mask):
    return F.scaled_dot_product_attention(grouped(q, k), k, v, attn_mask=mask).reshape(q.shape)


def unmasked_grouped(q, k, v, mask):
    return F.scaled_dot_product_attention(grouped(q, k), k, v).reshape(q.shape)


DECODE_ATTENTION = {
    "masked": masked,
    "unmasked": unmasked,
    "masked, grouped": masked_grouped,
    "unmasked, grouped": unmasked_grouped,
}


def causal(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def cudnn_alone():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel([SDPBackend.CUDNN_ATTENTION])


# What to choose from for prompts: a context in which `causal` runs.
PREFILL_ATTENTION = {"default": contextlib.nullcontext, "cudnn": cudnn_alone}

# Seventeen prompts of 30 to 3000 tokens, in the order that fut bench has them in.
MIXED = tuple(30 + 2970 * (7 * i % 17) // 16 for i in range(17))


class Packed:
    """Prompts laid end to end: where each begins, and how long the longest is."""

    def __init__(self, lengths):
        ends = torch.tensor(lengths, device=DEVICE).cumsum(0).to(torch.int32)
        self.begins = F.pad(ends, (1, 0))
        self.longest = max(lengths)
        self.tokens = sum(lengths)


# Ways to attend over them, q [tokens, q heads, HEAD_DIM]. What a version of PyTorch lacks is left out by
# whoever chooses.
def varlen(packed, q, k, v):
    from torch.nn.attention.varlen import varlen_attn

    return varlen_attn(q, k, v, packed.begins, packed.begins, packed.longest, packed.longest,
                       window_size=(-1, 0), enable_gqa=True)


def varlen_without_groups(packed, q, k, v):
    from torch.nn.attention.varlen import varlen_attn

    return varlen_attn(q, k, v, packed.begins, packed.begins, packed.longest, packed.longest,
                       window_size=(-1, 0))


def varlen_causal(packed, q, k, v):
    from torch.nn.attention.varlen import varlen_attn

    return varlen_attn(q, k, v, packed.begins, packed.begins, packed.longest, packed.longest,
                       is_causal=True)


def varlen_flash(packed, q, k, v):
    return torch.ops.aten._flash_attention_forward(
        q, k, v, packed.begins, packed.begins, packed.longest, packed.longest, 0.0, True, False)[0]


VARLEN_ATTENTION = {
    "varlen": varlen,
    "varlen, heads as they are": varlen_without_groups,
    "varlen, is_causal": varlen_causal,
    "varlen, flash": varlen_flash,
}


# ---- blocks


def split_heads(shape, qkv, *leading):
    q, k, v = qkv.split([n * HEAD_DIM for n in
                         (shape["q_heads"], shape["kv_heads"], shape["kv_heads"])], -1)
    return (q.view(*leading, shape["q_heads"], HEAD_DIM),
            k.view(*leading, shape["kv_heads"], HEAD_DIM),
            v.view(*leading, shape["kv_heads"], HEAD_DIM))


def after_attention(shape, multiply, x, attended, layer):
    _, o, gate_up, down, _, gain = layer
    x = x + multiply(attended, o)
    gate, up = multiply(normalised(x, gain), gate_up).split([shape["ffn"], shape["ffn"]], -1)
    return x + multiply(F.silu(gate) * up, down)


def decode_block(shape, flavour, batch, attend):
    """One token of each sequence, x [batch, 1, hidden]; caches [batch, KV heads, context, HEAD_DIM]."""
    multiply = FLAVOURS[flavour][1]

    def block(x, layer, k_cache, v_cache, position, cos, sin, mask):
        q, k, v = split_heads(shape, multiply(normalised(x, layer[4]), layer[0]), batch, 1)
        k_cache.index_copy_(2, position, rotated(k, cos, sin).transpose(1, 2))
        v_cache.index_copy_(2, position, v.transpose(1, 2))
        attended = attend(rotated(q, cos, sin).transpose(1, 2), k_cache, v_cache, mask)
        attended = attended.transpose(1, 2).reshape(batch, 1, shape["q_heads"] * HEAD_DIM)
        return after_attention(shape, multiply, x, attended, layer)

    return block


def prefill_block(shape, flavour, tokens, sequences):
    """x [1, sequences * tokens, hidden]; keys and values are stored."""
    multiply = FLAVOURS[flavour][1]

    def block(x, layer, k_cache, v_cache, cos, sin):
        q, k, v = split_heads(shape, multiply(normalised(x, layer[4]), layer[0]), sequences, tokens)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        k_cache.copy_(k)
        v_cache.copy_(v)
        attended = causal(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).transpose(1, 2)
        attended = attended.reshape(1, sequences * tokens, shape["q_heads"] * HEAD_DIM)
        return after_attention(shape, multiply, x, attended, layer)

    return block


def packed_prefill_block(shape, flavour, packed, attend):
    """The same over prompts of any lengths, x [1, tokens, hidden]."""
    multiply = FLAVOURS[flavour][1]

    def block(x, layer, k_cache, v_cache, cos, sin):
        q, k, v = split_heads(shape, multiply(normalised(x, layer[4]), layer[0])[0], packed.tokens)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        k_cache.copy_(k)
        v_cache.copy_(v)
        attended = attend(packed, q, k, v)
        attended = attended.reshape(1, packed.tokens, shape["q_heads"] * HEAD_DIM)
        return after_attention(shape, multiply, x, attended, layer)

    return block


def layer_flops(shape, lengths):
    """Of one layer over prompts: products, and attention below the diagonal and on it."""
    hidden, heads = shape["hidden"], shape["q_heads"] * HEAD_DIM
    weights = hidden * (heads + 2 * shape["kv_heads"] * HEAD_DIM) + hidden * heads
    weights += 3 * hidden * shape["ffn"]
    return (2 * sum(lengths) * weights,
            2 * heads * sum(tokens * (tokens + 1) for tokens in lengths))
