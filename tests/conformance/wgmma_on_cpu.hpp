// SPDX-License-Identifier: Apache-2.0
// What wgmma_conv.cu needs of the hardware, for a CPU (cuda_on_cpu.hpp). Shared memory is an array whose bounds are
// checked, and asynchronous copies and products complete at once. A warp waits for its 32 threads where it waits for
// products, because its first thread releases the weights.
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "cuda_on_cpu.hpp"

#define SHARED_MEMORY

struct float2 {
  float x, y;
};
struct TransactionBarrier {
  int expected, pending, phase;
};


static TransactionBarrier barriers[BARRIER_BYTES / 8];
static std::mutex barrier_mutex;
static std::condition_variable barrier_changed;

template <class Value>
static Value &shared(unsigned address) {
  require(address + sizeof(Value) <= memory_bytes, "an address is outside of shared memory");
  return *(Value *)(memory + address);
}
static float to_float(half_bits bits) {
  _Float16 value;
  std::memcpy(&value, &bits, sizeof value);
  return (float)value;
}
static half_bits to_half(float value) {
  const _Float16 rounded = (_Float16)std::fmin(std::fmax(value, -65504.f), 65504.f);
  half_bits bits;
  std::memcpy(&bits, &rounded, sizeof bits);
  return bits;
}


static int min(int a, int b) { return a < b ? a : b; }
static void __syncwarp() {}

static unsigned shared_address(const void *p) { return (unsigned)((const unsigned char *)p - memory); }
static u64 operand(unsigned address, unsigned lead) {
  return (u64)(address >> 4) | (u64)(lead >> 4) << 16 | (u64)(128 >> 4) << 32;
}
static void barrier_init(unsigned barrier, int arrivals) {
  std::lock_guard lock(barrier_mutex);
  barriers[barrier / 8] = {arrivals, arrivals, 0};
}
static void barrier_arrive(unsigned barrier) {
  std::lock_guard lock(barrier_mutex);
  TransactionBarrier &b = barriers[barrier / 8];
  if (--b.pending == 0) {
    b.pending = b.expected;
    b.phase ^= 1;
    barrier_changed.notify_all();
  }
}
static void barrier_wait(unsigned barrier, int parity) {
  std::unique_lock lock(barrier_mutex);
  const auto done = [&] { return barriers[barrier / 8].phase != parity; };
  require(barrier_changed.wait_for(lock, std::chrono::seconds(300), done), "a barrier was not completed in 300 s");
}
static void copy_stage(unsigned to, const void *from, int bytes, unsigned barrier) {
  require(to + bytes <= memory_bytes, "a stage is outside of shared memory");
  std::memcpy(memory + to, from, bytes);
  barrier_arrive(barrier);
}
static void sync_warpgroup(int warpgroup) { warpgroups[warpgroup]->arrive_and_wait(); }
static void begin_products() {}
static void commit_products() {}
template <int MAX_PENDING>
static void wait_for_products() {
  warps[threadIdx.x / 32]->arrive_and_wait();
}
template <int COUNT>
static void finish_products(float (&)[COUNT]) {
  wait_for_products<0>();
}
static void publish_to_tensor_cores() {}
static void publish_barriers() {}
static unsigned pack(float low, float high) { return to_half(low) | (unsigned)to_half(high) << 16; }
static float2 unpack(unsigned packed) { return {to_float(packed & 0xFFFF), to_float(packed >> 16)}; }
static float snake(float x, float rate, float height) {
  const float sine = std::sin(x * rate);
  return std::fma(sine * height, sine, x);
}
static uint4 load_once(const half_bits *from) { return *(const uint4 *)from; }
static void copy_16_bytes(unsigned to, const half_bits *from) { shared<uint4>(to) = *(const uint4 *)from; }
static void wait_for_copies() {}
static void store_16_bytes(unsigned to, const unsigned (&v)[4]) { shared<uint4>(to) = {v[0], v[1], v[2], v[3]}; }

// One thread's part of a product of 64 rows: two rows, two of every eight columns, 16 input channels.
template <int COUNT>
static void multiply(float (&d)[COUNT], u64 a, u64 b, int accumulate) {
  const auto value = [](u64 operand, int row, int k) {
    const unsigned start = (operand & 0x3FFF) << 4, lead = (operand >> 16 & 0x3FFF) << 4;
    return to_float(shared<half_bits>(start + k / 8 * lead + row * 16 + k % 8 * 2));
  };
  const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4;
  for (int i = 0; i < COUNT; i++) {
    const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    float sum = accumulate ? d[i] : 0.f;
    for (int k = 0; k < 16; k++) sum += value(a, row + i / 2 % 2 * 8, k) * value(b, column, k);
    d[i] = sum;
  }
}
