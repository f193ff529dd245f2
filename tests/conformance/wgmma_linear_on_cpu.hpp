// SPDX-License-Identifier: Apache-2.0
// What wgmma_linear.cu needs of the hardware, for a CPU. All programs of a cluster run at once, each with a thread of
// the CPU for each of its threads. Shared memory is an array whose bounds are checked; copies and products complete at
// once, and barriers count arrivals and bytes.
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "cuda_on_cpu.hpp"

#define __cluster_dims__(...)
#define __grid_constant__

struct TensorMap {  // the test fills it in
  const bits16 *values;
  long long rows, columns, stride, box_rows;
};
struct TransactionBarrier {
  int expected, pending, bytes, phase;
};
struct Program {
  std::vector<unsigned char> bytes;
  TransactionBarrier barriers[32] = {};
  std::vector<std::unique_ptr<std::barrier<>>> warps;
  std::unique_ptr<std::barrier<>> multiplying;  // the threads that multiply
  std::vector<float> lanes;                     // a value for each thread
};

static std::vector<Program> programs;
static std::unique_ptr<std::barrier<>> cluster_barrier;
static thread_local int own_program;
static std::mutex barrier_mutex;
static std::condition_variable barrier_changed;
static int barriers_begin;  // address of the first barrier

static Program &own() { return programs[own_program]; }
#define SHARED_MEMORY unsigned char *memory = own().bytes.data()

static unsigned shared_address(const void *p) { return (unsigned)((const unsigned char *)p - own().bytes.data()); }
static TransactionBarrier &barrier_at(int index, unsigned address) {
  const int number = ((int)address - barriers_begin) / 8;
  require(address % 8 == 0 && number >= 0 && number < 32, "an address is not that of a barrier");
  return programs[index].barriers[number];
}
static void complete(TransactionBarrier &b) {
  if (b.pending == 0 && b.bytes == 0) {
    b.pending = b.expected;
    b.phase ^= 1;
    barrier_changed.notify_all();
  }
}
static void barrier_init(unsigned barrier, int arrivals) {
  barrier_at(own_program, barrier) = {arrivals, arrivals, 0, 0};
}
static void barrier_expect(unsigned barrier, int bytes) {
  std::lock_guard lock(barrier_mutex);
  TransactionBarrier &b = barrier_at(own_program, barrier);
  b.pending--, b.bytes += bytes;
  complete(b);
}
static unsigned remote_address(unsigned barrier, int index) { return barrier | (unsigned)index << 24; }
static void barrier_arrive(unsigned remote) {
  std::lock_guard lock(barrier_mutex);
  TransactionBarrier &b = barrier_at(remote >> 24, remote & 0xFFFFFF);
  require(b.pending > 0, "a barrier has too many arrivals");
  b.pending--;
  complete(b);
}
static void barrier_wait(unsigned barrier, int parity) {
  std::unique_lock lock(barrier_mutex);
  const auto done = [&] { return barrier_at(own_program, barrier).phase != parity; };
  require(barrier_changed.wait_for(lock, std::chrono::seconds(100), done), "a barrier was not completed in 100 s");
}
static void sync_cluster() { cluster_barrier->arrive_and_wait(); }
static void __syncwarp() { own().warps[threadIdx.x / 32]->arrive_and_wait(); }
static int uniform(int value) { return value; }
static void publish_barriers() {}
static void prefetch_map(const TensorMap &) {}
template <bool MULTICAST>
static void copy_box(unsigned to, const TensorMap &map, int column, int row, unsigned barrier, unsigned short mask) {
  require(to % 1024 == 0, "a copy does not begin at a swizzled block");
  std::lock_guard lock(barrier_mutex);
  for (int index = 0; index < (int)programs.size(); index++) {
    if (MULTICAST ? !(mask >> index & 1) : index != own_program) continue;
    require(to + map.box_rows * ROW_BYTES <= (unsigned)barriers_begin, "a copy is outside of the stages");
    for (int r = 0; r < map.box_rows; r++)
      for (int c = 0; c < DEPTH; c++) {
        const bool exists = row + r < map.rows && column + c < map.columns;
        const bits16 value = exists ? map.values[(row + r) * map.stride + column + c] : 0;
        const unsigned at = to + r * ROW_BYTES + ((c / 8 ^ r % 8) * 16 + c % 8 * 2);
        *(bits16 *)(programs[index].bytes.data() + at) = value;
      }
    TransactionBarrier &b = barrier_at(index, barrier);
    b.bytes -= map.box_rows * ROW_BYTES;
    complete(b);
  }
}
static void begin_products() {}
static void commit_products() {}
template <int MAX_PENDING>
static void wait_for_products() { __syncwarp(); }
template <int COUNT>
static void finish_products(float (&)[COUNT]) { __syncwarp(); }
static void wait_for_previous() {}
static void start_next() {}
static void give_registers() {}
static void take_registers() {}
static float low_half(unsigned packed) {
  const unsigned bits = packed << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
static float high_half(unsigned packed) { return low_half(packed >> 16); }
static unsigned rounded(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, sizeof bits);
  return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}
