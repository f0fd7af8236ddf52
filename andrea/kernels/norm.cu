// Residual add and norm in one pass, LayerNorm (CENTER) or RMSNorm.
//
//   forward    s = x + delta          y = (s − mean) · rstd · w + b          mean = 0 for RMSNorm
//   backward   g = dy · w,  h = (s − mean) · rstd
//              ds = rstd · (g − avg(g) − h · avg(g · h)) + dsum              without avg(g) for RMSNorm
//              dw = Σ_rows dy · h,  db = Σ_rows dy
//
// dsum is what comes from above along the residual stream: adding it here saves a pass over the stream. s is rounded to its
// storage before it is normalized, so that backward, which reads the stored s, sees the very same numbers.
//
// Bytes at least, per element (R the stream, T the branch; float32 stream and bf16 branch in brackets):
//   forward    read x, delta, write s, y         2·R + 2·T   (12)
//   backward   read dy, s, dsum, write ds        3·R + 1·T   (14), and T more where delta wants its gradient in T
//
// Threads: up to 1024 columns a row belongs to a warp, eight rows a block, no barriers; above it to a block. Lane l takes the
// vectors l, l + lanes, …: 16 bytes of the stream, and the same columns of the branch. The row waits in shared memory as
// stored (each lane reads back only what it wrote: no barrier, no bank conflict) for the passes that need its mean and
// variance. Mean first and then Σ(s − mean)²: the one-pass E[s²] − mean² cancels when the mean is large. A row that does not fit
// is read again.
//
// dw and db without atomics: stage 1, a group of threads walks over the rows part, part + parts, … of its replica and keeps its
// columns' sums in shared memory; the groups of a block add theirs in order; the block writes one row of `partial`. Stage 2,
// reduce_parts, adds those rows in order. Every order depends on shapes and the launch alone.

constexpr int VEC = 16 / sizeof(R);

// N numbers of a row of weights, which is read once a row from the L1 cache; `otherwise` where there are none.
template <int N> __device__ __forceinline__ void weights(const real* from, int c, real otherwise, real (&to)[N]) {
  if (from) {
    load_vec<N>(from + c).unpack(to);
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k) to[k] = otherwise;
  }
}

// ---- Forward --------------------------------------------------------------------------------------------------------

struct ForwardRow { const R* x; const T* delta; const real *weight, *bias; R* sum; T* y; real *mean, *rstd; };

template <int N> struct Pair { Vec<R, N> x; Vec<T, N> delta; };

template <bool CENTER, int N, bool CACHED>
__device__ __forceinline__ void forward_row(const ForwardRow& row, int columns, real eps, R* cache, int lane, int lanes) {
  const int first = lane * N, step = lanes * N;
  const auto fetch = [&](int c) {
    Pair<N> pair;
    pair.x = load_vec<N>(row.x + c);
    if (row.delta) pair.delta = load_vec<N>(row.delta + c);
    return pair;
  };
  const auto added = [&](const Pair<N>& pair) {          // the new stream, rounded as it is stored
    if (!row.delta) return pair.x;
    real x[N], delta[N];
    pair.x.unpack(x);
    pair.delta.unpack(delta);
#pragma unroll
    for (int k = 0; k < N; ++k) x[k] += delta[k];
    return Vec<R, N>::pack(x);
  };
  real total = 0;
  batched<CACHED ? 3 : 1>(first, step, columns, fetch, [&](int c, const Pair<N>& pair) {
    const Vec<R, N> stored = added(pair);
    if (row.sum) store_vec<N>(row.sum + c, stored);
    if (CACHED) store_vec<N>(cache + c, stored);
    real s[N];
    stored.unpack(s);
#pragma unroll
    for (int k = 0; k < N; ++k) total += CENTER ? s[k] : s[k] * s[k];
  });
  total = row_sum(total, lanes);

  const auto again = [&](int c) { return CACHED ? load_vec<N>(cache + c) : added(fetch(c)); };
  real mean = 0;
  if (CENTER) {
    mean = total / columns;
    total = 0;
    batched<1>(first, step, columns, again, [&](int, const Vec<R, N>& stored) {
      real s[N];
      stored.unpack(s);
#pragma unroll
      for (int k = 0; k < N; ++k) total += (s[k] - mean) * (s[k] - mean);
    });
    total = row_sum(total, lanes);
  }
  const real rstd = 1 / root(total / columns + eps);
  if (lane == 0) {
    if (CENTER) *row.mean = mean;
    *row.rstd = rstd;
  }
  batched<1>(first, step, columns, again, [&](int c, const Vec<R, N>& stored) {
    real y[N], w[N], b[N];
    stored.unpack(y);
    weights<N>(row.weight, c, 1, w);
    weights<N>(row.bias, c, 0, b);
#pragma unroll
    for (int k = 0; k < N; ++k) y[k] = (y[k] - mean) * rstd * w[k] + b[k];
    store_vec<N>(row.y + c, y);
  });
}

