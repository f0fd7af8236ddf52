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
// Threads: a block is a tile of `width` threads along the columns, each with one vector of 16 bytes, by blockDim.x / width rows;
// it walks down the rows part, part + parts, … of one replica. A thread thus keeps its columns: their bias is loaded once
// into registers, and so are the sums for the bias' gradient. Those are added over the threads of a block in order, and over
// the blocks by reduce_parts: no atomics, the same bits every time.

constexpr int VEC = 16 / sizeof(T);
constexpr int BLOCK = 256;

// ---- Functions: value, and value with slope. Written with one exponential and one division, without cancellation. -----

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

// Vectors where every row allows it, else single elements, width apart: in both cases a warp reads consecutive addresses.
struct Columns {
  int columns, first, step;                              // step 1: a vector
  bool wide;

  __device__ __forceinline__ Columns(int columns_, int width, int tile, bool wide_) : columns(columns_), wide(wide_) {
    const int x = threadIdx.x % width;
    step = wide ? 1 : width;
    first = tile * width * VEC + (wide ? x * VEC : x);
  }
  __device__ __forceinline__ bool some() const { return first < columns; }
  __device__ __forceinline__ int at(int k) const { return first + k * step; }

  __device__ __forceinline__ Vec<T, VEC> read(const T* row) const {
    if (wide) return load_vec<VEC>(row + first);
    Vec<T, VEC> v{};
#pragma unroll
    for (int k = 0; k < VEC; ++k)
      if (at(k) < columns) v.v[k] = row[at(k)];
    return v;
  }
  __device__ __forceinline__ void write(T* row, const Vec<T, VEC>& v) const {
    if (wide) return store_vec(row + first, v);
#pragma unroll
    for (int k = 0; k < VEC; ++k)
      if (at(k) < columns) row[at(k)] = v.v[k];
  }
  __device__ __forceinline__ void bias(const real* from, real (&to)[VEC]) const {
#pragma unroll
    for (int k = 0; k < VEC; ++k) to[k] = from && at(k) < columns ? from[at(k)] : real(0);
  }
};

// Adds the sums of the threads that have the same columns, in the order of their rows, into a row of `partial`.
__device__ __forceinline__ void add_up(const Columns& mine, const real (&sums)[VEC], int width, real* partial_row) {
  __shared__ real of_thread[VEC][BLOCK];
#pragma unroll
  for (int k = 0; k < VEC; ++k) of_thread[k][threadIdx.x] = sums[k];
  __syncthreads();
  if (threadIdx.x < width && mine.some()) {
#pragma unroll
    for (int k = 0; k < VEC; ++k) {
      real total = 0;
      for (int t = threadIdx.x; t < BLOCK; t += width) total += of_thread[k][t];
      if (mine.at(k) < mine.columns) partial_row[mine.at(k)] = total;
    }
  }
  __syncthreads();
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
  const Columns mine(columns, width, place.tile, wide);
  if (!mine.some()) return;
  real b[VEC];
  mine.bias(bias ? bias + place.replica * bias_replica_stride : nullptr, b);
  batched<4>(
      place.first, place.step, place.end, [&](i64 r) { return mine.read(a + r * a_stride); },
      [&](i64 r, Vec<T, VEC> v) {
#pragma unroll
        for (int k = 0; k < VEC; ++k) v.v[k] = store<T>(ACT::value(load(v.v[k]) + b[k]));
        mine.write(out + r * columns, v);
      });
}
EXPORT_KERNEL(PLAIN(act_fwd))

extern "C" __global__ void __launch_bounds__(BLOCK, 3) PLAIN(act_bwd)(
    const T* dy, i64 dy_stride, const T* a, i64 a_stride, const real* bias, i64 bias_replica_stride, T* da, i64 da_stride,
    real* partial, i64 rows_per_replica, i64 replicas, int columns, int width, int tiles, int parts) {
  struct Read { Vec<T, VEC> dy, a; };
  const Place place(rows_per_replica, width, tiles, parts);
  const bool wide = columns % VEC == 0 && vectors<VEC>(dy, dy_stride) && vectors<VEC>(a, a_stride) &&
                    vectors<VEC>(da, da_stride);
  const Columns mine(columns, width, place.tile, wide);
  real b[VEC], sums[VEC] = {};
  mine.bias(bias ? bias + place.replica * bias_replica_stride : nullptr, b);
  if (mine.some())
    batched<2>(
        place.first, place.step, place.end,
        [&](i64 r) { return Read{mine.read(dy + r * dy_stride), mine.read(a + r * a_stride)}; },
        [&](i64 r, Read read) {
#pragma unroll
          for (int k = 0; k < VEC; ++k) {
            real f, slope;
            ACT::both(load(read.a.v[k]) + b[k], f, slope);
            const real d = load(read.dy.v[k]) * slope;
            sums[k] += d;
            read.a.v[k] = store<T>(d);
          }
          mine.write(da + r * da_stride, read.a);
        });
  if (partial) add_up(mine, sums, width, partial + (place.replica * parts + place.part) * columns);
}
EXPORT_KERNEL(PLAIN(act_bwd))

