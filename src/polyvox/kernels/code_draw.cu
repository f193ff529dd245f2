// SPDX-License-Identifier: Apache-2.0
// Sampling one code per row of logits in bfloat16: the launcher and the contract are in code_draw.py.
// tests/conformance/test_code_draw_on_cpu.py runs this file on a CPU.
//
// A thread has the logits of 8 codes; with the rules of code 0 the last thread also has that of the end of speech, the
// only other id that may be sampled. A reduction over a program needs one barrier: every thread adds up what the warps
// stored. Those of integers over a warp are one instruction each. All threads know the code in the end, so they can look
// up its embedding.

#include "warps.cuh"
#include "overlap.cuh"
#include "bfloat16.cuh"

constexpr int WARPS = 8, THREADS = 32 * WARPS, TOKENS = 8, CODES = THREADS * TOKENS;
constexpr int HALF_BITS = 16, STEP_BITS = 2, STEPS = HALF_BITS / STEP_BITS, CHOICES = (1 << STEP_BITS) - 1;
constexpr int FIELD = 10;  // bits of a warp's count, at most 257
// From here on more programs than run at a time on an H200 (four on each of 132 multiprocessors). Noise for all tokens,
// generated before the wait, would delay those after the first; so it is generated after the filters, for the tokens that
// are kept. Its bits are the same.
constexpr int MANY_ROWS = 529;

// Everything that needs the hardware; a test replaces it by functions for a CPU.
#ifdef ON_CPU
#include "code_draw_on_cpu.hpp"
#else
__device__ __forceinline__ unsigned warp_sum(unsigned value) { return __reduce_add_sync(0xFFFFFFFF, value); }
__device__ __forceinline__ unsigned warp_max(unsigned value) { return __reduce_max_sync(0xFFFFFFFF, value); }
__device__ __forceinline__ unsigned warp_min(unsigned value) { return __reduce_min_sync(0xFFFFFFFF, value); }
__device__ __forceinline__ float divide(float a, float b) { return __fdiv_rn(a, b); }
__device__ __forceinline__ float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ __forceinline__ float approximate_reciprocal(float value) {
  float made;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(made) : "f"(value));
  return made;
}
// Product and sum with a rounding each: the compiler must not fuse them.
__device__ __forceinline__ float multiply_rounded(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ float add_rounded(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ float load_value(const bits16 *from) {  // not through the L1 cache
  bits16 value;
  asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(value) : "l"(from) : "memory");
  return to_float(value);
}
__device__ __forceinline__ float power_of_2(float value) {
  float made;
  asm("ex2.approx.f32 %0, %1;" : "=f"(made) : "f"(value));
  return made;
}
__device__ __forceinline__ bool has_many_rows() { return gridDim.x >= MANY_ROWS; }
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
  unsigned highest[2][WARPS], lowest[WARPS];
};

// The sum over the program, in the order of Triton's reductions.
__device__ __forceinline__ float program_sum(const float *masses) {
  return ((masses[0] + masses[4]) + (masses[2] + masses[6])) + ((masses[1] + masses[5]) + (masses[3] + masses[7]));
}
template <int OWN>
__device__ __forceinline__ float warp_mass(const unsigned (&rank)[OWN], const float (&mass)[OWN], unsigned threshold) {
  float sum = rank[0] >= threshold ? mass[0] : 0.f;
#pragma unroll
  for (int i = 1; i < OWN; i++) sum += rank[i] >= threshold ? mass[i] : 0.f;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) sum += shuffle_xor(sum, offset);
  return sum;
}

// IEEE division of many values by one: the instructions of __fdiv_rn, without its branches, and with the inverse computed
// once. Exact where nothing overflows or is subnormal: for divisors of 2^-10 to 2^10 and for zeros and magnitudes of
// 2^-40 to 2^40, also after the other division, a product or a sum of two of them. Divisors just below a power of 2
// would need a better inverse (Markstein: Computation of elementary functions on the IBM RISC System/6000 processor,
// 1990): those with one of the 16 largest significands are divided otherwise.
struct Divisor {
  float value, inverse;
};
__device__ __forceinline__ Divisor divisor_of(float value) {
  const float inverse = approximate_reciprocal(value);
  return {value, fused(inverse, fused(-value, inverse, 1.f), inverse)};
}
__device__ __forceinline__ bool allows_fast_division(const Divisor &divisor) {
  const bool below_power_of_2 = (__float_as_uint(divisor.value) & 0x7FFFFFu) >= 0x7FFFF0u;
  return divisor.value >= 1.f / 1024.f && divisor.value <= 1024.f && !below_power_of_2;
}
struct Magnitudes {  // the bits of the largest, and of the smallest that is not zero, less one
  unsigned largest = 0, smallest = ~0u;
  __device__ __forceinline__ void add(float value) {
    const unsigned bits = __float_as_uint(value) & 0x7FFFFFFFu, less = bits - 1;
    largest = bits > largest ? bits : largest, smallest = less < smallest ? less : smallest;
  }
  __device__ __forceinline__ bool allow_fast_division() const {
    return largest <= (127u + 40) << 23 && smallest >= ((127u - 40) << 23) - 1;
  }
};
template <bool FAST>
__device__ __forceinline__ float quotient(float value, const Divisor &divisor) {
  if (!FAST) return divide(value, divisor.value);
  const float about = multiply_rounded(value, divisor.inverse);
  return fused(divisor.inverse, fused(-divisor.value, about, value), about);
}

