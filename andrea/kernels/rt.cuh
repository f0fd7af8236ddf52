// What every kernel file stands on: number types, vectors, loads in flight, sums over the threads of a row.
//
// One text for two compilers. NVRTC compiles it for a GPU; g++ compiles the same text over a header that gives each CUDA
// thread a fiber on the CPU, which is how it is tested without a GPU. Hence no #include, no inline assembly outside
// __CUDA_ARCH__, and these two macros:
//   DYN_SHARED(type, name)   the block's dynamic shared memory
//   EXPORT_KERNEL(name)      after each kernel; lets the CPU find it by name, nothing on a GPU
//
// `andrea/kernels/source.py` puts a kernel file into a namespace of its own and says there what it is compiled for:
//   typedef bf16 T;          how the large tensors are stored
//   typedef f32 R;           (norms) how the residual stream is stored
//   #define TYPES f32_bf16   the end of the kernels' names: NAME(norm_fwd_ln) is norm_fwd_ln_f32_bf16
// Whatever the storage, arithmetic is `real`: float on a GPU, double where tests compile with -DACC=double to differentiate
// a kernel numerically.
//
// Conventions: the last dimension of every tensor is contiguous ("columns", an int), rows are any distance apart ("stride",
// in elements, 64 bits). Only offsets of rows need 64 bits; inside a row 32 do, and cost half the instructions.

#pragma once

#ifndef DYN_SHARED
#define DYN_SHARED(type, name)                                             \
  extern __shared__ __align__(16) unsigned char andrea_dynamic_shared[];   \
  type* name = reinterpret_cast<type*>(andrea_dynamic_shared)
#define EXPORT_KERNEL(name)
#endif

#define CAT_(a, b) a##_##b
#define CAT(a, b) CAT_(a, b)
#define NAME(kernel) CAT(kernel, TYPES)

#ifndef ACC
#define ACC float
#endif

typedef ACC real;
typedef float f32;
typedef double f64;
typedef long long i64;
struct bf16 { unsigned short bits; };
struct f16 { unsigned short bits; };

enum : unsigned { ALL_LANES = 0xffffffffu };
enum : int { WARP = 32 };

// ---- Conversions. A load widens exactly, a store rounds to nearest even (what torch does too). ----------------------

__device__ __forceinline__ real load(f32 v) { return v; }
__device__ __forceinline__ real load(f64 v) { return static_cast<real>(v); }
__device__ __forceinline__ real load(bf16 v) { return __uint_as_float(static_cast<unsigned>(v.bits) << 16); }
__device__ __forceinline__ real load(f16 v) {
#ifdef __CUDA_ARCH__
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(v.bits));
  return wide;
#else
  const unsigned sign = (v.bits & 0x8000u) << 16, exponent = v.bits >> 10 & 31u, fraction = v.bits & 1023u;
  if (exponent == 0) return __uint_as_float(sign | __float_as_uint(fraction * 0x1p-24f));  // zero and subnormals
  return __uint_as_float(sign | (exponent == 31 ? 0x7f800000u : (exponent + 112u) << 23) | fraction << 13);
#endif
}

template <class S> __device__ __forceinline__ S store(real v);
template <> __device__ __forceinline__ f32 store<f32>(real v) { return static_cast<f32>(v); }
template <> __device__ __forceinline__ f64 store<f64>(real v) { return v; }
template <> __device__ __forceinline__ bf16 store<bf16>(real v) {
  bf16 narrow;
#ifdef __CUDA_ARCH__
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(v));
#else
  // Adding half of the last kept place, less one where that place is even, carries into it exactly when rounding is up.
  const unsigned u = __float_as_uint(static_cast<float>(v));
  const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
  narrow.bits = static_cast<unsigned short>(nan ? 0x7fffu : (u + 0x7fffu + (u >> 16 & 1u)) >> 16);
