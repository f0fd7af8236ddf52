// AdamW over all parameters in one launch, replicas with rates of their own, gradient clipping folded in, no wait for the host.
//
//   gradnorm        Σ g² of each chunk of the gradients                                     reads 4 bytes a parameter
//   adamw_prepare   norm = √Σ, step += 1, and per replica the nine numbers that follow
//   adamw           g *= min(1, clip / (norm + 1e-6))                                       reads 16, writes 12 bytes
//                   p -= lr · decay · p
//                   m += (g − m)(1 − β₁)            v = β₂ v + (1 − β₂) g²
//                   p -= lr / (1 − β₁ᵗ) · m / (√v / √(1 − β₂ᵗ) + eps)
//
// This is the arithmetic of torch.optim.AdamW(fused=True), and clip_grad_norm_'s factor. Gradients are not changed.
//
// Tensors are contiguous [replicas, …]; `numels` is the size of one replica. `chunks` cuts one replica's parameters into
// pieces (tensor, offset) of at most `chunk` elements; block b has chunk b % n_chunks of replica b / n_chunks. Small tensors cost
// a block each, and no launch of their own. Threads of a block take neighbouring vectors; a warp moves 512 consecutive bytes.
// Everything that changes from step to step (rates, the step's number) lies in device memory, so that a captured CUDA
// graph replays correctly.

constexpr int BLOCK = 256;
constexpr int VEC = sizeof(T) > 4 ? 2 : 4;               // of the states, which are `real`; half-precision parameters move 8 bytes

enum Hyper { LR, WEIGHT_DECAY, BETA1, BETA2, EPS, CLIP, HYPERS };
enum Factor { RATE, DECAY, ONE_LESS_BETA1, SECOND, ONE_LESS_BETA2, CORRECTION1, CORRECTION2_ROOT, EPSILON, CLIPPING, FACTORS };

// What a block works on.
struct Chunk {
  i64 tensor, replica, first;                            // first: within all replicas of the tensor
  int length;

  __device__ __forceinline__ Chunk(const i64* numels, const i64* chunks, i64 n_chunks, i64 chunk) {
    replica = blockIdx.x / n_chunks;
    const i64* entry = chunks + 2 * (blockIdx.x % n_chunks);
    tensor = entry[0];
    const i64 numel = numels[tensor], rest = numel - entry[1];
    first = replica * numel + entry[1];
    length = static_cast<int>(rest < chunk ? rest : chunk);
  }
};

template <class S> __device__ __forceinline__ S* pointer(i64 address) {
  return reinterpret_cast<S*>(static_cast<unsigned long long>(address));
}

extern "C" __global__ void __launch_bounds__(BLOCK) NAME(gradnorm)(
    const i64* grads, const i64* numels, const i64* chunks, i64 n_chunks, i64 chunk, real* partial, i64 partial_stride,
    i64 partial_offset) {
  const Chunk piece(numels, chunks, n_chunks, chunk);
  const T* g = pointer<const T>(grads[piece.tensor]) + piece.first;
  real total = 0;
  int done = 0;
  if (vectors<VEC>(g, 0)) {
    done = piece.length / VEC * VEC;
    batched<4>(
        static_cast<int>(threadIdx.x) * VEC, BLOCK * VEC, done, [&](int i) { return load_vec<VEC>(g + i); },
        [&](int, const Vec<T, VEC>& stored) {
          real v[VEC];
          stored.unpack(v);
#pragma unroll
          for (int k = 0; k < VEC; ++k) total += v[k] * v[k];
        });
  }
  for (int i = done + threadIdx.x; i < piece.length; i += BLOCK) total += load(g[i]) * load(g[i]);
  total = row_sum(total, BLOCK);
  if (threadIdx.x == 0) partial[piece.replica * partial_stride + partial_offset + blockIdx.x % n_chunks] = total;
}
EXPORT_KERNEL(NAME(gradnorm))