struct Bisected {
  // A threshold: the upper 16 bits of the count-th largest rank, or fewer of them where exactly `count` ranks reach it;
  // its other bits are zero.
  unsigned found;
  unsigned above;     // the number of ranks with larger upper bits; undefined if `reaching` is `count`
  unsigned reaching;  // the number of ranks that are at least `found`
};

// The upper 16 bits of the count-th largest rank of RANK_BITS bits, by bisection from the highest bits down.
template <int RANK_BITS, int OWN>
__device__ __forceinline__ Bisected bisect_upper_half(
    Exchange &shared, const unsigned (&rank)[OWN], unsigned count, int warp, int lane) {
  Bisected made = {0, 0, ~0u};
#pragma unroll
  for (int step = 0; step < STEPS; step++) {
    const int shift = RANK_BITS - STEP_BITS * (step + 1);
    unsigned reached = 0;  // per choice: ranks that are at least found + choice
#pragma unroll
    for (int i = 0; i < OWN; i++)
#pragma unroll
      for (unsigned choice = 1; choice <= CHOICES; choice++)
        reached += rank[i] >= made.found + (choice << shift) ? 1u << FIELD * (choice - 1) : 0u;
    reached = warp_sum(reached);
    if (lane == 0) shared.counts[step % 2][warp] = reached;
    sync_program();
    unsigned outer = 0, middle = 0;  // the second choice's field is added up on its own, so that none overflows
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
      const unsigned counts = shared.counts[step % 2][i];
      outer += counts & (0x3FFu | 0x3FFu << 2 * FIELD), middle += counts >> FIELD & 0x3FFu;
    }
    const unsigned one = outer & 0xFFFu, three = outer >> 2 * FIELD;
    const unsigned next = three >= count ? 3 : middle >= count ? 2 : one >= count ? 1 : 0;
    made.found += next << shift;
    made.above = next == 3 ? made.above : next == 2 ? three : next == 1 ? middle : one;
    made.reaching = next == 3 ? three : next == 2 ? middle : next == 1 ? one : made.reaching;
    if (made.reaching == count) break;  // the ranks that reach it are the ones to keep
  }
  return made;
}

// A threshold that the count largest of the ranks of 32 bits reach, and those equal to the last of them; count is at
// most the number of ranks above zero.
//
// Few scores share their upper half: a rule and the temperature map a bfloat16 to one float32, and quotients of
// adjacent bfloat16 are about as far apart as bfloat16 are. So the values below the upper half are visited one by one.
template <int OWN>
__device__ __forceinline__ unsigned threshold_of_largest(
    Exchange &shared, const unsigned (&rank)[OWN], unsigned count, int warp, int lane) {
  const Bisected half = bisect_upper_half<2 * HALF_BITS>(shared, rank, count, warp, lane);
  if (half.reaching == count) return half.found;
  unsigned wanted = count - half.above, highest = 0, lowest = ~0u;
#pragma unroll
  for (int i = 0; i < OWN; i++)
    if (rank[i] >> HALF_BITS == half.found >> HALF_BITS) {
      highest = rank[i] > highest ? rank[i] : highest;
      lowest = rank[i] < lowest ? rank[i] : lowest;
    }
  highest = warp_max(highest), lowest = warp_min(lowest);
  if (lane == 0) shared.highest[0][warp] = highest, shared.lowest[warp] = lowest;
  sync_program();
#pragma unroll
  for (int i = 0; i < WARPS; i++) {
    highest = shared.highest[0][i] > highest ? shared.highest[0][i] : highest;
    lowest = shared.lowest[i] < lowest ? shared.lowest[i] : lowest;
  }
#pragma unroll 1
  for (int buffer = 1; highest != lowest; buffer ^= 1) {
    unsigned equal = 0, next = 0;
#pragma unroll
    for (int i = 0; i < OWN; i++) {
      equal += rank[i] == highest;
      if (rank[i] < highest && rank[i] >= half.found && rank[i] > next) next = rank[i];
    }
    equal = warp_sum(equal), next = warp_max(next);
    if (lane == 0) shared.counts[buffer][warp] = equal, shared.highest[buffer][warp] = next;
    sync_program();
    equal = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
      equal += shared.counts[buffer][i];
      next = shared.highest[buffer][i] > next ? shared.highest[buffer][i] : next;
    }
    if (equal >= wanted) break;
    wanted -= equal, highest = next;
  }
  return highest;
}

