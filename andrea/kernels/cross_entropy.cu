// Cross-entropy of every row of logits, and its gradient, in one read and one write of the logits.
//
//   z = x, or cap · tanh(x / cap)          m = max z      s = Σ exp(z − m)      lse = m + log s
//   loss = log s − (z_t − m)               the reported loss: never with the z-loss term
//   grad = upstream · dz/dx · [ exp(z − m) / s · (1 + 2 · z_loss · lse) − 1{c = t} ]
//
// Bytes at least: N·V·size read, N·V·size written (8 float32 numbers a row besides). torch's eager way reads and writes the
// logits five to eight times, several of them as float32.
//
// Threads: a row belongs to one warp (small vocabularies, 8 rows a block) or to one block. Thread l takes the 16-byte
// pieces l, l + lanes, l + 2·lanes, … of the row, in both passes, so that a warp reads 512 consecutive bytes and no thread ever
// needs what another one read: pieces wait for the second pass in shared memory without a barrier, each lane in its own
// banks. A row that does not fit (`cached` = 0) is read again in the second pass, mostly from the L2 cache.
//
// Rows of an odd vocabulary start anywhere. The pieces are the aligned ones inside the row; the few elements before and after
// them, the edges, are taken one by one.
//
// In place (grad = logits): an element is overwritten only by the thread that read it, after it read it.
//
// Why m first: exp(z − m) and log s − (z_t − m) are differences of nearby numbers whatever offset all logits share; a
// rounded lse would lose it (3e4 + 0.1 in float32 is 3e4 + 0.1016). m starts at the lowest finite number and not at −∞, since
// −∞ − (−∞) is NaN and rows with most logits at −∞ are ordinary (masked vocabularies).

constexpr int VEC = 16 / sizeof(T);
constexpr int IN_FLIGHT = 4;                             // with the cap's tanh, whose registers are not free, 2

__device__ constexpr f32 lowest(f32) { return -3.402823466e38f; }
__device__ constexpr f64 lowest(f64) { return -1.7976931348623157e308; }
constexpr real LOWEST = lowest(real(0));                 // finite: see above

struct Softmax {
  real max = LOWEST, sum = 0;

  // Online: when a larger maximum turns up, what was summed so far is rescaled to it. Once per piece, not per element: 9
  // exponentials for 8 elements.
  template <int N> __device__ __forceinline__ void add(const real (&z)[N]) {
    real highest = z[0];
#pragma unroll
    for (int k = 1; k < N; ++k) highest = larger(highest, z[k]);
    if (highest > max) {
      sum *= fast_exp(max - highest);
      max = highest;
    }
#pragma unroll
    for (int k = 0; k < N; ++k) sum += fast_exp(z[k] - max);
  }

  __device__ __forceinline__ void over_the_row(int lanes) {
    const real highest = row_max(max, lanes);
    sum = row_sum(sum * fast_exp(max - highest), lanes);
    max = highest;
  }
};

// A row cut into edges and pieces: columns [0, head) and [tail, columns) one by one, pieces between.
struct Cut {
  int columns, head, pieces, tail;

  __device__ __forceinline__ Cut(const T* row, int columns_) : columns(columns_) {
    const int past = static_cast<int>(reinterpret_cast<unsigned long long>(row) % 16 / sizeof(T));
    head = past ? VEC - past : 0;
    if (head > columns) head = columns;
    pieces = (columns - head) / VEC;
    tail = head + pieces * VEC;
  }
  __device__ __forceinline__ int edges() const { return head + columns - tail; }
  __device__ __forceinline__ int edge(int i) const { return i < head ? i : tail + i - head; }
  // The thread that has this column.
  __device__ __forceinline__ int owner(int column, int lanes) const {
    if (column >= head && column < tail) return (column - head) / VEC % lanes;
    return (column < head ? column : head + column - tail) % lanes;
  }
};

template <bool CAP> __device__ __forceinline__ real capped(real x, real cap) { return CAP ? cap * tanh_of(x / cap) : x; }
template <bool CAP> __device__ __forceinline__ real capped_slope(real z, real cap) {
  return CAP ? 1 - z / cap * (z / cap) : real(1);
}