// One block for each replica. In double: float's 1 − 0.999 is wrong in the fifth digit, which the first steps would see.
extern "C" __global__ void __launch_bounds__(BLOCK) NAME(adamw_prepare)(
    const real* partial, i64 n_partial, const double* hyper, i64* step, real* norm, real* factors) {
  const i64 replica = blockIdx.x;
  double total = 0;
  if (partial)
    for (i64 i = threadIdx.x; i < n_partial; i += BLOCK) total += partial[replica * n_partial + i];
  total = sqrt(row_sum(total, BLOCK));
  if (threadIdx.x != 0) return;

  const double* h = hyper + replica * HYPERS;
  real* f = factors + replica * FACTORS;
  const double t = static_cast<double>(++step[replica]);
  const double clipping = partial && h[CLIP] > 0 ? h[CLIP] / (total + 1e-6) : 1;
  f[RATE] = static_cast<real>(h[LR]);
  f[DECAY] = static_cast<real>(h[LR] * h[WEIGHT_DECAY]);
  f[ONE_LESS_BETA1] = static_cast<real>(1 - h[BETA1]);
  f[SECOND] = static_cast<real>(h[BETA2]);
  f[ONE_LESS_BETA2] = static_cast<real>(1 - h[BETA2]);
  f[CORRECTION1] = static_cast<real>(1 / (1 - pow(h[BETA1], t)));
  f[CORRECTION2_ROOT] = static_cast<real>(sqrt(1 - pow(h[BETA2], t)));
  f[EPSILON] = static_cast<real>(h[EPS]);
  f[CLIPPING] = static_cast<real>(clipping >= 1 ? 1 : clipping);   // written so that a NaN stays one
  if (partial) norm[replica] = static_cast<real>(total);
}
EXPORT_KERNEL(NAME(adamw_prepare))

struct Update {
  real decay, rate, one_less_beta1, beta2, one_less_beta2, correction2_root, eps, clipping;

  __device__ __forceinline__ Update(const real* f, const real* scales) {
    const real multiplier = scales[0], decays = scales[1];
    decay = f[DECAY] * multiplier * decays;
    rate = f[RATE] * multiplier * f[CORRECTION1];
    one_less_beta1 = f[ONE_LESS_BETA1];
    beta2 = f[SECOND], one_less_beta2 = f[ONE_LESS_BETA2];
    correction2_root = f[CORRECTION2_ROOT], eps = f[EPSILON], clipping = f[CLIPPING];
  }
  __device__ __forceinline__ real operator()(real p, real g, real& m, real& v) const {
    g *= clipping;
    p -= decay * p;
    m += (g - m) * one_less_beta1;
    v = beta2 * v + one_less_beta2 * g * g;
    return p - rate * m / (root(v) / correction2_root + eps);
  }
};

extern "C" __global__ void __launch_bounds__(BLOCK, 3) NAME(adamw)(
    const i64* params, const i64* grads, const i64* exp_avg, const i64* exp_avg_sq, const i64* numels, const real* scales,
    const i64* chunks, i64 n_chunks, i64 chunk, const real* factors) {
  struct Read { Vec<T, VEC> p, g; Vec<real, VEC> m, v; };
  const Chunk piece(numels, chunks, n_chunks, chunk);
  const Update update(factors + piece.replica * FACTORS, scales + 2 * piece.tensor);
  T* p = pointer<T>(params[piece.tensor]) + piece.first;
  const T* g = pointer<const T>(grads[piece.tensor]) + piece.first;
  real* m = pointer<real>(exp_avg[piece.tensor]) + piece.first;
  real* v = pointer<real>(exp_avg_sq[piece.tensor]) + piece.first;
  int done = 0;
  if (vectors<VEC>(p, 0) && vectors<VEC>(g, 0) && vectors<VEC>(m, 0) && vectors<VEC>(v, 0)) {
    done = piece.length / VEC * VEC;
    batched<2>(
        static_cast<int>(threadIdx.x) * VEC, BLOCK * VEC, done,
        [&](int i) { return Read{load_vec<VEC>(p + i), load_vec<VEC>(g + i), load_vec<VEC>(m + i), load_vec<VEC>(v + i)}; },
        [&](int i, Read read) {
          real now[VEC], grad[VEC];
          read.p.unpack(now);
          read.g.unpack(grad);
#pragma unroll
          for (int k = 0; k < VEC; ++k) now[k] = update(now[k], grad[k], read.m.v[k], read.v.v[k]);
          store_vec<VEC>(p + i, now);
          store_vec<VEC>(m + i, read.m);
          store_vec<VEC>(v + i, read.v);
        });
  }
  for (int i = done + threadIdx.x; i < piece.length; i += BLOCK)
    p[i] = store<T>(update(load(p[i]), load(g[i]), m[i], v[i]));
}
EXPORT_KERNEL(NAME(adamw))
