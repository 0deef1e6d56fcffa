#include <cstdlib>
#include <cstddef>
#include <new>

#include "walk.hpp"

namespace spikeslab {
namespace {

struct Buffer {
  double* data = nullptr;
  long count = 0;
  ~Buffer() { std::free(data); }

  double* hold(long wanted) {
    if (wanted > count) {
      std::free(data);
      count = 0;
      const std::size_t bytes = (static_cast<std::size_t>(wanted) * sizeof(double) + 63) / 64 * 64;
      data = static_cast<double*>(std::aligned_alloc(64, bytes));
      if (!data) throw std::bad_alloc();
      count = wanted;
    }
    return data;
  }
};

thread_local Buffer buffers[static_cast<int>(Slot::kCount)];

}  // namespace

double* workspace(Slot slot, long count) { return buffers[static_cast<int>(slot)].hold(count); }

}  // namespace spikeslab
