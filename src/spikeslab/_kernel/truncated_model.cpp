#include "truncated_model.hpp"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>

#include "plan.hpp"

namespace spikeslab {
namespace {

constexpr int kVector = 16;  // the widest vector of floats

int padded(int count) { return (count + kVector - 1) / kVector * kVector; }

// Narrowest slab of the search in single precision, which divides by variances.
constexpr float kLeastVariance32 = 1e-6f;

}  // namespace

void Truncated::Free::operator()(void* p) const { std::free(p); }

Truncated::Truncated(int latents, int features, int slabs, const double* mixing, const double* gram,
                     const double* log_odds, const double* means, const double* variances, int free, int active, int moves) {
  const int wide = padded(latents), long_row = padded(features);
  const std::size_t n = latents, each = n * slabs, each32 = static_cast<std::size_t>(slabs) * wide;
  const std::size_t singles = static_cast<std::size_t>(features) * wide + n * wide + wide + 3 * each32;
  const std::size_t doubles = n * long_row + n * n + 3 * each;
  const std::size_t bytes = (singles * sizeof(float) + doubles * sizeof(double) + 63) / 64 * 64;
  memory_.reset(std::aligned_alloc(64, bytes));
  if (!memory_) throw std::bad_alloc();
  std::memset(memory_.get(), 0, bytes);

  float* mixing32 = static_cast<float*>(memory_.get());
  float* gram32 = mixing32 + static_cast<std::size_t>(features) * wide;
  float* power32 = gram32 + n * wide;
  float *odds32 = power32 + wide, *means32 = odds32 + each32, *variances32 = means32 + each32;
  double* rows = reinterpret_cast<double*>(variances32 + each32);
  double* own_gram = rows + n * long_row;
  double *odds = own_gram + n * n, *centres = odds + each, *widths = centres + each;

  for (int h = 0; h < latents; h++) {
    std::memcpy(rows + static_cast<std::size_t>(h) * long_row, mixing + static_cast<std::size_t>(h) * features,
                sizeof(double) * features);
    for (int d = 0; d < features; d++)
      mixing32[static_cast<std::size_t>(d) * wide + h] = static_cast<float>(mixing[static_cast<std::size_t>(h) * features + d]);
  }
  std::memcpy(own_gram, gram, sizeof(double) * n * n);
  for (std::size_t i = 0; i < n; i++)
    for (std::size_t j = 0; j < n; j++) gram32[i * wide + j] = static_cast<float>(gram[i * n + j]);
  for (std::size_t h = 0; h < n; h++) power32[h] = gram32[h * wide + h];

  bool plain = slabs == 1;
  for (std::size_t i = 0; i < each32; i++) odds32[i] = kNever32, variances32[i] = 1;
  for (std::size_t h = 0; h < n; h++)
    for (int c = 0; c < slabs; c++) {
      const std::size_t at = h * slabs + c, at32 = static_cast<std::size_t>(c) * wide + h;
      odds[at] = log_odds[at] / kLog2;
      centres[at] = means[at];
      widths[at] = variances[at];
      plain = plain && means[at] == 0 && variances[at] == 1;
      if (odds[at] > kNever32) odds32[at32] = static_cast<float>(odds[at]);
      means32[at32] = static_cast<float>(means[at]);
      const float variance = static_cast<float>(variances[at]);
      variances32[at32] = variance > kLeastVariance32 ? variance : kLeastVariance32;
    }
  model_ = {latents, features, slabs,   wide,    long_row, plain,    rows,        own_gram, odds,   centres,
            widths,  mixing32, gram32,  power32, odds32,   means32,  variances32, free, active, moves};
}

}  // namespace spikeslab
