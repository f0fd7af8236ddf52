// Runs CUDA C++ kernels on the CPU, one fiber for each CUDA thread. x86-64, g++ 12 or newer, no CUDA headers.
//
//   g++ -x c++ -std=c++20 -O1 -fPIC -shared -include cuda_host_shim.h kernels.cu -o libkernels.so
//
// One block runs at a time. A fiber runs until it meets a barrier, a warp primitive or its end; which fiber is next is the
// `order` of a launch: 0, lock-step, all threads from one synchronization to the next; 1, blocks, warps and lanes in
// reverse, each warp running ahead as far as the block's barrier; 2 and more, the same in a pseudo-random order of that seed. A
// missing barrier gives other results under some of them; a kernel without atomics must give the same bits under all.
//
// A launch returns 0, or an error that shim_message() words: barriers at different places, a warp primitive whose
// mask names a lane that has exited or is not there, a deadlock, writing beyond the dynamic shared memory asked for. Dynamic
// shared memory is all NaN when a block starts. With -fsanitize=address,undefined, out-of-bounds and misaligned accesses stop
// the process.
//
// Not modelled: weak memory order, the order of atomics, inline PTX, the rounding of approximate instructions, speed.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cmath>
#include <vector>
#include <map>
#include <string>
#include <utility>
#include <algorithm>
#include <stdexcept>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#define ANDREA_HOST_SHIM 1
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __constant__ static
#define __shared__ static                 // one block at a time => static storage is per block
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

struct dim3 { unsigned x, y, z; constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {} };
struct uint3_ { unsigned x, y, z; };
#define SHIM_VEC(T, N2, N4) struct alignas(2*sizeof(T)) N2 { T x, y; }; struct alignas(4*sizeof(T)) N4 { T x, y, z, w; }; \
  static inline N2 make_##N2(T x, T y) { return {x, y}; } static inline N4 make_##N4(T x, T y, T z, T w) { return {x, y, z, w}; }
SHIM_VEC(float, float2, float4) SHIM_VEC(int, int2, int4) SHIM_VEC(unsigned, uint2, uint4)

namespace shim {
enum State { RUN, AT_BAR, AT_WARP, DONE };
struct Fiber { void* sp = nullptr; char* stack = nullptr; State st = DONE; uint3_ tid{}; int lin = 0;
  const char* site = nullptr; unsigned mask = 0; uint64_t val = 0; int pred = 0;
#if defined(__SANITIZE_ADDRESS__)
  void* fake = nullptr;
#endif
};
constexpr size_t STACK = 64 * 1024;
inline Fiber* cur = nullptr; inline void* sched_sp = nullptr;
inline dim3 g_grid, g_block; inline uint3_ g_bid{};
inline std::vector<Fiber> F; inline std::vector<char*> pool;
inline unsigned char* dyn = nullptr; inline size_t dyn_bytes = 0; inline std::string message; inline bool failed = false;
inline void (*g_entry)(void*) = nullptr; inline void* g_arg = nullptr;
inline int order = 0; inline uint64_t rng = 1, switches = 0;
inline const char* kname = "?";
[[noreturn]] inline void die(const char* fmt, const char* a = "", long b = 0, long c = 0);
// --- context switch (x86-64 SysV): saves callee-saved regs + mxcsr/x87 control word -----------
extern "C" void shim_switch(void** save_sp, void* to_sp);
__asm__(R"(
.text
.weak shim_switch
.type shim_switch,@function
shim_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  subq $8,%rsp; stmxcsr (%rsp); fnstcw 4(%rsp)
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  ldmxcsr (%rsp); fldcw 4(%rsp); addq $8,%rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
.size shim_switch,.-shim_switch
)");
#if defined(__SANITIZE_ADDRESS__)
inline void* sched_fake = nullptr; inline const void* sched_bot = nullptr; inline size_t sched_sz = 0;
#endif
inline void to_sched() { ++switches;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(cur->st == DONE ? nullptr : &cur->fake, sched_bot, sched_sz);
#endif
  Fiber* me = cur; shim_switch(&me->sp, sched_sp);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(me->fake, &sched_bot, &sched_sz);
#endif
}
// On a fiber: note what is wrong and leave it for good. In the scheduler: unwind to the launch.
inline void die(const char* fmt, const char* a, long b, long c) {
  if (!failed) { char text[600]; int n = std::snprintf(text, sizeof text, "kernel %s, block (%u,%u,%u): ", kname, g_bid.x, g_bid.y, g_bid.z);
    std::snprintf(text + n, sizeof text - n, fmt, a, b, c); message = text; failed = true; }
  if (cur) { to_sched(); std::abort(); }
  throw std::runtime_error(message); }
inline void tramp() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &sched_bot, &sched_sz);
#endif
  g_entry(g_arg); cur->st = DONE; to_sched(); std::abort(); }