#define FORWARD_ARGUMENTS                                                                                              \
  const R *x, i64 x_stride, const T *delta, i64 delta_stride, const real *weight, i64 weight_replica_stride,           \
      const real *bias, i64 bias_replica_stride, R *sum, T *y, real *mean, real *rstd, i64 rows, int columns,          \
      i64 rows_per_replica, real eps, int lanes, int cached
#define FORWARD_VALUES                                                                                                 \
  x, x_stride, delta, delta_stride, weight, weight_replica_stride, bias, bias_replica_stride, sum, y, mean, rstd,      \
      rows, columns, rows_per_replica, eps, lanes, cached

template <bool CENTER, int N, bool CACHED> __device__ __forceinline__ void forward_rows(FORWARD_ARGUMENTS) {
  DYN_SHARED(unsigned char, shared);
  const int lane = threadIdx.x % lanes, group = threadIdx.x / lanes, groups = blockDim.x / lanes;
  R* cache = reinterpret_cast<R*>(shared) + group * ((columns + VEC - 1) / VEC * VEC);
#pragma unroll 1
  for (i64 r = static_cast<i64>(blockIdx.x) * groups + group; r < rows; r += static_cast<i64>(gridDim.x) * groups) {
    const i64 replica = r / rows_per_replica;
    ForwardRow row;
    row.x = x + r * x_stride;
    row.delta = delta ? delta + r * delta_stride : nullptr;
    row.weight = weight ? weight + replica * weight_replica_stride : nullptr;
    row.bias = bias ? bias + replica * bias_replica_stride : nullptr;
    row.sum = sum ? sum + r * columns : nullptr;
    row.y = y + r * columns;
    row.mean = CENTER ? mean + r : nullptr;
    row.rstd = rstd + r;
    forward_row<CENTER, N, CACHED>(row, columns, eps, cache, lane, lanes);
  }
}

// One loop over rows for each way of reading them, chosen before it: less to keep in registers than a choice inside.
template <bool CENTER> __device__ __forceinline__ void forward(FORWARD_ARGUMENTS) {
  const bool wide = columns % VEC == 0 && vectors<VEC>(x, x_stride) && vectors<VEC>(delta, delta ? delta_stride : 0) &&
                    vectors<VEC>(weight, weight_replica_stride) && vectors<VEC>(bias, bias_replica_stride) &&
                    vectors<VEC>(sum, columns) && vectors<VEC>(y, columns);
  if (cached && wide) forward_rows<CENTER, VEC, true>(FORWARD_VALUES);
  else if (cached) forward_rows<CENTER, 1, true>(FORWARD_VALUES);
  else if (wide) forward_rows<CENTER, VEC, false>(FORWARD_VALUES);
  else forward_rows<CENTER, 1, false>(FORWARD_VALUES);
}

extern "C" __global__ void __launch_bounds__(256, 3) NAME(norm_fwd_ln)(FORWARD_ARGUMENTS) { forward<true>(FORWARD_VALUES); }
EXPORT_KERNEL(NAME(norm_fwd_ln))
extern "C" __global__ void __launch_bounds__(256, 3) NAME(norm_fwd_rms)(FORWARD_ARGUMENTS) { forward<false>(FORWARD_VALUES); }
EXPORT_KERNEL(NAME(norm_fwd_rms))

#undef FORWARD_ARGUMENTS
#undef FORWARD_VALUES

// ---- Backward -------------------------------------------------------------------------------------------------------

