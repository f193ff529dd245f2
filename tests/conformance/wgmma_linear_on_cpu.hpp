// SPDX-License-Identifier: Apache-2.0
// What wgmma_linear.cu needs of the hardware, for a CPU. Copies and products complete at once.
#include "cluster_on_cpu.hpp"
#include "bfloat16_on_cpu.hpp"

#define __grid_constant__
#define SHARED_MEMORY static_assert(true)

struct TensorMap {  // the test fills it in
  const bits16 *values;
  long long rows, columns, stride, box_rows;
};

static std::vector<std::unique_ptr<std::barrier<>>> multiplying;  // the threads of each program that multiply

static void barrier_init(unsigned barrier, int arrivals) { init_barrier(barrier, arrivals); }
static void barrier_expect(unsigned barrier, int bytes) { arrive_expecting(barrier, bytes); }
static void barrier_arrive(unsigned remote) { change_barrier(remote, 1, 0); }
static void barrier_wait(unsigned barrier, int parity) { wait_barrier(barrier, parity); }
static void __syncwarp() { sync_warp(); }
static int uniform(int value) { return value; }
static void publish_barriers() {}
static void prefetch_map(const TensorMap &) {}
static void copy_box(unsigned to, const TensorMap &map, int column, int row, unsigned barrier) {
  require(to % 1024 == 0, "a copy does not begin at a swizzled block");
  unsigned char *there = pointer(to, map.box_rows * ROW_BYTES);
  for (int r = 0; r < map.box_rows; r++)
    for (int c = 0; c < DEPTH; c++) {
      const bool exists = row + r < map.rows && column + c < map.columns;
      const bits16 value = exists ? map.values[(row + r) * map.stride + column + c] : 0;
      *(bits16 *)(there + r * ROW_BYTES + ((c / 8 ^ r % 8) * 16 + c % 8 * 2)) = value;
    }
  change_barrier(barrier, 0, -(int)map.box_rows * ROW_BYTES);
}
static void copy_box_to_cluster(unsigned to, const TensorMap &map, int column, int row, unsigned barrier) {
  for (int rank = 0; rank < CLUSTER; rank++)
    copy_box(remote_address(to, rank), map, column, row, remote_address(barrier, rank));
}
static void begin_products() {}
static void commit_products() {}
template <int MAX_PENDING>
static void wait_for_products() { __syncwarp(); }
template <int COUNT>
static void finish_products(float (&)[COUNT]) { __syncwarp(); }
template <int COUNT>
static void use_from_here(float (&)[COUNT]) {}
static void wait_for_previous() {}
static void start_next() {}
static void give_registers() {}
static void take_registers() {}
static float low_half(unsigned packed) { return __uint_as_float(packed << 16); }
static float high_half(unsigned packed) { return low_half(packed >> 16); }
static unsigned pack(float low, float high) { return rounded(low) | (unsigned)rounded(high) << 16; }
static uint4 load_16_bytes(const bits16 *from) { return *(const uint4 *)from; }
static float load_square(const float *from) { return *from; }
template <int THREADS>
static void sync_warpgroups() { multiplying[cluster_rank()]->arrive_and_wait(); }
static float from_other_lane(float value, int difference) { return from_lane(value, (threadIdx.x % 32) ^ difference); }
static float rsqrtf(float value) { return 1.f / std::sqrt(value); }
static float silu(float x) { return x / (1.f + std::exp(-x)); }
static u64 operand(unsigned address) { return (address & 0xFFFFFF) >> 4; }

// One thread's part of a product of 64 rows: two rows, two of every eight columns, 16 columns of both operands.
template <int COUNT>
static void multiply(float (&d)[COUNT], u64 a, u64 b) {
  const auto value = [](u64 operand, int row, int k) {
    const unsigned start = operand / 64 * 1024, chunk = operand % 64 + k / 8;
    require(chunk < 8, "an operand does not begin within 128 bytes of a swizzled block");
    const unsigned at = start + row * ROW_BYTES + (chunk ^ row % 8) * 16 + k % 8 * 2;
    return low_half(*(const bits16 *)(memory + at));
  };
  const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4;
  for (int i = 0; i < COUNT; i++) {
    const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    for (int k = 0; k < 16; k++) d[i] += value(a, row + i / 2 % 2 * 8, k) * value(b, column, k);
  }
}

template <class Kernel>
static void launch_products(int num_programs, int threads, int shared_bytes, Kernel kernel) {
  const int copying = threads % 128 ? threads % 128 : 128;
  multiplying.clear();
  for (int i = 0; i < CLUSTER; i++) multiplying.push_back(std::make_unique<std::barrier<>>(threads - copying));
  launch(num_programs, threads, shared_bytes, kernel, CLUSTER);
}
