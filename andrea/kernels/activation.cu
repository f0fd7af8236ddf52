// Activations: out = f(a + bias), or gated out = f(g + gate_bias) · (u + up_bias). One function per module, named ACT.
//
//   backward, plain    da = dy · f'(a + bias)                                 dbias = Σ_rows da
//   backward, gated    dg = dy · (u + up_bias) · f'(g + gate_bias)            dgate_bias = Σ_rows dg
//                      du = dy · f(g + gate_bias)                             dup_bias = Σ_rows du
//
// Backward computes f and f' again from the input, so nothing but the input is kept.
//
// Bytes at least, per element: forward 2 (plain) or 3 (gated) times the size of T, backward 3 or 5 times.
//
// Threads: a block is a tile of `width` threads along the columns, each with one vector of 16 bytes, by BLOCK / width rows; it
// walks down the rows part, part + parts, … of one replica. A thread thus keeps its columns: their bias is loaded once
// into registers, where the sums for the bias' gradient stay too. Those are added over the threads of a block in order, and
// over the blocks by reduce_parts: no atomics, the same bits every time. Where rows do not allow vectors, a thread takes as many
// single columns one after the other, `width` apart: a warp still reads consecutive addresses.

constexpr int VEC = 16 / sizeof(T);
constexpr int BLOCK = 256;

// ---- Functions: value, and value with slope. One exponential and one division; gelu by the error function as torch's. --

__device__ __forceinline__ real logistic(real v) { return quotient(real(1), 1 + fast_exp(-v)); }

struct identity {
  static __device__ __forceinline__ real value(real x) { return x; }
  static __device__ __forceinline__ void both(real x, real& f, real& slope) { f = x, slope = 1; }
};
struct relu {
  static __device__ __forceinline__ real value(real x) { return x > 0 ? x : x != x ? x : real(0); }  // NaN stays
  static __device__ __forceinline__ void both(real x, real& f, real& slope) { f = value(x), slope = x > 0 ? 1 : 0; }
};
struct relu2 {
  static __device__ __forceinline__ real value(real x) { return relu::value(x) * relu::value(x); }
  static __device__ __forceinline__ void both(real x, real& f, real& slope) { f = value(x), slope = 2 * relu::value(x); }
};
struct sigmoid {
  static __device__ __forceinline__ real value(real x) { return logistic(x); }
  static __device__ __forceinline__ void both(real x, real& f, real& slope) {
    f = logistic(x);
    slope = f * logistic(-x);                            // f · (1 − f) would cancel where f is near 1
  }
};
struct silu {
  static __device__ __forceinline__ real value(real x) { return x * logistic(x); }
  static __device__ __forceinline__ void both(real x, real& f, real& slope) {
    const real s = logistic(x);
    f = x * s;
    slope = s + f * logistic(-x);
  }
};
// x / 2 · (1 + tanh(v / 2)) is x · logistic(v), v = √(8/π) · (x + 0.044715 x³): no tanh, and exact in the tail.
struct gelu_tanh {
  static constexpr real LINEAR = 1.5957691216057308, CUBIC = 0.07135481282718147;
  static __device__ __forceinline__ real value(real x) { return x * logistic(x * (LINEAR + CUBIC * x * x)); }
  static __device__ __forceinline__ void both(real x, real& f, real& slope) {
    const real v = x * (LINEAR + CUBIC * x * x), s = logistic(v);
    f = x * s;
    slope = s + f * logistic(-v) * (LINEAR + 3 * CUBIC * x * x);
  }
};
struct gelu {
  static constexpr real HALF_ROOT = 0.7071067811865476, DENSITY = 0.3989422804014327;
  static __device__ __forceinline__ real below(real x) { return real(0.5) * (1 + erf_of(x * HALF_ROOT)); }  // share of N(0, 1)
  static __device__ __forceinline__ real value(real x) { return x * below(x); }
  static __device__ __forceinline__ void both(real x, real& f, real& slope) {
    const real p = below(x);
    f = x * p;
    slope = p + x * DENSITY * fast_exp(real(-0.5) * x * x);
  }
};

// ---- A thread's columns and its sums --------------------------------------------------------------------------------

// Runs `body` for the columns of this thread: once with vectors, or VEC times with single columns. body(c, numbers) is told
// the first column and how many (as a type). Every thread of a block runs it as often, so it may have barriers.
template <int N> struct Numbers { static constexpr int count = N; };

template <class Body> __device__ __forceinline__ void each_column(int columns, int width, int tile, bool wide, Body body) {
  const int x = threadIdx.x % width;
  if (wide) return body((tile * width + x) * VEC, Numbers<VEC>());
#pragma unroll 1
  for (int k = 0; k < VEC; ++k) body(tile * width * VEC + k * width + x, Numbers<1>());
}

