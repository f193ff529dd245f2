// SPDX-License-Identifier: Apache-2.0
// Sampling one code per row of 2,048 logits in bfloat16: the launcher and the contract are in code_draw.py.
// tests/conformance/test_code_draw_on_cpu.py runs this file on a CPU.
//
// A thread has 8 logits. A reduction over a program needs one barrier: every thread adds up what the warps stored.
// Those of integers over a warp are one instruction each.

#include "warps.cuh"
#include "overlap.cuh"
#include "bfloat16.cuh"

constexpr int WARPS = 8, THREADS = 32 * WARPS, OWN = 8, VOCAB = THREADS * OWN;
constexpr int RANK_BITS = 16, STEP_BITS = 2, STEPS = RANK_BITS / STEP_BITS, CHOICES = (1 << STEP_BITS) - 1;
constexpr int FIELD = 10;  // bits of a warp's count, at most 256

// Everything that needs the hardware; a test replaces it by functions for a CPU.
#ifdef ON_CPU
#include "code_draw_on_cpu.hpp"
#else
__device__ __forceinline__ unsigned warp_sum(unsigned value) { return __reduce_add_sync(0xFFFFFFFF, value); }
__device__ __forceinline__ unsigned warp_max(unsigned value) { return __reduce_max_sync(0xFFFFFFFF, value); }
__device__ __forceinline__ unsigned warp_min(unsigned value) { return __reduce_min_sync(0xFFFFFFFF, value); }
__device__ __forceinline__ float divide(float a, float b) { return __fdiv_rn(a, b); }
__device__ __forceinline__ float power_of_2(float value) {
  float made;
  asm("ex2.approx.f32 %0, %1;" : "=f"(made) : "f"(value));
  return made;
}
#define SHARED __shared__
#endif

// Unsigned integers in the order of the values; NaN, which is no maximum, is below all others.
__device__ __forceinline__ unsigned ordered(float value) {
  const unsigned bits = __float_as_uint(value);
  if (value != value) return 0;
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// The first word of Philox 4x32 with 10 rounds.
__device__ __forceinline__ unsigned philox(unsigned c0, unsigned c1, unsigned c2, unsigned c3, unsigned k0, unsigned k1) {
#pragma unroll
  for (int round = 0; round < 10; round++) {
    const unsigned a = c0, b = c2;
    c0 = __umulhi(0xCD9E8D57u, b) ^ c1 ^ k0, c2 = __umulhi(0xD2511F53u, a) ^ c3 ^ k1;
    c1 = 0xCD9E8D57u * b, c3 = 0xD2511F53u * a;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return c0;
}

// What the warps of a program store for each other; two of each, so that one barrier separates two reductions.
struct Exchange {
  unsigned counts[2][WARPS], best[WARPS], token[WARPS];
  float masses[2][CHOICES][WARPS], largest[WARPS];
};

// The sum over the program, in the order of Triton's reductions.
__device__ __forceinline__ float program_sum(const float *masses) {
  return ((masses[0] + masses[4]) + (masses[2] + masses[6])) + ((masses[1] + masses[5]) + (masses[3] + masses[7]));
}
__device__ __forceinline__ float warp_mass(const unsigned (&rank)[OWN], const float (&mass)[OWN], unsigned least) {
  float sum = rank[0] >= least ? mass[0] : 0.f;
#pragma unroll
  for (int i = 1; i < OWN; i++) sum += rank[i] >= least ? mass[i] : 0.f;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) sum += shuffle_xor(sum, offset);
  return sum;
}

// The count-th largest rank, by bisection from the highest bits down.
__device__ __forceinline__ unsigned rank_of_largest(
    Exchange &shared, const unsigned (&rank)[OWN], unsigned count, int warp, int lane) {
  unsigned found = 0;
#pragma unroll
  for (int step = 0; step < STEPS; step++) {
    const int shift = RANK_BITS - STEP_BITS * (step + 1);
    unsigned reached = 0;  // per choice: ranks that are at least found + choice
#pragma unroll
    for (int i = 0; i < OWN; i++)
#pragma unroll
      for (int choice = 1; choice <= CHOICES; choice++)
        reached += rank[i] >= found + (choice << shift) ? 1u << FIELD * (choice - 1) : 0u;
    reached = warp_sum(reached);
    if (lane == 0) shared.counts[step % 2][warp] = reached;
    sync_program();
    unsigned outer = 0, middle = 0;  // the second choice's field is added up on its own, so that none overflows
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
      const unsigned counts = shared.counts[step % 2][i];
      outer += counts & (0x3FFu | 0x3FFu << 2 * FIELD), middle += counts >> FIELD & 0x3FFu;
    }
    const unsigned next = (outer >> 2 * FIELD) >= count ? 3 : middle >= count ? 2 : (outer & 0xFFFu) >= count ? 1 : 0;
    found += next << shift;
  }
  return found;
}