inline void start(Fiber& f) {
  if (!f.stack) { f.stack = (char*)aligned_alloc(64, STACK); }
  uintptr_t top = ((uintptr_t)f.stack + STACK) & ~(uintptr_t)63;
  void** sp = (void**)top; *--sp = nullptr;            // so that rsp % 16 == 8 at function entry
  *--sp = (void*)&tramp;                               // return address of shim_switch
  for (int i = 0; i < 6; ++i) *--sp = nullptr;         // rbp rbx r12..r15
  --sp; uint32_t mx; uint16_t cw; __asm__ volatile("stmxcsr %0; fnstcw %1" : "=m"(mx), "=m"(cw));
  std::memcpy(sp, &mx, 4); std::memcpy((char*)sp + 4, &cw, 2); f.sp = sp; f.st = RUN; f.site = nullptr; }
inline void resume(Fiber& f) { cur = &f;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&sched_fake, f.stack, STACK);
#endif
  shim_switch(&sched_sp, f.sp);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(sched_fake, nullptr, nullptr);
#endif
  cur = nullptr; if (failed) throw std::runtime_error(message);
}
inline uint32_t rnd() { rng ^= rng << 13; rng ^= rng >> 7; rng ^= rng << 17; return (uint32_t)(rng >> 11); }
inline bool try_release_warps(int n, int w0, int w1) {                 // complete warp primitives whose lanes all arrived
  bool any = false;
  for (int w = w0; w < w1; ++w) for (int l = 0; l < 32 && w * 32 + l < n; ++l) {
    Fiber& f = F[w * 32 + l]; if (f.st != AT_WARP) continue; bool ok = true;
    for (int k = 0; k < 32 && ok; ++k) if (f.mask >> k & 1) {
      if (w * 32 + k >= n) { if (f.mask == 0xffffffffu) continue; die("mask names lane %s%ld beyond the block", "", k); }
      Fiber& g = F[w * 32 + k];
      if (g.st == DONE) die("warp primitive at %s: mask names lane %ld, which has exited", f.site, k);
      if (g.st != AT_WARP) ok = false;
      else if (g.site != f.site || g.mask != f.mask) ok = false; }
    if (!ok) continue;
    any = true;
    for (int k = 0; k < 32 && w * 32 + k < n; ++k) if (f.mask >> k & 1) F[w * 32 + k].st = RUN; }
  return any; }
inline void run_block(int n) {
  if ((int)F.size() < n) F.resize(n);
  for (int i = 0; i < n; ++i) { Fiber& f = F[i]; f.lin = i; f.tid = { i % g_block.x, i / g_block.x % g_block.y, i / (g_block.x * g_block.y) }; start(f); }
  const int nw = (n + 31) / 32; std::vector<int> wo(nw), lo(32);
  for (int i = 0; i < nw; ++i) wo[i] = order == 1 ? nw - 1 - i : i;
  for (int i = 0; i < 32; ++i) lo[i] = order == 1 ? 31 - i : i;
  for (;;) {
    bool ran = false; int live = 0, bar = 0; const char* site = nullptr;
    if (order >= 2) for (int i = nw - 1; i > 0; --i) std::swap(wo[i], wo[rnd() % (i + 1)]);
    if (order == 0) {                              // lock-step: every thread advances to its next sync point
      for (int i = 0; i < n; ++i) if (F[i].st == RUN) { resume(F[i]); ran = true; }
      ran |= try_release_warps(n, 0, nw);
    } else for (int w : wo) for (bool again = true; again;) {   // run-ahead: one warp until it blocks at a block barrier
      again = false; if (order >= 2) for (int i = 31; i > 0; --i) std::swap(lo[i], lo[rnd() % (i + 1)]);
      for (int l : lo) if (w * 32 + l < n && F[w * 32 + l].st == RUN) { resume(F[w * 32 + l]); ran = again = true; }
      again |= try_release_warps(n, w, w + 1); }
    for (int i = 0; i < n; ++i) if (F[i].st != DONE) { ++live; if (F[i].st == AT_BAR) ++bar; }
    if (!live) return;
    if (bar == live) {
      for (int i = 0; i < n; ++i) if (F[i].st == AT_BAR) { if (!site) site = F[i].site; else if (site != F[i].site) die("divergent __syncthreads: thread %s%ld waits elsewhere", "", i); F[i].st = RUN; }
      continue; }
    if (!ran) { for (int i = 0; i < n; ++i) if (F[i].st == AT_WARP) die("deadlock: thread waits in warp primitive %s (tid %ld)", F[i].site, i);
                die("deadlock: %s%ld of %ld live threads at __syncthreads", "", bar, live); } } }