extern "C" __global__ void __launch_bounds__(BLOCK, 4) GATED(act_fwd)(
    const T* g, i64 g_stride, const real* gate_bias, i64 gate_bias_replica_stride, const T* u, i64 u_stride,
    const real* up_bias, i64 up_bias_replica_stride, T* out, i64 rows_per_replica, i64 replicas, int columns, int width,
    int tiles, int parts) {
  struct Read { Vec<T, VEC> g, u; };
  const Place place(rows_per_replica, width, tiles, parts);
  const bool wide = columns % VEC == 0 && vectors<VEC>(g, g_stride) && vectors<VEC>(u, u_stride) && vectors<VEC>(out, columns);
  const Columns mine(columns, width, place.tile, wide);
  if (!mine.some()) return;
  real gate_b[VEC], up_b[VEC];
  mine.bias(gate_bias ? gate_bias + place.replica * gate_bias_replica_stride : nullptr, gate_b);
  mine.bias(up_bias ? up_bias + place.replica * up_bias_replica_stride : nullptr, up_b);
  batched<2>(
      place.first, place.step, place.end,
      [&](i64 r) { return Read{mine.read(g + r * g_stride), mine.read(u + r * u_stride)}; },
      [&](i64 r, Read read) {
#pragma unroll
        for (int k = 0; k < VEC; ++k)
          read.u.v[k] = store<T>(ACT::value(load(read.g.v[k]) + gate_b[k]) * (load(read.u.v[k]) + up_b[k]));
        mine.write(out + r * columns, read.u);
      });
}
EXPORT_KERNEL(GATED(act_fwd))

extern "C" __global__ void __launch_bounds__(BLOCK, 2) GATED(act_bwd)(
    const T* dy, i64 dy_stride, const T* g, i64 g_stride, const real* gate_bias, i64 gate_bias_replica_stride, const T* u,
    i64 u_stride, const real* up_bias, i64 up_bias_replica_stride, T* dg, i64 dg_stride, T* du, i64 du_stride,
    real* partial, i64 rows_per_replica, i64 replicas, int columns, int width, int tiles, int parts) {
  struct Read { Vec<T, VEC> dy, g, u; };
  const Place place(rows_per_replica, width, tiles, parts);
  const bool wide = columns % VEC == 0 && vectors<VEC>(dy, dy_stride) && vectors<VEC>(g, g_stride) &&
                    vectors<VEC>(u, u_stride) && vectors<VEC>(dg, dg_stride) && vectors<VEC>(du, du_stride);
  const Columns mine(columns, width, place.tile, wide);
  real gate_b[VEC], up_b[VEC], gate_sums[VEC] = {}, up_sums[VEC] = {};
  mine.bias(gate_bias ? gate_bias + place.replica * gate_bias_replica_stride : nullptr, gate_b);
  mine.bias(up_bias ? up_bias + place.replica * up_bias_replica_stride : nullptr, up_b);
  if (mine.some())
    batched<2>(
        place.first, place.step, place.end,
        [&](i64 r) {
          return Read{mine.read(dy + r * dy_stride), mine.read(g + r * g_stride), mine.read(u + r * u_stride)};
        },
        [&](i64 r, Read read) {
#pragma unroll
          for (int k = 0; k < VEC; ++k) {
            real f, slope;
            ACT::both(load(read.g.v[k]) + gate_b[k], f, slope);
            const real d = load(read.dy.v[k]), d_gate = d * (load(read.u.v[k]) + up_b[k]) * slope, d_up = d * f;
            gate_sums[k] += d_gate;
            up_sums[k] += d_up;
            read.g.v[k] = store<T>(d_gate);
            read.u.v[k] = store<T>(d_up);
          }
          mine.write(dg + r * dg_stride, read.g);
          mine.write(du + r * du_stride, read.u);
        });
  if (!partial) return;
  real* gate_row = partial + (place.replica * parts + place.part) * columns;
  add_up(mine, gate_sums, width, gate_row);
  add_up(mine, up_sums, width, gate_row + replicas * parts * columns);
}
EXPORT_KERNEL(GATED(act_bwd))

#undef PLAIN
#undef GATED