// The sums of a thread's columns over its rows, in pieces of at most four. In shared memory the two pieces of a vector of eight
// lie in two planes, so that neighbouring lanes stay 16 bytes apart and in different banks.
template <int N, bool PLANES> struct ColumnSums {
  static constexpr int PIECE = N > 4 ? 4 : N, PIECES = N / PIECE;
  real* base;
  int columns;

  __device__ __forceinline__ real* at(int c, int q) const {
    return PLANES ? base + q * (columns / PIECES) + c / PIECES : base + c + q * PIECE;
  }
  __device__ __forceinline__ void add(int c, const real (&v)[N]) {
#pragma unroll
    for (int q = 0; q < PIECES; ++q) {
      Vec<real, PIECE> sums = load_vec<PIECE>(at(c, q));
#pragma unroll
      for (int k = 0; k < PIECE; ++k) sums.v[k] += v[q * PIECE + k];
      store_vec<PIECE>(at(c, q), sums);
    }
  }
  __device__ __forceinline__ void clear(int c) {
    Vec<real, PIECE> zero;
#pragma unroll
    for (int k = 0; k < PIECE; ++k) zero.v[k] = 0;
#pragma unroll
    for (int q = 0; q < PIECES; ++q) store_vec<PIECE>(at(c, q), zero);
  }
  // Which column stands at a place of the planes.
  __device__ __forceinline__ int column(int place) const {
    const int plane = columns / PIECES, within = place % plane;
    return within / PIECE * N + place / plane * PIECE + within % PIECE;
  }
};

struct BackwardRow { const T* dy; const R *dsum, *sum; const real* weight; R* dx; T* ddelta; real mean, rstd; };

template <int N> struct Read { Vec<T, N> dy; Vec<R, N> sum; };

template <bool CENTER, int N, bool CACHED>
__device__ __forceinline__ void backward_row(const BackwardRow& row, int columns, R* sum_cache, T* dy_cache,
                                             ColumnSums<N, CACHED>& dw, ColumnSums<N, CACHED>& db, bool with_weight,
                                             bool with_bias, int lane, int lanes) {
  const int first = lane * N, step = lanes * N;
  const auto fetch = [&](int c) { return Read<N>{load_vec<N>(row.dy + c), load_vec<N>(row.sum + c)}; };
  const auto normed = [&](const Vec<R, N>& stored, real (&h)[N]) {
    stored.unpack(h);
#pragma unroll
    for (int k = 0; k < N; ++k) h[k] = (h[k] - row.mean) * row.rstd;
  };

  real sum_g = 0, sum_gh = 0;
  batched<CACHED ? 4 : 1>(first, step, columns, fetch, [&](int c, const Read<N>& read) {
    real dy[N], h[N], w[N];
    read.dy.unpack(dy);
    normed(read.sum, h);
    weights<N>(row.weight, c, 1, w);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      h[k] *= dy[k];
      sum_g += dy[k] * w[k];
      sum_gh += h[k] * w[k];
    }
    if (with_weight) dw.add(c, h);
    if (with_bias) db.add(c, dy);
    if (CACHED) {
      store_vec<N>(sum_cache + c, read.sum);
      store_vec<N>(dy_cache + c, read.dy);
    }
  });
  const real avg_g = CENTER ? row_sum(sum_g, lanes) / columns : real(0);
  const real avg_gh = row_sum(sum_gh, lanes) / columns;

  const auto fetch_dsum = [&](int c) { return row.dsum ? load_vec<N>(row.dsum + c) : Vec<R, N>{}; };
  batched<CACHED ? 4 : 1>(first, step, columns, fetch_dsum, [&](int c, const Vec<R, N>& from_above) {
    const Read<N> read = CACHED ? Read<N>{load_vec<N>(dy_cache + c), load_vec<N>(sum_cache + c)} : fetch(c);
    real d[N], h[N], w[N], above[N];
    read.dy.unpack(d);
    normed(read.sum, h);
    weights<N>(row.weight, c, 1, w);
    from_above.unpack(above);
#pragma unroll
    for (int k = 0; k < N; ++k) d[k] = row.rstd * (d[k] * w[k] - avg_g - h[k] * avg_gh) + above[k];
    store_vec<N>(row.dx + c, d);
    if (row.ddelta) store_vec<N>(row.ddelta + c, d);
  });
}

#define BACKWARD_ARGUMENTS                                                                                             \
  const T *dy, i64 dy_stride, const R *dsum, i64 dsum_stride, const R *sum, i64 sum_stride, const real *mean,          \
      const real *rstd, const real *weight, i64 weight_replica_stride, R *dx, T *ddelta, real *partial,                \
      i64 rows_per_replica, i64 replicas, int columns, int with_bias, int parts, int lanes, int cached
#define BACKWARD_VALUES                                                                                                \
  dy, dy_stride, dsum, dsum_stride, sum, sum_stride, mean, rstd, weight, weight_replica_stride, dx, ddelta, partial,   \
      rows_per_replica, replicas, columns, with_bias, parts, lanes, cached