inline std::map<std::string, void (*)(void**)>& registry() { static std::map<std::string, void (*)(void**)> r; return r; }
template <class... A, size_t... I> void unpack(void (*f)(A...), void** p, std::index_sequence<I...>) { f(*(std::decay_t<A>*)p[I]...); }
template <class... A> void unpack(void (*f)(A...), void** p) { unpack(f, p, std::index_sequence_for<A...>{}); }
struct Reg { Reg(const char* n, void (*c)(void**)) { registry()[n] = c; } };
// --- warp exchange -----------------------------------------------------------------------------
template <class T> inline T exchange(const char* site, unsigned mask, T v, int srcLane, int width, bool keep_if_out) {
  static_assert(sizeof(T) <= 8, "shuffle of >8 byte type");
  int lane = cur->lin & 31; if (!(mask >> lane & 1)) die("%s: calling lane %ld not in mask", site, lane);
  std::memcpy(&cur->val, &v, sizeof(T)); cur->site = site; cur->mask = mask; cur->st = AT_WARP; to_sched();
  int base = lane & ~(width - 1); (void)base;
  T out = v; if (!keep_if_out) { int s = (cur->lin & ~31) + srcLane; if (!(mask >> srcLane & 1)) die("%s: reads lane %ld, not in mask", site, srcLane);
    std::memcpy(&out, &F[s].val, sizeof(T)); }
  // second rendezvous: nobody may overwrite val before all have read it
  cur->site = site + 1; cur->st = AT_WARP; to_sched(); return out; }
inline unsigned ballot(const char* site, unsigned mask, int pred) {
  int lane = cur->lin & 31; if (!(mask >> lane & 1)) die("%s: calling lane %ld not in mask", site, lane);
  cur->pred = !!pred; cur->site = site; cur->mask = mask; cur->st = AT_WARP; to_sched();
  unsigned r = 0; int b = cur->lin & ~31; for (int k = 0; k < 32; ++k) if ((mask >> k & 1) && b + k < (int)(g_block.x * g_block.y * g_block.z)) r |= (unsigned)F[b + k].pred << k;
  cur->site = site + 1; cur->st = AT_WARP; to_sched(); return r; }
inline void barrier(const char* site) { cur->site = site; cur->st = AT_BAR; to_sched(); }
// The memory after what a block asked for keeps this number, or somebody wrote there (the address sanitizer watches it itself).
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t GUARD = 0;
#else
constexpr size_t GUARD = 64;
#endif
inline void run_one(long b, unsigned gx, unsigned gy, int threads) {
  std::memset(dyn, 0xFF, dyn_bytes); std::memset(dyn + dyn_bytes, 0xA5, GUARD);
  g_bid = { (unsigned)(b % gx), (unsigned)(b / gx % gy), (unsigned)(b / ((long)gx * gy)) }; run_block(threads);
  for (size_t i = 0; i < GUARD; ++i) if (dyn[dyn_bytes + i] != 0xA5) die("wrote %s%ld bytes beyond the dynamic shared memory", "", (long)i + 1); }
}  // namespace shim
extern "C" __attribute__((visibility("default"))) const char* shim_message() { return shim::message.c_str(); }
// blocks: run only these n_blocks (linear indices), or all where it is null. 0: done, 1: no such kernel, 2: a shape that no GPU has, 3: an error in the kernel.
extern "C" __attribute__((visibility("default"))) int shim_launch(const char* name, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
    unsigned bz, unsigned smem, void** args, int order, const long* blocks, long n_blocks) {
  using namespace shim; auto it = registry().find(name); if (it == registry().end()) return 1;
  long n = (long)bx * by * bz; if (n < 1 || n > 1024 || gx < 1 || gx > 0x7fffffffu || gy < 1 || gz < 1 || gy > 65535 || gz > 65535 || smem > 232448) return 2;
  kname = it->first.c_str(); g_grid = dim3(gx, gy, gz); g_block = dim3(bx, by, bz); shim::order = order; rng = 0x9E3779B97F4A7C15ull ^ (uint64_t)(order + 1) * 0xD1B54A32D192ED03ull;
  dyn_bytes = smem; if (posix_memalign((void**)&dyn, 16, smem + GUARD + !(smem + GUARD))) return 2;
  struct Call { void (*c)(void**); void** a; } call{it->second, args};
  g_entry = [](void* p) { Call* c = (Call*)p; c->c(c->a); }; g_arg = &call; cur = nullptr; failed = false; message.clear();
  long nb = blocks ? n_blocks : (long)gx * gy * gz; int status = 0;
  try { for (long i = 0; i < nb; ++i) { long k = order == 1 ? nb - 1 - i : i; run_one(blocks ? blocks[k] : k, gx, gy, (int)n); } }
  catch (const std::runtime_error&) { status = 3; }
  std::free(dyn); return status; }
