// SPDX-License-Identifier: Apache-2.0
// What wgmma.cuh has of the hardware, for a CPU (cuda_on_cpu.hpp). Shared memory is an array whose bounds are
// checked, and asynchronous copies and products complete at once. A warp waits for its 32 threads where it waits for
// products, because its first thread releases the weights.
#include "cluster_on_cpu.hpp"
#include "float16_on_cpu.hpp"

#define SHARED_MEMORY

static unsigned offset_of(unsigned address, int rank) {
  require((int)(address >> 24) == rank, "an address is of another program");
  return address & 0xFFFFFF;
}
template <class Value>
static Value &at(unsigned offset) {
  require(offset + sizeof(Value) <= memory_bytes, "an address is outside of shared memory");
  return *(Value *)(memory + offset);
}
template <class Value>
static Value &shared(unsigned address) {
  return at<Value>(offset_of(address, cluster_rank()));
}
static half_bits to_half(float value) {
  const _Float16 rounded = (_Float16)std::fmin(std::fmax(value, -65504.f), 65504.f);
  half_bits bits;
  std::memcpy(&bits, &rounded, sizeof bits);
  return bits;
}


static int min(int a, int b) { return a < b ? a : b; }
static void __syncwarp() {}
static unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((u64)a * b >> 32); }

static u64 operand(unsigned address, unsigned lead) {
  return (u64)(address >> 4 & 0x3FFF) | (u64)(lead >> 4) << 16 | (u64)(128 >> 4) << 32;
}
static void barrier_init(unsigned barrier, int arrivals) { init_barrier(barrier, arrivals); }
static void barrier_expect(unsigned barrier, int bytes) { arrive_expecting(barrier, bytes); }
static void arrive_in_cluster(unsigned barrier, int rank) { change_barrier(remote_address(barrier, rank), 1, 0); }
static void barrier_wait(unsigned barrier, int parity) {
  offset_of(barrier, cluster_rank());
  wait_barrier(barrier, parity);
}
static void copy_bytes_of(int rank, unsigned to, const void *from, int bytes, unsigned barrier) {
  offset_of(to, cluster_rank()), offset_of(barrier, cluster_rank());
  copy(remote_address(to, rank), from, bytes, remote_address(barrier, rank));
}
static void copy_bytes(unsigned to, const void *from, int bytes, unsigned barrier) {
  copy_bytes_of(cluster_rank(), to, from, bytes, barrier);
}
static void copy_bytes_to_cluster(unsigned to, const void *from, int bytes, unsigned barrier) {
  for (int rank = 0; rank < (int)programs.size(); rank++) copy_bytes_of(rank, to, from, bytes, barrier);
}
static void give_registers() {}
static void take_registers() {}
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
static void commit_copies() {}
template <int MAX_PENDING>
static void wait_for_copies() {}
static uint4 load_16_bytes(unsigned from) { return shared<uint4>(from); }

// One thread's part of a product of 64 rows: two rows, two of every eight columns, 16 input channels.
template <int COUNT>
static void multiply(float (&d)[COUNT], u64 a, u64 b, int accumulate) {
  const auto value = [](u64 operand, int row, int k) {
    const unsigned start = (operand & 0x3FFF) << 4, lead = (operand >> 16 & 0x3FFF) << 4;
    return to_float(at<half_bits>(start + k / 8 * lead + row * 16 + k % 8 * 2));
  };
  const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4;
  for (int i = 0; i < COUNT; i++) {
    const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    float sum = accumulate ? d[i] : 0.f;
    for (int k = 0; k < 16; k++) sum += value(a, row + i / 2 % 2 * 8, k) * value(b, column, k);
    d[i] = sum;
  }
}
// The same with the left operand in registers, which the threads of a warp exchange.
template <int COUNT>
static void multiply(float (&d)[COUNT], const unsigned *a, u64 b, int accumulate) {
  const int lane = threadIdx.x % 32;
  fragments[lane] = {a[0], a[1], a[2], a[3]};
  sync_warp();
  const auto left = [&](int row, int k) {  // row: 0 to 15
    const unsigned pair = fragments[row % 8 * 4 + k % 8 / 2][k / 8 * 2 + row / 8];
    return to_float(pair >> k % 2 * 16 & 0xFFFF);
  };
  const unsigned start = (b & 0x3FFF) << 4, lead = (b >> 16 & 0x3FFF) << 4;
  for (int i = 0; i < COUNT; i++) {
    const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    float sum = accumulate ? d[i] : 0.f;
    for (int k = 0; k < 16; k++) {
      const half_bits right = at<half_bits>(start + k / 8 * lead + column * 16 + k % 8 * 2);
      sum += left(lane / 4 + i / 2 % 2 * 8, k) * to_float(right);
    }
    d[i] = sum;
  }
  sync_warp();
}