#endif
  return narrow;
}
template <> __device__ __forceinline__ f16 store<f16>(real v) {
  f16 narrow;
#ifdef __CUDA_ARCH__
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(v));
#else
  const unsigned u = __float_as_uint(static_cast<float>(v)), sign = u >> 16 & 0x8000u, size = u & 0x7fffffffu;
  unsigned half;
  if (size > 0x7f800000u) half = 0x7fffu;                             // NaN
  else if (size >= 0x477ff000u) half = 0x7c00u;                       // 65520 and more round to infinity
  else if (size < 0x38800000u)                                        // below 2^-14 the steps are 2^-24, those of 0.5f
    half = __float_as_uint(__uint_as_float(size) + 0.5f) - 0x3f000000u;
  else half = (size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13;
  narrow.bits = static_cast<unsigned short>(sign | half);
#endif
  return narrow;
}

// ---- Vectors: 16 bytes is the widest load of one thread; a warp of them is four full cache lines. -------------------
// Numbers of 16 bits stay packed, two in a register, until they are needed: unpacked they would take the registers that keep
// further loads in flight.

template <class S, int N, bool PAIRS = sizeof(S) == 2 && N % 2 == 0> struct Vec;

template <class S, int N> struct alignas(sizeof(S) * N < 16 ? sizeof(S) * N : 16) Vec<S, N, false> {
  S v[N];
  __device__ __forceinline__ void unpack(real (&to)[N]) const {
#pragma unroll
    for (int k = 0; k < N; ++k) to[k] = load(v[k]);
  }
  static __device__ __forceinline__ Vec pack(const real (&from)[N]) {
    Vec packed;
#pragma unroll
    for (int k = 0; k < N; ++k) packed.v[k] = store<S>(from[k]);
    return packed;
  }
};

