// SPDX-License-Identifier: Apache-2.0
// What wgmma_linear.cu needs of the hardware beyond its headers, for a CPU.
static std::vector<std::unique_ptr<std::barrier<>>> multiplying;  // the threads of each program that multiply

static void barrier_wait(unsigned barrier, int parity) { wait_barrier(barrier, parity); }
static void __syncwarp() { sync_warp(); }
static void copy_box_to_cluster(unsigned to, const TensorMap &map, int column, int row, unsigned barrier) {
  for (int rank = 0; rank < CLUSTER; rank++)
    copy_box(remote_address(to, rank), map, column, row, remote_address(barrier, rank));
}
static void give_registers() {}
static void take_registers() {}
static uint4 load_values(const bits16 *from) { return *(const uint4 *)from; }
static float load_square(const float *from) { return *from; }
template <int THREADS>
static void sync_warpgroups() { multiplying[cluster_rank()]->arrive_and_wait(); }

template <class Kernel>
static void launch_products(int num_programs, int threads, int shared_bytes, Kernel kernel) {
  const int copying = threads % 128 ? threads % 128 : 128;
  multiplying.clear();
  for (int i = 0; i < CLUSTER; i++) multiplying.push_back(std::make_unique<std::barrier<>>(threads - copying));
  launch(num_programs, threads, shared_bytes, kernel, CLUSTER);
}