#define SHIM_STR2(x) #x
#define SHIM_STR(x) SHIM_STR2(x)
#define SHIM_SITE(op) (op "@" __FILE__ ":" SHIM_STR(__LINE__))
#define threadIdx (shim::cur->tid)
#define blockIdx (shim::g_bid)
#define blockDim (shim::g_block)
#define gridDim (shim::g_grid)
#define warpSize 32
#define __syncthreads() shim::barrier(SHIM_SITE("__syncthreads"))
#define __syncwarp(...) ((void)shim::ballot(SHIM_SITE("__syncwarp"), (0xffffffffu __VA_OPT__(& (__VA_ARGS__))), 0))
#define __shfl_xor_sync(m, v, o, ...) shim::exchange(SHIM_SITE("shfl_xor"), (m), (v), ((shim::cur->lin & 31) ^ (o)), 32, false)
#define __shfl_sync(m, v, s, ...) shim::exchange(SHIM_SITE("shfl"), (m), (v), ((s) & 31), 32, false)
#define __shfl_down_sync(m, v, o, ...) shim::exchange(SHIM_SITE("shfl_down"), (m), (v), std::min((shim::cur->lin & 31) + (int)(o), 31), 32, (shim::cur->lin & 31) + (int)(o) > 31)
#define __shfl_up_sync(m, v, o, ...) shim::exchange(SHIM_SITE("shfl_up"), (m), (v), std::max((shim::cur->lin & 31) - (int)(o), 0), 32, (shim::cur->lin & 31) < (int)(o))
#define __ballot_sync(m, p) shim::ballot(SHIM_SITE("ballot"), (m), (p))
#define __any_sync(m, p) (shim::ballot(SHIM_SITE("any"), (m), (p)) != 0u)
#define __all_sync(m, p) (shim::ballot(SHIM_SITE("all"), (m), (p)) == (unsigned)(m))
#define DYN_SHARED(type, name) type* name = reinterpret_cast<type*>(shim::dyn)
#define EXPORT_KERNEL(name) SHIM_EXPORT(name)
#define SHIM_EXPORT(name) static shim::Reg shim_reg_##name(#name, [](void** a) { shim::unpack(&name, a); });
static inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
#define __expf(x) std::exp((float)(x))
static inline float __fdividef(float a, float b) { return a / b; }
template <class T> static inline T __ldg(const T* p) { return *p; }
template <class T> static inline T __ldcs(const T* p) { return *p; }
template <class T> static inline void __stcs(T* p, T v) { *p = v; }
static inline float __uint_as_float(unsigned u) { float f; std::memcpy(&f, &u, 4); return f; }
static inline unsigned __float_as_uint(float f) { unsigned u; std::memcpy(&u, &f, 4); return u; }
template <class T> static inline T atomicAdd(T* p, T v) { T o = *p; *p = o + v; return o; }
static inline unsigned atomicInc(unsigned* p, unsigned m) { unsigned o = *p; *p = o >= m ? 0 : o + 1; return o; }
static inline void __threadfence() {}