template <int N> __device__ __forceinline__ void load_bias(const real* bias, i64 replica, i64 stride, int c, real (&to)[N]) {
#pragma unroll
  for (int k = 0; k < N; ++k) to[k] = bias ? bias[replica * stride + c + k] : real(0);
}

// Adds the sums of the threads that have the same columns, in the order of their rows, into a row of `partial`.
template <int N>
__device__ __forceinline__ void add_up(int c, int columns, const real (&sums)[N], int width, real* partial_row) {
  __shared__ real of_thread[VEC][BLOCK];
#pragma unroll
  for (int k = 0; k < N; ++k) of_thread[k][threadIdx.x] = sums[k];
  __syncthreads();
  if (threadIdx.x < width && c < columns) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      real total = 0;
      for (int t = threadIdx.x; t < BLOCK; t += width) total += of_thread[k][t];
      partial_row[c + k] = total;
    }
  }
  __syncthreads();                                       // the next call writes of_thread again
}

// Which tile, part and replica a block has; rows of a thread: first, first + step, … < end.
struct Place {
  int tile, part;
  i64 replica, first, step, end;

  __device__ __forceinline__ Place(i64 rows_per_replica, int width, int tiles, int parts) {
    const unsigned of_replica = blockIdx.x % (static_cast<unsigned>(tiles) * parts);
    replica = blockIdx.x / (static_cast<unsigned>(tiles) * parts);
    tile = of_replica % tiles;
    part = of_replica / tiles;
    const int rows = BLOCK / width, y = threadIdx.x / width;
    first = replica * rows_per_replica + static_cast<i64>(part) * rows + y;
    step = static_cast<i64>(parts) * rows;
    end = (replica + 1) * rows_per_replica;
  }
};

// ---- Kernels --------------------------------------------------------------------------------------------------------

#define PLAIN(kernel) NAME(CAT(CAT(kernel, ACT), plain))
#define GATED(kernel) NAME(CAT(CAT(kernel, ACT), gated))

extern "C" __global__ void __launch_bounds__(BLOCK, 4) PLAIN(act_fwd)(
    const T* a, i64 a_stride, const real* bias, i64 bias_replica_stride, T* out, i64 rows_per_replica, i64 replicas,
    int columns, int width, int tiles, int parts) {
  const Place place(rows_per_replica, width, tiles, parts);
  const bool wide = columns % VEC == 0 && vectors<VEC>(a, a_stride) && vectors<VEC>(out, columns);
  each_column(columns, width, place.tile, wide, [&](int c, auto numbers) {
    constexpr int N = decltype(numbers)::count;
    if (c >= columns) return;
    real b[N];
    load_bias<N>(bias, place.replica, bias_replica_stride, c, b);
    batched<4>(
        place.first, place.step, place.end, [&](i64 r) { return load_vec<N>(a + r * a_stride + c); },
        [&](i64 r, const Vec<T, N>& read) {
          real v[N];
          read.unpack(v);
#pragma unroll
          for (int k = 0; k < N; ++k) v[k] = ACT::value(v[k] + b[k]);
          store_vec<N>(out + r * columns + c, v);
        });
  });
}
EXPORT_KERNEL(PLAIN(act_fwd))

extern "C" __global__ void __launch_bounds__(BLOCK, 4) GATED(act_fwd)(
    const T* g, i64 g_stride, const real* gate_bias, i64 gate_bias_replica_stride, const T* u, i64 u_stride,
    const real* up_bias, i64 up_bias_replica_stride, T* out, i64 rows_per_replica, i64 replicas, int columns, int width,
    int tiles, int parts) {
  const Place place(rows_per_replica, width, tiles, parts);
  const bool wide = columns % VEC == 0 && vectors<VEC>(g, g_stride) && vectors<VEC>(u, u_stride) && vectors<VEC>(out, columns);
  each_column(columns, width, place.tile, wide, [&](int c, auto numbers) {
    constexpr int N = decltype(numbers)::count;
    struct Read { Vec<T, N> g, u; };
    if (c >= columns) return;
    real gate_b[N], up_b[N];
    load_bias<N>(gate_bias, place.replica, gate_bias_replica_stride, c, gate_b);
    load_bias<N>(up_bias, place.replica, up_bias_replica_stride, c, up_b);
    batched<2>(
        place.first, place.step, place.end,
        [&](i64 r) { return Read{load_vec<N>(g + r * g_stride + c), load_vec<N>(u + r * u_stride + c)}; },
        [&](i64 r, const Read& read) {
          real gate[N], up[N];
          read.g.unpack(gate);
          read.u.unpack(up);
#pragma unroll
          for (int k = 0; k < N; ++k) up[k] = ACT::value(gate[k] + gate_b[k]) * (up[k] + up_b[k]);
          store_vec<N>(out + r * columns + c, up);
        });
  });
}
EXPORT_KERNEL(GATED(act_fwd))