// The largest threshold such that the ranks at or above it sum to the wanted mass.
__device__ __forceinline__ unsigned rank_of_mass(
    Exchange &shared, const unsigned (&rank)[OWN], const float (&mass)[OWN], float wanted, int warp, int lane) {
  unsigned found = 0;
#pragma unroll 1
  for (int step = 0; step < STEPS; step++) {
    const int shift = RANK_BITS - STEP_BITS * (step + 1);
#pragma unroll
    for (int choice = 1; choice <= CHOICES; choice++) {
      const float sum = warp_mass(rank, mass, found + (choice << shift));
      if (lane == 0) shared.masses[step % 2][choice - 1][warp] = sum;
    }
    sync_program();
    const float(&masses)[CHOICES][WARPS] = shared.masses[step % 2];
    unsigned next = 0;
#pragma unroll
    for (int choice = 1; choice <= CHOICES; choice++)
      if (program_sum(masses[choice - 1]) >= wanted) next = choice;
    found += next << shift;
  }
  return found;
}

extern "C" __global__ void __launch_bounds__(THREADS) code_draw(
    const bits16 *logits, const long long *slots, const float *settings, const long long *key,
    const long long *segment, const long long *frame, long long *codes, int logits_row, int book) {
  SHARED Exchange shared;
  const int row = blockIdx.x, thread = threadIdx.x, warp = thread / 32, lane = thread % 32, first = thread * OWN;
  const long long slot = slots[row];
  const float temperature = settings[4 * slot], top_p = settings[4 * slot + 2];
  const int top_k = (int)settings[4 * slot + 1];
  const bool greedy = temperature == 0.f;
  float noise[OWN];
#pragma unroll
  for (int i = 0; i < OWN; i++) {
    noise[i] = 0.f;
    if (greedy) continue;
    const unsigned word = philox(first + i, book, (unsigned)frame[slot], (unsigned)segment[slot],
                                 (unsigned)key[2 * slot], (unsigned)key[2 * slot + 1]);
    const float uniform = ((float)(word >> 9) + 0.5f) * (1.f / 8388608.f);
    noise[i] = -logf(-logf(uniform));
  }
  const unsigned count = top_k == 0 ? VOCAB : top_k < 1 ? 1 : top_k > VOCAB ? VOCAB : top_k;
  const float divisor = greedy ? 1.f : temperature;
  wait_for_previous();
  start_next();

  const uint4 loaded = load_16_bytes(logits + (long long)row * logits_row + first);
  const unsigned pairs[OWN / 2] = {loaded.x, loaded.y, loaded.z, loaded.w};
  unsigned rank[OWN];
#pragma unroll
  for (int i = 0; i < OWN; i++) {
    unsigned bits = i % 2 ? pairs[i / 2] >> 16 : pairs[i / 2] & 0xFFFFu;
    if (bits == 0x8000u) bits = 0;  // -0.0 and 0.0 compare equal
    rank[i] = bits >> 15 ? bits ^ 0xFFFFu : bits | 0x8000u;
  }
  unsigned threshold = rank_of_largest(shared, rank, count, warp, lane);
  float score[OWN];
#pragma unroll
  for (int i = 0; i < OWN; i++) {
    score[i] = divide(i % 2 ? high(pairs[i / 2]) : low(pairs[i / 2]), divisor);
    if (score[i] == 0.f) score[i] = 0.f;
  }
  if (top_p < 1.f) {
    float most = score[0];
    unsigned highest = rank[0];
#pragma unroll
    for (int i = 1; i < OWN; i++) most = fmaxf(most, score[i]), highest = rank[i] > highest ? rank[i] : highest;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) most = fmaxf(most, shuffle_xor(most, offset));
    highest = warp_max(highest);
    if (lane == 0) shared.largest[warp] = most, shared.best[warp] = highest;
    sync_program();
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
      most = fmaxf(most, shared.largest[i]);
      highest = shared.best[i] > highest ? shared.best[i] : highest;
    }
    float mass[OWN];
#pragma unroll
    for (int i = 0; i < OWN; i++)
      mass[i] = rank[i] >= threshold ? power_of_2((score[i] - most) * 1.4426950408889634f) : 0.f;
    const float all = warp_mass(rank, mass, 0);
    if (lane == 0) shared.masses[1][0][warp] = all;
    sync_program();
    const float wanted = top_p * program_sum(shared.masses[1][0]);
    const unsigned by_mass = rank_of_mass(shared, rank, mass, wanted, warp, lane);
    threshold = by_mass > threshold ? by_mass : threshold;
    threshold = threshold < highest ? threshold : highest;
    sync_program();
  }

  unsigned best = 0, token = VOCAB - 1;
#pragma unroll
  for (int i = OWN - 1; i >= 0; i--) {
    const unsigned value = ordered(rank[i] >= threshold ? score[i] + noise[i] : __uint_as_float(0xFF800000u));
    if (value > 0 && value >= best) best = value, token = first + i;
  }
  const unsigned best_of_warp = warp_max(best);
  token = warp_min(best == best_of_warp ? token : VOCAB);
  if (lane == 0) shared.best[warp] = best_of_warp, shared.token[warp] = token;
  sync_program();
  if (thread > 0) return;
  best = best_of_warp;
#pragma unroll
  for (int i = 1; i < WARPS; i++)
    if (shared.best[i] > best) best = shared.best[i], token = shared.token[i];
  codes[row] = token;
}