// Fill a row of the gradient with one number.
__device__ __forceinline__ void fill(T* grad, int columns, real value, int lane, int lanes) {
  const Cut cut(grad, columns);
  real values[VEC];
#pragma unroll
  for (int k = 0; k < VEC; ++k) values[k] = value;
  for (int j = lane; j < cut.pieces; j += lanes) store_vec<VEC>(grad + cut.head + j * VEC, values);
  for (int i = lane; i < cut.edges(); i += lanes) grad[cut.edge(i)] = store<T>(value);
}

struct Numbers { real upstream, softcap, z_loss; };

template <bool CAP>
__device__ __forceinline__ void one_row(const T* logits, T* grad, int columns, int target, const Numbers& n, real* loss,
                                        real* lse, Vec<T, VEC>* cache, bool cached, int lane, int lanes) {
  const Cut cut(logits, columns);
  const real cap = n.softcap;

  Softmax softmax;
  batched<CAP ? 2 : IN_FLIGHT>(
      lane, lanes, cut.pieces, [&](int j) { return load_vec<VEC>(logits + cut.head + j * VEC); },
      [&](int j, const Vec<T, VEC>& piece) {
        if (cached) cache[j] = piece;
        real z[VEC];
        piece.unpack(z);
#pragma unroll
        for (int k = 0; k < VEC; ++k) z[k] = capped<CAP>(z[k], cap);
        softmax.add(z);
      });
  for (int i = lane; i < cut.edges(); i += lanes) {
    const real z[1] = {capped<CAP>(load(logits[cut.edge(i)]), cap)};
    softmax.add(z);
  }
  // Whoever will overwrite the target's logit keeps it; the sums below give this load the time it needs.
  const bool mine = cut.owner(target, lanes) == lane;
  const real at_target = mine ? capped<CAP>(load(logits[target]), cap) : real(0);
  softmax.over_the_row(lanes);

  const real m = softmax.max, log_sum = log_of(softmax.sum), log_sum_exp = m + log_sum;
  if (mine) *loss = log_sum - (at_target - m);
  if (lse && lane == 0) *lse = log_sum_exp;
  if (!grad) return;

  const real scale = n.upstream * (1 + 2 * n.z_loss * log_sum_exp);
  const auto slope = [&](real x) {
    const real z = capped<CAP>(x, cap);
    return scale * fast_exp(z - m - log_sum) * capped_slope<CAP>(z, cap);
  };
  const bool same_cut = (reinterpret_cast<unsigned long long>(grad) - reinterpret_cast<unsigned long long>(logits)) % 16 == 0;
  batched<2>(                                            // mostly from shared memory, which answers sooner
      lane, lanes, cut.pieces, [&](int j) { return cached ? cache[j] : load_vec<VEC>(logits + cut.head + j * VEC); },
      [&](int j, const Vec<T, VEC>& piece) {
        real d[VEC];
        piece.unpack(d);
#pragma unroll
        for (int k = 0; k < VEC; ++k) d[k] = slope(d[k]);
        T* to = grad + cut.head + j * VEC;
        if (same_cut) {
          store_vec<VEC>(to, d);
        } else {
#pragma unroll
          for (int k = 0; k < VEC; ++k) to[k] = store<T>(d[k]);
        }
      });
  for (int i = lane; i < cut.edges(); i += lanes) grad[cut.edge(i)] = store<T>(slope(load(logits[cut.edge(i)])));
  // The −1 of the target comes last: one store more by the thread that has the column, instead of a comparison for every
  // column of the row.
  if (mine) {
    const real p = scale * fast_exp(at_target - m - log_sum);
    grad[target] = store<T>((p - n.upstream) * capped_slope<CAP>(at_target, cap));
  }
}

#define ARGUMENTS                                                                                                      \
  const T *logits, i64 logits_stride, T *grad, i64 grad_stride, const i64 *targets, i64 target_stride,                 \
      i64 target_replica_stride, const real *upstream, i64 upstream_stride, real *loss, real *lse, i64 rows,           \
      int columns, i64 rows_per_replica, i64 ignore_index, real softcap, real z_loss, int lanes, int cached
