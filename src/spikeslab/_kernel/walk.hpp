// The walk over the elimination tree for many points: one implementation per instruction set, chosen at import.
#pragma once
#include "plan.hpp"

namespace spikeslab {

struct Points {
  long count;
  const double* b;        // count x latents
  const double* xhat;     // count x latents: posterior means under the reference state
  double* log_ratio;      // count: log of the evidence over that of the reference state
  double* mean;           // count x latents, or null: the evidence alone
  double* probabilities;  // count x latents x components, or null
};

struct Sums {  // over the points, added to what is there; latents x components, but `outer`: latents x latents
  double *counts, *first, *second, *outer;
};

using Walk = void (*)(const Plan&, const Points&, const Sums&);

struct Kernel {
  const char* name;
  Walk walk;
};

namespace x86_64_v4 { extern const Kernel kernel; }
namespace x86_64_v3 { extern const Kernel kernel; }
namespace baseline { extern const Kernel kernel; }

// Memory that the thread keeps between calls, so that its page faults are paid once; aligned for vectors.
enum class Slot { kRows, kLevels, kLeaves, kSums, kTables, kMatrices, kCount };
double* workspace(Slot slot, long count);

}  // namespace spikeslab
