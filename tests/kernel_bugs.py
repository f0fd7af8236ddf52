"""Bugs to plant: in which module, what it is, which text becomes which. The suite must notice every
one.
"""

from typing import NamedTuple


class Bug(NamedTuple):
    module: str
    what: str
    old: str
    new: str

    def plant(self, text: str) -> str:
        """The text with the bug.

        Raises:
            ValueError: the text has changed and this bug has no place any more.
        """
        if self.old not in text:
            raise ValueError(f"{self.what}: the kernels do not say {self.old!r} any more")
        return text.replace(self.old, self.new)


CE, NORM, ACT, ADAMW, REDUCE = (
    "ce_bf16",
    "norm_f32_bf16",
    "act_gelu_tanh_bf16",
    "adamw_f32",
    "reduce_f32",
)

BUGS = (
    # What all kernels stand on.
    Bug(
        CE,
        "no barrier before a block's sums are read",
        "of_warp[threadIdx.x / WARP] = v;\n  __syncthreads();",
        "of_warp[threadIdx.x / WARP] = v;",
    ),
    Bug(
        NORM,
        "no barrier before a block's sums are written again",
        "v = warp_reduce<MAX>(v);\n  __syncthreads();  ",
        "v = warp_reduce<MAX>(v);  ",
    ),
    Bug(
        CE,
        "half of a warp in the mask",
        "__shfl_xor_sync(ALL_LANES, v, distance)",
        "__shfl_xor_sync(0xffffu, v, distance)",
    ),
    Bug(
        CE,
        "a step of the warp's sum left out",
        "distance = WARP / 2; distance > 0",
        "distance = WARP / 2; distance > 1",
    ),
    Bug(CE, "a sum over lanes without a warp", "if (!MAX && lane >= warps) v = 0;", ""),
    Bug(CE, "bf16 truncated", "(u + 0x7fffu + (u >> 16 & 1u)) >> 16", "u >> 16"),
    Bug(CE, "bf16 rounded half up", "(u + 0x7fffu + (u >> 16 & 1u)) >> 16", "(u + 0x8000u) >> 16"),
    Bug(
        ACT,
        "the two numbers of a register exchanged",
        "return store<S>(low).bits | static_cast<unsigned>(store<S>(high).bits) << 16",
        "return store<S>(high).bits | static_cast<unsigned>(store<S>(low).bits) << 16",
    ),
    Bug(
        NORM,
        "one load in flight is never used",
        "if (i + u * step < end) use(",
        "if (i + u * step < end - step) use(",
    ),
    Bug(
        "ce_f16",
        "subnormal f16 flushed to zero",
        "half = __float_as_uint(__uint_as_float(size) + 0.5f) - 0x3f000000u",
        "half = 0",
    ),
    Bug(
        "ce_f16",
        "f16 truncated",
        "(size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13",
        "(size - 0x38000000u) >> 13",
    ),
    # Cross-entropy.
    Bug(
        CE,
        "off-by-one row guard",
        "; row < rows; row += static_cast<i64>(gridDim.x) * groups",
        "; row <= rows; row += static_cast<i64>(gridDim.x) * groups",
    ),
    Bug(
        CE,
        "rows beyond the grid are left",
        "row += static_cast<i64>(gridDim.x) * groups",
        "row += rows",
    ),
    Bug(
        CE,
        "32-bit offset of a row",
        "logits + row * logits_stride",
        "logits + static_cast<int>(row * logits_stride)",
    ),
    Bug(CE, "ignore_index is a target like others", "target == ignore_index;", "false;"),
    Bug(
        CE,
        "targets of another replica",
        "targets[replica * target_replica_stride +",
        "targets[0 * target_replica_stride +",
    ),
    Bug(
        CE,
        "targets of another row",
        "(row - replica * rows_per_replica) * target_stride]",
        "row * target_stride]",
    ),
    Bug(CE, "sign of the z-loss", "(1 + 2 * n.z_loss", "(1 - 2 * n.z_loss"),
    Bug(
        CE,
        "z-term in the reported loss",
        "*loss = log_sum - (at_target - m);",
        "*loss = log_sum - (at_target - m) + n.z_loss * log_sum_exp * log_sum_exp;",
    ),
    Bug(
        CE,
        "soft-cap without its derivative",
        "return CAP ? 1 - z / cap * (z / cap) : real(1);",
        "return real(1);",
    ),
    Bug(
        CE,
        "the target's gradient without the derivative of the cap",
        "store<T>((p - n.upstream) * capped_slope<CAP>(at_target, cap))",
        "store<T>(p - n.upstream)",
    ),
    Bug(
        CE,
        "upstream gradient left out at the target",
        "store<T>((p - n.upstream)",
        "store<T>((p - 1)",
    ),
    Bug(
        CE,
        "the maximum starts at minus infinity",
        "real max = LOWEST",
        "real max = -__uint_as_float(0x7f800000u)",
    ),
    Bug(CE, "the sum is not rescaled to a new maximum", "sum *= fast_exp(max - highest);", ""),
    Bug(
        CE,
        "a rounded logarithm of the sum in the loss",
        "log_sum - (at_target - m)",
        "log_sum_exp - at_target",
    ),
    Bug(
        CE,
        "edges of the row left out of the sum",
        "const real z[1] = {capped<CAP>(load(logits[cut.edge(i)]), cap)};\n    softmax.add(z);",
        "",
    ),
    Bug(
        CE,
        "edges of the row without gradient",
        "grad[cut.edge(i)] = store<T>(slope(load(logits[cut.edge(i)])));",
        ";",
    ),
    Bug(
        CE,
        "read from what was overwritten",
        "const real p = scale * fast_exp(at_target - m - log_sum);",
        "const real p = scale * fast_exp(capped<CAP>(load(logits[target]), cap) - m - log_sum);",
    ),
    Bug(
        CE,
        "a scaled row scaled though it was right",
        "const real factor = wanted == given ? real(1) : wanted / given;",
        "const real factor = wanted;",
    ),
    # Norms.
    Bug(
        NORM,
        "mean not subtracted",
        "y[k] = (y[k] - mean) * rstd * w[k] + b[k];",
        "y[k] = y[k] * rstd * w[k] + b[k];",
    ),
    Bug(
        NORM,
        "eps outside the root",
        "1 / root(total / columns + eps)",
        "1 / (root(total / columns) + eps)",
    ),
    Bug(
        NORM,
        "variance by E[s²] − mean²",
        "total += (s[k] - mean) * (s[k] - mean);",
        "total += s[k] * s[k] - mean * mean;",
    ),
    Bug(
        NORM,
        "sample variance",
        "1 / root(total / columns + eps)",
        "1 / root(total / (columns - 1) + eps)",
    ),
    Bug(
        NORM,
        "the sum is normalized before it is rounded away",
        "x[k] += delta[k];",
        "x[k] += 1.001f * delta[k];",
    ),
    Bug(NORM, "dropped residual gradient", "- h[k] * avg_gh) + above[k];", "- h[k] * avg_gh);"),
    Bug(
        NORM,
        "the average gradient left out",
        "(d[k] * w[k] - avg_g - h[k] * avg_gh)",
        "(d[k] * w[k] - h[k] * avg_gh)",
    ),
    Bug(
        NORM,
        "the projection on the row left out",
        "(d[k] * w[k] - avg_g - h[k] * avg_gh)",
        "(d[k] * w[k] - avg_g)",
    ),
    Bug(NORM, "gain left out of the gradient", "sum_gh += h[k] * w[k];", "sum_gh += h[k];"),
    Bug(
        NORM,
        "the gain of another replica",
        "weight + replica * weight_replica_stride",
        "weight + 0 * weight_replica_stride",
    ),
    Bug(NORM, "the bias of another replica", "bias + replica * bias_replica_stride", "bias"),
    Bug(
        NORM,
        "bf16 accumulation of dw",
        "sums.v[k] += v[q * PIECE + k];",
        "sums.v[k] = load(store<bf16>(sums.v[k] + v[q * PIECE + k]));",
    ),
    Bug(
        NORM,
        "no barrier before the groups' sums are added",
        "  __syncthreads();                                       // every group has finished "
        "its sums",
        "",
    ),
    Bug(
        NORM,
        "last group's rows missing from dw",
        "for (int g = 0; g < groups; ++g) {",
        "for (int g = 0; g < groups - 1; ++g) {",
    ),
    Bug(
        NORM,
        "last rows of a replica dropped",
        "; i < rows_per_replica; i += static_cast<i64>(parts) * groups",
        "; i < rows_per_replica - 1; i += static_cast<i64>(parts) * groups",
    ),
    Bug(
        NORM,
        "32-bit offset of a row",
        "row.x = x + r * x_stride;",
        "row.x = x + static_cast<int>(r * x_stride);",
    ),
    Bug(
        NORM,
        "32-bit offset of a gradient's row",
        "row.dx = dx + r * columns;",
        "row.dx = dx + static_cast<int>(r) * columns;",
    ),
    # Activations.
    Bug(
        ACT,
        "cubic term of the slope without its 3",
        "(LINEAR + 3 * CUBIC * x * x)",
        "(LINEAR + CUBIC * x * x)",
    ),
    Bug(ACT, "another constant", "CUBIC = 0.07135481282718147", "CUBIC = 0.0713"),
    Bug(
        ACT,
        "the bias left out of backward",
        "ACT::both(v[k] + b[k], f, slope);",
        "ACT::both(v[k], f, slope);",
    ),
    Bug(
        ACT,
        "the up bias left out of backward",
        "gate[k] = d[k] * (up[k] + up_b[k]) * slope;",
        "gate[k] = d[k] * up[k] * slope;",
    ),
    Bug(ACT, "the bias of another replica", "bias[replica * stride + c + k]", "bias[c + k]"),
    Bug(
        ACT,
        "bias reduction drops the last rows",
        "for (int t = threadIdx.x; t < BLOCK; t += width)",
        "for (int t = threadIdx.x; t < BLOCK - width; t += width)",
    ),
    Bug(
        ACT,
        "no barrier before the threads' sums are read",
        "of_thread[k][threadIdx.x] = sums[k];\n  __syncthreads();",
        "of_thread[k][threadIdx.x] = sums[k];",
    ),
    Bug(
        ACT,
        "no barrier between two sums",
        "  __syncthreads();                                       // the next call writes "
        "of_thread again",
        "",
    ),
    Bug(
        ACT,
        "rows of the next replica",
        "end = (replica + 1) * rows_per_replica;",
        "end = (replica + 1) * rows_per_replica + 1;",
    ),
    Bug(
        ACT,
        "the up gradient's bias in the gate's place",
        "gate_row + replicas * parts * columns",
        "gate_row",
    ),
    Bug(ACT, "columns beyond the tile", "if (c >= columns) return;", "if (c > columns) return;"),
    Bug(
        ACT,
        "32-bit offset of a row",
        "load_vec<N>(a + r * a_stride + c); },",
        "load_vec<N>(a + static_cast<int>(r * a_stride + c)); },",
    ),
    # Stage 2 and the optimizer.
    Bug(
        REDUCE,
        "the last parts dropped",
        "y, SIDE, parts, [&](int p)",
        "y, SIDE, parts - 1, [&](int p)",
    ),
    Bug(
        REDUCE,
        "no barrier",
        "of_thread[y][x] = total;\n    __syncthreads();",
        "of_thread[y][x] = total;",
    ),
    Bug(
        REDUCE,
        "another segment",
        "partial + segment * parts * columns + c",
        "partial + segment * columns + c",
    ),
    Bug(ADAMW, "decay coupled with the gradient", "p -= decay * p;", "g += decay * p;"),
    Bug(ADAMW, "no first bias correction", "1 / (1 - pow(h[BETA1], t))", "1"),
    Bug(ADAMW, "no second bias correction", "sqrt(1 - pow(h[BETA2], t))", "1"),
    Bug(ADAMW, "clipping not applied", "g *= clipping;", ""),
    Bug(ADAMW, "gradients enlarged to the limit", "clipping >= 1 ? 1 : clipping", "clipping"),
    Bug(
        ADAMW,
        "eps under the root",
        "root(v) / correction2_root + eps",
        "root(v + eps) / correction2_root",
    ),
    Bug(
        ADAMW,
        "the step counts from zero",
        "static_cast<double>(++step[replica])",
        "static_cast<double>(step[replica]++)",
    ),
    Bug(
        ADAMW,
        "rates of another replica",
        "factors + piece.replica * FACTORS, scales",
        "factors, scales",
    ),
    Bug(ADAMW, "the norm of all replicas", "partial[replica * n_partial + i]", "partial[i]"),
    Bug(ADAMW, "multiplier of another tensor", "scales + 2 * piece.tensor", "scales"),
    Bug(
        ADAMW,
        "the end of a tensor left",
        "i = done + threadIdx.x; i < piece.length; i += BLOCK)\n    p[i]",
        "i = done + threadIdx.x; i < piece.length - 1; i += BLOCK)\n    p[i]",
    ),
    Bug(
        ADAMW,
        "32-bit offset of a chunk",
        "first = replica * numel + entry[1];",
        "first = static_cast<int>(replica * numel + entry[1]);",
    ),
    Bug(
        ADAMW,
        "v from the gradient, not its square",
        "one_less_beta2 * g * g",
        "one_less_beta2 * g",
    ),
)  # fmt: skip

# An x86 core reads a misaligned vector as well as an aligned one: these the sanitizers must notice.
MISALIGNED = (
    Bug(NORM, "vectors on misaligned rows", "% bytes == 0;", "% 2 == 0;"),
    Bug(
        CE,
        "the gradient is aligned as the logits are",
        "const bool same_cut = (",
        "const bool same_cut = true || (",
    ),
)  # fmt: skip
BEYOND_THE_END = Bug(
    CE,
    "a piece beyond the end of the row",
    "pieces = (columns - head) / VEC;",
    "pieces = (columns - head) / VEC + 1;",
)