static unsigned pack(float low, float high) { return rounded(low) | rounded(high) << 16; }
static uint4 load_16_bytes(const bits16 *from) { return *(const uint4 *)from; }
static float load_square(const float *from) { return *from; }
template <int THREADS>
static void sync_warpgroups() { own().multiplying->arrive_and_wait(); }
static float from_lane(float value, int lane) {
  own().lanes[threadIdx.x] = value;
  __syncwarp();
  const float found = own().lanes[threadIdx.x / 32 * 32 + lane];
  __syncwarp();
  return found;
}
static float from_other_lane(float value, int difference) { return from_lane(value, (threadIdx.x % 32) ^ difference); }
static float rsqrtf(float value) { return 1.f / std::sqrt(value); }
static float open_gate(float x) { return x / (1.f + std::exp(-x)); }
static u64 operand(unsigned address) { return address >> 4; }

// One thread's part of a product of 64 rows: two rows, two of every eight columns, 16 columns of both operands.
template <int COUNT>
static void multiply(float (&d)[COUNT], u64 a, u64 b) {
  const auto value = [](u64 operand, int row, int k) {
    const unsigned start = operand / 64 * 1024, chunk = operand % 64 + k / 8;
    require(chunk < 8, "an operand does not begin within 128 bytes of a swizzled block");
    const unsigned at = start + row * ROW_BYTES + (chunk ^ row % 8) * 16 + k % 8 * 2;
    return low_half(*(const bits16 *)(own().bytes.data() + at));
  };
  const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4;
  for (int i = 0; i < COUNT; i++) {
    const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    for (int k = 0; k < 16; k++) d[i] += value(a, row + i / 2 % 2 * 8, k) * value(b, column, k);
  }
}

template <class Kernel>
static void launch_clusters(
    int num_programs, int cluster, int threads, int shared_bytes, int num_stages, Kernel kernel) {
  gridDim.x = num_programs;
  blockDim.x = threads;
  barriers_begin = shared_bytes - 16 * num_stages;
  for (int first = 0; first < num_programs; first += cluster) {
    programs = std::vector<Program>(cluster);
    for (Program &each : programs) {
      each.bytes.assign(shared_bytes, 0xFF);  // NaN
      each.lanes.assign(threads, 0);
      each.multiplying = std::make_unique<std::barrier<>>(threads / 128 * 128 - (threads % 128 ? 0 : 128));
      for (int i = 0; i < threads / 32; i++) each.warps.push_back(std::make_unique<std::barrier<>>(32));
    }
    cluster_barrier = std::make_unique<std::barrier<>>(cluster * threads);
    program = std::make_unique<std::barrier<>>(threads);
    std::vector<std::thread> all;
    for (int i = 0; i < cluster * threads; i++)
      all.emplace_back([=] {
        own_program = i / threads;
        threadIdx.x = i % threads;
        blockIdx.x = first + own_program;
        kernel();
      });
    for (std::thread &thread : all) thread.join();
  }
}