#define VALUES                                                                                                         \
  logits, logits_stride, grad, grad_stride, targets, target_stride, target_replica_stride, upstream, upstream_stride,  \
      loss, lse, rows, columns, rows_per_replica, ignore_index, softcap, z_loss, lanes, cached

template <bool CAP> __device__ __forceinline__ void all_rows(ARGUMENTS) {
  DYN_SHARED(unsigned char, shared);
  const int lane = threadIdx.x % lanes, group = threadIdx.x / lanes, groups = blockDim.x / lanes;
  Vec<T, VEC>* cache = reinterpret_cast<Vec<T, VEC>*>(shared) + group * (columns / VEC);
#pragma unroll 1
  for (i64 row = static_cast<i64>(blockIdx.x) * groups + group; row < rows; row += static_cast<i64>(gridDim.x) * groups) {
    const i64 replica = row / rows_per_replica;
    const i64 target = targets[replica * target_replica_stride + (row - replica * rows_per_replica) * target_stride];
    T* grad_row = grad ? grad + row * grad_stride : nullptr;
    real* lse_row = lse ? lse + row : nullptr;
    const bool ignored = target == ignore_index;
    if (!ignored && target >= 0 && target < columns) {
      const Numbers numbers{upstream ? upstream[row * upstream_stride] : real(1), softcap, z_loss};
      one_row<CAP>(logits + row * logits_stride, grad_row, columns, static_cast<int>(target), numbers, loss + row, lse_row,
                   cache, cached, lane, lanes);
    } else {
      // A target that does not exist must not be overlooked, nor may it read foreign memory.
      const real value = ignored ? real(0) : not_a_number();
      if (grad_row) fill(grad_row, columns, value, lane, lanes);
      if (lane == 0) loss[row] = value;
      if (lane == 0 && lse) *lse_row = value;
    }
  }
}

extern "C" __global__ void __launch_bounds__(768) NAME(ce)(ARGUMENTS) {
  if (softcap != 0) all_rows<true>(VALUES);
  else all_rows<false>(VALUES);
}
EXPORT_KERNEL(NAME(ce))

#undef ARGUMENTS
#undef VALUES

// The gradient above was made for an upstream gradient known in advance (1/N in training). Backward brings the one that
// came: each row is multiplied by dloss / upstream; the host never has to look at them. dst may be src: a row where the two are
// equal then costs 8 bytes, else a copy.
extern "C" __global__ void __launch_bounds__(256) NAME(ce_scale)(
    const T* src, i64 src_stride, T* dst, i64 dst_stride, const real* dloss, i64 dloss_stride, const real* upstream,
    i64 upstream_stride, i64 rows, int columns) {
  for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
    const real wanted = dloss[row * dloss_stride], given = upstream ? upstream[row * upstream_stride] : real(1);
    if (wanted == given && src == dst) continue;
    const real factor = wanted == given ? real(1) : wanted / given;
    const T* from = src + row * src_stride;
    T* to = dst + row * dst_stride;
    const Cut cut(from, columns);
    const Cut cut_to(to, columns);
    const int lane = threadIdx.x, lanes = blockDim.x;
    const auto scaled = [&](T x) { return store<T>(load(x) * factor); };
    if (cut.head != cut_to.head) {
      for (int c = lane; c < columns; c += lanes) to[c] = scaled(from[c]);
      continue;
    }
    batched<IN_FLIGHT>(
        lane, lanes, cut.pieces, [&](int j) { return load_vec<VEC>(from + cut.head + j * VEC); },
        [&](int j, const Vec<T, VEC>& piece) {
          real d[VEC];
          piece.unpack(d);
#pragma unroll
          for (int k = 0; k < VEC; ++k) d[k] *= factor;
          store_vec<VEC>(to + cut.head + j * VEC, d);
        });
    for (int i = lane; i < cut.edges(); i += lanes) to[cut.edge(i)] = scaled(from[cut.edge(i)]);
  }
}
EXPORT_KERNEL(NAME(ce_scale))