extern "C" __global__ void __launch_bounds__(BLOCK, 3) PLAIN(act_bwd)(
    const T* dy, i64 dy_stride, const T* a, i64 a_stride, const real* bias, i64 bias_replica_stride, T* da, i64 da_stride,
    real* partial, i64 rows_per_replica, i64 replicas, int columns, int width, int tiles, int parts) {
  const Place place(rows_per_replica, width, tiles, parts);
  const bool wide = columns % VEC == 0 && vectors<VEC>(dy, dy_stride) && vectors<VEC>(a, a_stride) &&
                    vectors<VEC>(da, da_stride);
  each_column(columns, width, place.tile, wide, [&](int c, auto numbers) {
    constexpr int N = decltype(numbers)::count;
    struct Read { Vec<T, N> dy, a; };
    real b[N], sums[N] = {};
    if (c < columns) {
      load_bias<N>(bias, place.replica, bias_replica_stride, c, b);
      batched<2>(
          place.first, place.step, place.end,
          [&](i64 r) { return Read{load_vec<N>(dy + r * dy_stride + c), load_vec<N>(a + r * a_stride + c)}; },
          [&](i64 r, const Read& read) {
            real d[N], v[N];
            read.dy.unpack(d);
            read.a.unpack(v);
#pragma unroll
            for (int k = 0; k < N; ++k) {
              real f, slope;
              ACT::both(v[k] + b[k], f, slope);
              d[k] *= slope;
              sums[k] += d[k];
            }
            store_vec<N>(da + r * da_stride + c, d);
          });
    }
    if (partial) add_up<N>(c, columns, sums, width, partial + (place.replica * parts + place.part) * columns);
  });
}
EXPORT_KERNEL(PLAIN(act_bwd))

extern "C" __global__ void __launch_bounds__(BLOCK, 2) GATED(act_bwd)(
    const T* dy, i64 dy_stride, const T* g, i64 g_stride, const real* gate_bias, i64 gate_bias_replica_stride, const T* u,
    i64 u_stride, const real* up_bias, i64 up_bias_replica_stride, T* dg, i64 dg_stride, T* du, i64 du_stride,
    real* partial, i64 rows_per_replica, i64 replicas, int columns, int width, int tiles, int parts) {
  const Place place(rows_per_replica, width, tiles, parts);
  const bool wide = columns % VEC == 0 && vectors<VEC>(dy, dy_stride) && vectors<VEC>(g, g_stride) &&
                    vectors<VEC>(u, u_stride) && vectors<VEC>(dg, dg_stride) && vectors<VEC>(du, du_stride);
  each_column(columns, width, place.tile, wide, [&](int c, auto numbers) {
    constexpr int N = decltype(numbers)::count;
    struct Read { Vec<T, N> dy, g, u; };
    real gate_b[N], up_b[N], gate_sums[N] = {}, up_sums[N] = {};
    if (c < columns) {
      load_bias<N>(gate_bias, place.replica, gate_bias_replica_stride, c, gate_b);
      load_bias<N>(up_bias, place.replica, up_bias_replica_stride, c, up_b);
      batched<2>(
          place.first, place.step, place.end,
          [&](i64 r) {
            return Read{load_vec<N>(dy + r * dy_stride + c), load_vec<N>(g + r * g_stride + c),
                        load_vec<N>(u + r * u_stride + c)};
          },
          [&](i64 r, const Read& read) {
            real d[N], gate[N], up[N];
            read.dy.unpack(d);
            read.g.unpack(gate);
            read.u.unpack(up);
#pragma unroll
            for (int k = 0; k < N; ++k) {
              real f, slope;
              ACT::both(gate[k] + gate_b[k], f, slope);
              gate[k] = d[k] * (up[k] + up_b[k]) * slope;
              up[k] = d[k] * f;
              gate_sums[k] += gate[k];
              up_sums[k] += up[k];
            }
            store_vec<N>(dg + r * dg_stride + c, gate);
            store_vec<N>(du + r * du_stride + c, up);
          });
    }
    if (!partial) return;
    real* gate_row = partial + (place.replica * parts + place.part) * columns;
    add_up<N>(c, columns, gate_sums, width, gate_row);
    add_up<N>(c, columns, up_sums, width, gate_row + replicas * parts * columns);
  });
}
EXPORT_KERNEL(GATED(act_bwd))

#undef PLAIN
#undef GATED
