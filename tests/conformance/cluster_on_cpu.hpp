// SPDX-License-Identifier: Apache-2.0
// Clusters of programs for a CPU (cuda_on_cpu.hpp): addresses of shared memory, and barriers that count arrivals and
// bytes. Copies complete at once.
#pragma once
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>

#include "cuda_on_cpu.hpp"

struct TransactionBarrier {
  int expected, pending, completed, bytes;  // completed: phases
};
static std::map<unsigned, TransactionBarrier> barriers;  // by address
static std::mutex barrier_mutex;
static std::condition_variable barrier_changed;

// As on a GPU, the upper bits of an address are the program's rank.
static int cluster_rank() { return (int)(blockIdx.x % programs.size()); }
static unsigned shared_address(const void *p) {
  return (unsigned)((const unsigned char *)p - memory) | cluster_rank() << 24;
}
static unsigned remote_address(unsigned address, int rank) { return (address & 0xFFFFFF) | rank << 24; }
static unsigned char *pointer(unsigned address, int bytes) {
  require((address & 0xFFFFFF) + bytes <= memory_bytes, "an address is outside of shared memory");
  return programs[address >> 24]->bytes.data() + (address & 0xFFFFFF);
}

static void sync_cluster() { cluster->arrive_and_wait(); }
// It orders no memory (races_on_cpu.hpp).
static void sync_cluster_relaxed() {
  const Internal order;
  sync_cluster();
}
static void init_barrier(unsigned address, int arrivals) {
  const Internal barrier;
  std::lock_guard lock(barrier_mutex);
  barriers[address] = {arrivals, arrivals, 0, 0};
}
static void fence_barriers() {}
// Arrivals and bytes that a barrier still waits for.
static void change_barrier(unsigned address, int arrivals, int bytes) {
  publish(pointer(address, 8));
  const Internal change;
  std::lock_guard lock(barrier_mutex);
  TransactionBarrier &barrier = barriers.at(address);
  barrier.pending -= arrivals;
  barrier.bytes += bytes;
  if (barrier.pending == 0 && barrier.bytes == 0) {
    barrier.pending = barrier.expected;
    barrier.completed++;
    barrier_changed.notify_all();
  }
}
static void arrive_expecting(unsigned address, int bytes) { change_barrier(address, 1, bytes); }
static void arrive(unsigned address) { change_barrier(address, 1, 0); }
// A thread of each warp of this program comes late to its waits, as any may on a GPU.
static int slow_rank = -1;
static constexpr int SLOW_LANE = 5;
extern "C" void set_slow_program(int rank) { slow_rank = rank; }
// A thread waits for each phase of a barrier that it waits for at all. If the next one completes before it has returned, it
// may wait forever, because only the parity is known. (A kernel whose threads leave out phases would need another check.)
static void wait_barrier(unsigned address, int parity) {
  static thread_local std::map<unsigned, int> seen;  // completed phases, by address
  if (cluster_rank() == slow_rank && threadIdx.x % 32 == SLOW_LANE)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  {
    const Internal wait;
    std::unique_lock lock(barrier_mutex);
    TransactionBarrier &barrier = barriers.at(address);
    int &before = seen[address], phase = before + (before % 2 != parity);
    const auto done = [&] { return barrier.completed % 2 != parity || barrier.completed > phase + 1; };
    require(barrier_changed.wait_for(lock, std::chrono::seconds(300), done), "a barrier was not completed in 300 s");
    require(barrier.completed <= phase + 1, "a thread missed a phase of a barrier");
    before = barrier.completed;
  }
  observe(pointer(address, 8));
}
static void wait_for_cluster(unsigned address) { wait_barrier(address, 0); }
static void copy(unsigned to, const void *from, int bytes, unsigned barrier) {
  // Word by word: of memcpy, ThreadSanitizer sees nothing (test_races_on_cpu.py).
  volatile Word *const first = (Word *)pointer(to, bytes);
  for (int i = 0; i < bytes / 4; i++) first[i] = ((const volatile Word *)from)[i];
  change_barrier(barrier, 0, -bytes);
}
static void send(unsigned to, float value, unsigned barrier) { copy(to, &value, sizeof value, barrier); }
static void send(unsigned to, float4 values, unsigned barrier) { copy(to, &values, sizeof values, barrier); }