// The largest threshold such that the ranks at or above it sum to the wanted mass.
template <int RANK_BITS, int OWN>
__device__ __forceinline__ unsigned rank_of_mass(
    Exchange &shared, const unsigned (&rank)[OWN], const float (&mass)[OWN], float wanted, int warp, int lane) {
  unsigned found = 0;
#pragma unroll 1
  for (int step = 0; step < RANK_BITS / STEP_BITS; step++) {
    const int shift = RANK_BITS - STEP_BITS * (step + 1);
#pragma unroll
    for (unsigned choice = 1; choice <= CHOICES; choice++) {
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

// The embedding of the code, as the input of the next pass before its norm (pre_norm.py): [rows, SIZE] and squares
// [rows, WARPS].
constexpr int COLUMNS = 4, SIZE = THREADS * COLUMNS;  // of a thread, and of a row
struct Embedding {
  const bits16 *table, *gain;
  bits16 *rows, *gained;
  float *squares;

  __device__ __forceinline__ void look_up(unsigned code, uint2 gains, int row, int warp, int lane) const {
    const int column = threadIdx.x * COLUMNS;
    const uint2 found = load_8_bytes(table + (long long)code * SIZE + column);
    const float value[COLUMNS] = {low(found.x), high(found.x), low(found.y), high(found.y)};
    const float gain[COLUMNS] = {low(gains.x), high(gains.x), low(gains.y), high(gains.y)};
    const long long at = (long long)row * SIZE + column;
    *(uint2 *)(rows + at) = found;
    *(uint2 *)(gained + at) =
        make_uint2(pack(gain[0] * value[0], gain[1] * value[1]), pack(gain[2] * value[2], gain[3] * value[3]));
    float square = value[0] * value[0] + value[1] * value[1] + (value[2] * value[2] + value[3] * value[3]);
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) square += shuffle_xor(square, offset);
    if (lane == 0) squares[row * WARPS + warp] = square;
  }
};

// The rules of code 0 (FirstCodeRules in sampler.py): the ids from CODES on are not codes; `end` is one of them.
struct Rules {
  const unsigned char *seen;
  const long long *min_frames, *soft_limit;
  int seen_row, end;
  float pressure;
};

// Replaces the logits of a thread by its scores.
template <bool FAST>
__device__ __forceinline__ void apply_rules(
    float (&score)[TOKENS + 1], const bool (&was_seen)[TOKENS + 1], float raised, const Divisor &factor,
    const Divisor &temperature) {
#pragma unroll
  for (int i = 0; i <= TOKENS; i++) {
    const float divided = quotient<FAST>(score[i], factor), multiplied = multiply_rounded(score[i], factor.value);
    score[i] = !was_seen[i] ? score[i] : score[i] > 0.f ? divided : multiplied;
    if (i == TOKENS) score[i] = add_rounded(score[i], raised);
    score[i] = quotient<FAST>(score[i], temperature);
  }
}

template <bool RULES, bool EMBED>
__device__ __forceinline__ void draw(
    const bits16 *logits, const long long *slots, const float *settings, const long long *key,
    const long long *segment, const long long *frame, long long *codes, int logits_row, int codes_row, int book,
    const Rules &rules, const Embedding &embedding) {
  constexpr int OWN = TOKENS + RULES, RANK_BITS = RULES ? 2 * HALF_BITS : HALF_BITS;
  SHARED Exchange shared;
  const int row = blockIdx.x, thread = threadIdx.x, warp = thread / 32, lane = thread % 32, first = thread * TOKENS;
  const bool has_end = RULES && thread == THREADS - 1;  // the last thread, so that codes win ties
  const long long slot = slots[row];
  const float temperature = settings[4 * slot], top_p = settings[4 * slot + 2];
  const int top_k = (int)settings[4 * slot + 1];
  const bool greedy = temperature == 0.f;
  const auto noise_of = [&](int i) {
    const unsigned word = philox(i < TOKENS ? first + i : rules.end, book, (unsigned)frame[slot], (unsigned)segment[slot],
                                 (unsigned)key[2 * slot], (unsigned)key[2 * slot + 1]);
    const float uniform = ((float)(word >> 9) + 0.5f) * (1.f / 8388608.f);
    return -logf(-logf(uniform));
  };
  const bool is_noise_late = has_many_rows();
  float noise[OWN];
#pragma unroll
  for (int i = 0; i < OWN; i++)
    noise[i] = greedy || is_noise_late || (i == TOKENS && !has_end) ? 0.f : noise_of(i);
  const unsigned count = top_k == 0 ? CODES : top_k < 1 ? 1 : top_k > CODES ? CODES : top_k;
  const float divisor = greedy ? 1.f : temperature;
  // Read before the wait: what the last frame step wrote (seen, frame), or what was written when the stream started.
  // This frame step began with gathers of PyTorch and launches that wait, and all earlier launches ended before those.
  // Without the L1 cache, because these bytes change from frame to frame.
  Divisor temperature_of_row, factor;
  Magnitudes magnitudes;
  float raised = 0.f;
  bool end_allowed = false, was_seen[TOKENS + 1], fast_divisors = false;
  if constexpr (RULES) {
    const unsigned char *seen_by_id = rules.seen + slot * rules.seen_row;
    const long long now = frame[slot], overtime = now - rules.soft_limit[slot];
    const uint2 seen = load_8_bytes((const bits16 *)(seen_by_id + first));
#pragma unroll
    for (int i = 0; i < TOKENS; i++) was_seen[i] = (i < 4 ? seen.x : seen.y) >> 8 * (i % 4) & 0xFFu;
    was_seen[TOKENS] = has_end && seen_by_id[rules.end];
    if (has_end) {
      end_allowed = now >= rules.min_frames[slot];
      raised = multiply_rounded(overtime > 0 ? (float)overtime : 0.f, rules.pressure);
    }
    temperature_of_row = divisor_of(divisor), factor = divisor_of(settings[4 * slot + 3]);
    fast_divisors = allows_fast_division(temperature_of_row) && allows_fast_division(factor);
    magnitudes.add(raised);
  }
  uint2 gains;
  if constexpr (EMBED) gains = *(const uint2 *)(embedding.gain + thread * COLUMNS);
  wait_for_previous();
  start_next();

  const bits16 *own_logits = logits + (long long)row * logits_row;
  const uint4 loaded = load_16_bytes(own_logits + first);
  const unsigned pairs[TOKENS / 2] = {loaded.x, loaded.y, loaded.z, loaded.w};
  unsigned rank[OWN], threshold = 0;
  float score[OWN];
  if constexpr (RULES) {
    score[TOKENS] = end_allowed ? load_value(own_logits + rules.end) : 0.f;
#pragma unroll
    for (int i = 0; i < TOKENS; i++) score[i] = i % 2 ? high(pairs[i / 2]) : low(pairs[i / 2]);
#pragma unroll
    for (int i = 0; i < OWN; i++) magnitudes.add(score[i]);
    if (fast_divisors && magnitudes.allow_fast_division())
      apply_rules<true>(score, was_seen, raised, factor, temperature_of_row);
    else
      apply_rules<false>(score, was_seen, raised, factor, temperature_of_row);
#pragma unroll
    for (int i = 0; i < OWN; i++) {
      if (score[i] == 0.f) score[i] = 0.f;  // -0.0 and 0.0 compare equal
      const unsigned bits = __float_as_uint(score[i]);
      rank[i] = bits >> 31 ? ~bits : bits | 0x80000000u;
      // Below all others: -inf instead would change a threshold only where all are kept.
      if (i == TOKENS && !end_allowed) score[i] = __uint_as_float(0xFF800000u), rank[i] = 0;
    }
    // Greedy rows need no filter: it keeps the best. Where top_k is more than the codes, it keeps all that are not -inf.
    if (!greedy && top_k != 0 && top_k <= CODES) threshold = threshold_of_largest(shared, rank, count, warp, lane);
  } else {
#pragma unroll
    for (int i = 0; i < OWN; i++) {
      unsigned bits = i % 2 ? pairs[i / 2] >> 16 : pairs[i / 2] & 0xFFFFu;
      if (bits == 0x8000u) bits = 0;  // -0.0 and 0.0 compare equal
      rank[i] = bits >> 15 ? bits ^ 0xFFFFu : bits | 0x8000u;
    }
    threshold = bisect_upper_half<RANK_BITS>(shared, rank, count, warp, lane).found;
#pragma unroll
    for (int i = 0; i < OWN; i++) {
      score[i] = divide(i % 2 ? high(pairs[i / 2]) : low(pairs[i / 2]), divisor);
      if (score[i] == 0.f) score[i] = 0.f;
    }
  }
  if (top_p < 1.f && !(RULES && greedy)) {
    float maximum = score[0];
    unsigned highest = rank[0];
#pragma unroll
    for (int i = 1; i < OWN; i++) maximum = fmaxf(maximum, score[i]), highest = rank[i] > highest ? rank[i] : highest;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) maximum = fmaxf(maximum, shuffle_xor(maximum, offset));
    highest = warp_max(highest);
    if (lane == 0) shared.largest[warp] = maximum, shared.best[warp] = highest;
    sync_program();
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
      maximum = fmaxf(maximum, shared.largest[i]);
      highest = shared.best[i] > highest ? shared.best[i] : highest;
    }
    float mass[OWN];
#pragma unroll
    for (int i = 0; i < OWN; i++)
      mass[i] = rank[i] >= threshold ? power_of_2((score[i] - maximum) * 1.4426950408889634f) : 0.f;
    const float all = warp_mass(rank, mass, 0);
    if (lane == 0) shared.masses[1][0][warp] = all;
    sync_program();
    const float wanted = top_p * program_sum(shared.masses[1][0]);
    const unsigned by_mass = rank_of_mass<RANK_BITS>(shared, rank, mass, wanted, warp, lane);
    threshold = by_mass > threshold ? by_mass : threshold;
    threshold = threshold < highest ? threshold : highest;
    sync_program();
  }

  if (is_noise_late && !greedy) {  // for the kept tokens, which are few unless top-k is off
    unsigned kept = 0;
#pragma unroll
    for (int i = 0; i < OWN; i++) kept |= rank[i] >= threshold && (i < TOKENS || has_end) ? 1u << i : 0u;
    while (kept) {
      const int next = __ffs(kept) - 1;
      const float made = noise_of(next);
#pragma unroll
      for (int i = 0; i < OWN; i++) noise[i] = i == next ? made : noise[i];
      kept &= kept - 1;
    }
  }

  unsigned best = 0, token = CODES - 1;
#pragma unroll
  for (int i = OWN - 1; i >= 0; i--) {
    if (i == TOKENS && !end_allowed) continue;
    const unsigned value = ordered(rank[i] >= threshold ? score[i] + noise[i] : __uint_as_float(0xFF800000u));
    if (value > 0 && value >= best) best = value, token = i < TOKENS ? first + i : rules.end;
  }
  const unsigned best_of_warp = warp_max(best);
  token = warp_min(best == best_of_warp ? token : ~0u);
  if (lane == 0) shared.best[warp] = best_of_warp, shared.token[warp] = token;
  sync_program();
  if (!EMBED && thread > 0) return;
  best = shared.best[0], token = shared.token[0];
#pragma unroll
  for (int i = 1; i < WARPS; i++)
    if (shared.best[i] > best) best = shared.best[i], token = shared.token[i];
  if (thread == 0) codes[(long long)row * codes_row] = token;
  if constexpr (EMBED) embedding.look_up(token, gains, row, warp, lane);
}