// A block: one part of the rows of one replica. Its shared memory, where it is used: for each group of threads the row of s and
// of dy, and the sums for dw and db. Where that is more than there is, one group (the block) keeps its sums in its row of
// `partial`, which stays in the L2 cache, and reads rows twice.
template <bool CENTER, int N, bool CACHED> __device__ __forceinline__ void backward_rows(BACKWARD_ARGUMENTS) {
  DYN_SHARED(unsigned char, shared);
  const int lane = threadIdx.x % lanes, group = threadIdx.x / lanes, groups = blockDim.x / lanes;
  const i64 replica = blockIdx.x / parts;
  const int part = blockIdx.x % parts, length = (columns + VEC - 1) / VEC * VEC;
  const bool with_weight = partial;
  with_bias = with_bias && partial;

  const i64 partial_row = (replica * parts + part) * columns;
  real *dw_out = partial + partial_row, *db_out = partial + replicas * parts * columns + partial_row;
  // [groups][2][length] sums, [groups][length] of s, [groups][length] of dy: every row starts at a multiple of 16 bytes.
  real* sums = reinterpret_cast<real*>(shared);
  R* sum_rows = reinterpret_cast<R*>(sums + groups * 2 * length);
  T* dy_rows = reinterpret_cast<T*>(sum_rows + groups * length);
  ColumnSums<N, CACHED> dw{CACHED ? sums + group * 2 * length : dw_out, columns};
  ColumnSums<N, CACHED> db{CACHED ? sums + (group * 2 + 1) * length : db_out, columns};
  for (int c = lane * N; c < columns; c += lanes * N) {
    if (with_weight) dw.clear(c);
    if (with_bias) db.clear(c);
  }

#pragma unroll 1
  for (i64 i = static_cast<i64>(part) * groups + group; i < rows_per_replica; i += static_cast<i64>(parts) * groups) {
    const i64 r = replica * rows_per_replica + i;
    BackwardRow row;
    row.dy = dy + r * dy_stride;
    row.dsum = dsum ? dsum + r * dsum_stride : nullptr;
    row.sum = sum + r * sum_stride;
    row.weight = weight ? weight + replica * weight_replica_stride : nullptr;
    row.dx = dx + r * columns;
    row.ddelta = ddelta ? ddelta + r * columns : nullptr;
    row.mean = CENTER ? mean[r] : real(0);
    row.rstd = rstd[r];
    backward_row<CENTER, N, CACHED>(row, columns, sum_rows + group * length, dy_rows + group * length, dw, db, with_weight,
                                    with_bias, lane, lanes);
  }

  if (!CACHED || !with_weight) return;
  __syncthreads();                                       // every group has finished its sums
  for (int place = threadIdx.x; place < columns; place += blockDim.x) {
    real w = 0, b = 0;
    for (int g = 0; g < groups; ++g) {
      w += sums[g * 2 * length + place];
      if (with_bias) b += sums[(g * 2 + 1) * length + place];
    }
    dw_out[dw.column(place)] = w;
    if (with_bias) db_out[db.column(place)] = b;
  }
}

template <bool CENTER> __device__ __forceinline__ void backward(BACKWARD_ARGUMENTS) {
  const bool wide = columns % VEC == 0 && vectors<VEC>(dy, dy_stride) && vectors<VEC>(dsum, dsum ? dsum_stride : 0) &&
                    vectors<VEC>(sum, sum_stride) && vectors<VEC>(weight, weight_replica_stride) &&
                    vectors<VEC>(dx, columns) && vectors<VEC>(ddelta, columns) && vectors<VEC>(partial, columns);
  if (cached && wide) backward_rows<CENTER, VEC, true>(BACKWARD_VALUES);
  else if (cached) backward_rows<CENTER, 1, true>(BACKWARD_VALUES);
  else if (wide) backward_rows<CENTER, VEC, false>(BACKWARD_VALUES);
  else backward_rows<CENTER, 1, false>(BACKWARD_VALUES);
}

extern "C" __global__ void __launch_bounds__(256, 2) NAME(norm_bwd_ln)(BACKWARD_ARGUMENTS) { backward<true>(BACKWARD_VALUES); }
EXPORT_KERNEL(NAME(norm_bwd_ln))
extern "C" __global__ void __launch_bounds__(256, 2) NAME(norm_bwd_rms)(BACKWARD_ARGUMENTS) { backward<false>(BACKWARD_VALUES); }
EXPORT_KERNEL(NAME(norm_bwd_rms))

#undef BACKWARD_ARGUMENTS
#undef BACKWARD_VALUES
