// Stage 2 of every gradient of weights and biases: out[s, c] = Σ_p partial[s, p, c], in a fixed order.
//
// Bytes: segments · parts · columns · 4 read. Threads: a block is 32 columns by 32 rows, so that a warp reads 128 consecutive
// bytes; thread (x, y) adds the parts y, y + 32, …, and the first warp adds the 32 sums of each column. The padding of
// shared memory by one keeps its columns in different banks.

constexpr int SIDE = 32;

extern "C" __global__ void __launch_bounds__(SIDE * SIDE) NAME(reduce_parts)(
    const real* partial, real* out, i64 segments, int parts, int columns) {
  __shared__ real of_thread[SIDE][SIDE + 1];
  const int tiles = (columns + SIDE - 1) / SIDE, x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
  for (i64 block = blockIdx.x; block < segments * tiles; block += gridDim.x) {
    const i64 segment = block / tiles;
    const int c = static_cast<int>(block % tiles) * SIDE + x;
    const real* from = partial + segment * parts * columns + c;
    real total = 0;
    if (c < columns)
      batched<8>(
          y, SIDE, parts, [&](int p) { return from[static_cast<i64>(p) * columns]; }, [&](int, real v) { total += v; });
    of_thread[y][x] = total;
    __syncthreads();
    if (y == 0 && c < columns) {
      total = 0;
#pragma unroll
      for (int k = 0; k < SIDE; ++k) total += of_thread[k][x];
      out[segment * columns + c] = total;
    }
    __syncthreads();
  }
}
EXPORT_KERNEL(NAME(reduce_parts))