extern "C" __global__ void __launch_bounds__(THREADS) code_draw(
    const bits16 *logits, const long long *slots, const float *settings, const long long *key,
    const long long *segment, const long long *frame, long long *codes, int logits_row, int codes_row, int book) {
  draw<false, false>(logits, slots, settings, key, segment, frame, codes, logits_row, codes_row, book, {}, {});
}

extern "C" __global__ void __launch_bounds__(THREADS) code_draw_embed(
    const bits16 *logits, const long long *slots, const float *settings, const long long *key,
    const long long *segment, const long long *frame, long long *codes, const bits16 *table, const bits16 *gain,
    bits16 *rows, bits16 *gained, float *squares, int logits_row, int codes_row, int book) {
  const Embedding embedding = {table, gain, rows, gained, squares};
  draw<false, true>(logits, slots, settings, key, segment, frame, codes, logits_row, codes_row, book, {}, embedding);
}

extern "C" __global__ void __launch_bounds__(THREADS) first_code_draw(
    const bits16 *logits, const long long *slots, const float *settings, const long long *key,
    const long long *segment, const long long *frame, const unsigned char *seen, const long long *min_frames,
    const long long *soft_limit, long long *codes, int logits_row, int codes_row, int book, int seen_row, int end,
    float pressure) {
  const Rules rules = {seen, min_frames, soft_limit, seen_row, end, pressure};
  draw<true, false>(logits, slots, settings, key, segment, frame, codes, logits_row, codes_row, book, rules, {});
}