template <class S> __device__ __forceinline__ void unpack_pair(unsigned pair, real& low, real& high) {
  low = load(S{static_cast<unsigned short>(pair)});
  high = load(S{static_cast<unsigned short>(pair >> 16)});
}
template <class S> __device__ __forceinline__ unsigned pack_pair(real low, real high) {
  return store<S>(low).bits | static_cast<unsigned>(store<S>(high).bits) << 16;
}
#ifdef __CUDA_ARCH__                                     // one instruction for two conversions
template <> __device__ __forceinline__ void unpack_pair<bf16>(unsigned pair, real& low, real& high) {
  low = __uint_as_float(pair << 16);
  high = __uint_as_float(pair & 0xffff0000u);
}
template <> __device__ __forceinline__ unsigned pack_pair<bf16>(real low, real high) {
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
template <> __device__ __forceinline__ unsigned pack_pair<f16>(real low, real high) {
  unsigned pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
#endif

template <class S, int N> struct alignas(sizeof(S) * N < 16 ? sizeof(S) * N : 16) Vec<S, N, true> {
  unsigned pairs[N / 2];
  __device__ __forceinline__ void unpack(real (&to)[N]) const {
#pragma unroll
    for (int k = 0; k < N; k += 2) unpack_pair<S>(pairs[k / 2], to[k], to[k + 1]);
  }
  static __device__ __forceinline__ Vec pack(const real (&from)[N]) {
    Vec packed;
#pragma unroll
    for (int k = 0; k < N; k += 2) packed.pairs[k / 2] = pack_pair<S>(from[k], from[k + 1]);
    return packed;
  }
};

template <int N, class S> __device__ __forceinline__ Vec<S, N> load_vec(const S* p) {
  return *reinterpret_cast<const Vec<S, N>*>(p);
}
template <int N, class S> __device__ __forceinline__ void store_vec(S* p, const Vec<S, N>& v) {
  *reinterpret_cast<Vec<S, N>*>(p) = v;
}
// Round numbers to S and store them.
template <int N, class S> __device__ __forceinline__ void store_vec(S* p, const real (&from)[N]) {
  store_vec<N>(p, Vec<S, N>::pack(from));
}

// Whether rows that are `stride` elements apart can be read as vectors of N elements (a null pointer can).
template <int N, class S> __device__ __forceinline__ bool vectors(const S* p, i64 stride) {
  const unsigned long long bytes = alignof(Vec<S, N>);
  return (reinterpret_cast<unsigned long long>(p) | static_cast<unsigned long long>(stride) * sizeof(S)) % bytes == 0;
}

// ---- Loads in flight. ----------------------------------------------------------------------------------------------
// A GPU hides the 0.6 µs of a memory access behind other accesses, not behind a cache: `batched` starts U loads before it
// uses the first. `fetch(i)` only loads, `use(i, value)` computes and stores, for i = first, first + step, … < end.
template <int U, class I, class Fetch, class Use>
__device__ __forceinline__ void batched(I first, I step, I end, Fetch fetch, Use use) {
#pragma unroll 1                                         // U says how many; the compiler would take four times as many
  for (I i = first; i < end; i += U * step) {
    decltype(fetch(i)) got[U];
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (i + u * step < end) got[u] = fetch(i + u * step);
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (i + u * step < end) use(i + u * step, got[u]);
  }
}

// ---- Sums over the threads that share a row. ------------------------------------------------------------------------
// A row belongs to one warp (lanes = 32, several rows a block, no barrier) or to a whole block (lanes = blockDim.x).
// The order of additions depends on the shape alone, so two runs agree bit for bit; atomics would not.

__device__ __forceinline__ double larger(double a, double b) { return a > b ? a : b; }
__device__ __forceinline__ float larger(float a, float b) { return fmaxf(a, b); }

template <bool MAX, class V> __device__ __forceinline__ V warp_reduce(V v) {
#pragma unroll
  for (int distance = WARP / 2; distance > 0; distance /= 2) {
    const V other = __shfl_xor_sync(ALL_LANES, v, distance);
    v = MAX ? larger(v, other) : v + other;
  }
  return v;
}

template <bool MAX, class V> __device__ __forceinline__ V row_reduce(V v, int lanes) {
  __shared__ V of_warp[WARP];
  v = warp_reduce<MAX>(v);
  if (lanes == WARP) return v;
  const int warps = lanes / WARP, lane = threadIdx.x % WARP;
  if (lane == 0) of_warp[threadIdx.x / WARP] = v;
  __syncthreads();
  v = of_warp[lane < warps ? lane : 0];                 // the first warp's value is neutral to a maximum, not to a sum
  if (!MAX && lane >= warps) v = 0;
  v = warp_reduce<MAX>(v);
  __syncthreads();                                      // the next call writes of_warp again
  return v;
}
template <class V> __device__ __forceinline__ V row_sum(V v, int lanes) { return row_reduce<false>(v, lanes); }
template <class V> __device__ __forceinline__ V row_max(V v, int lanes) { return row_reduce<true>(v, lanes); }

// ---- Mathematics by type. ---------------------------------------------------------------------------------------------
// __expf is one instruction on the special-function unit; its relative error, about 2^-22 plus 2^-23 for each unit of |x|,
// is far below that of the stored result where a result matters.

__device__ __forceinline__ real not_a_number() { return __uint_as_float(0x7fffffffu); }
__device__ __forceinline__ float fast_exp(float x) { return __expf(x); }
__device__ __forceinline__ double fast_exp(double x) { return exp(x); }
__device__ __forceinline__ float quotient(float a, float b) { return __fdividef(a, b); }
__device__ __forceinline__ double quotient(double a, double b) { return a / b; }
__device__ __forceinline__ float log_of(float x) { return logf(x); }
__device__ __forceinline__ double log_of(double x) { return log(x); }
__device__ __forceinline__ float tanh_of(float x) { return tanhf(x); }
__device__ __forceinline__ double tanh_of(double x) { return tanh(x); }
__device__ __forceinline__ float erf_of(float x) { return erff(x); }
__device__ __forceinline__ double erf_of(double x) { return erf(x); }
__device__ __forceinline__ float root(float x) { return sqrtf(x); }
__device__ __forceinline__ double root(double x) { return sqrt(x); }
