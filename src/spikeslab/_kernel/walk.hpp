// The walk over the elimination tree for many points: one implementation per instruction set, chosen at import.
#pragma once
#include "plan.hpp"

namespace spikeslab {

// Points given as observations y = offset + mixing x + e whose noise e is independent between features.
struct Observation {
  long features;
  const double *precise, *gain, *mixing;  // features x latents: Sigma^-1 W, the regression of xhat on y, W
  const double *offset, *precision;       // features: c, 1 / noise variance
  const double *b0, *xhat0;               // latents: b and xhat at y = 0
  const double *reference_mean, *reference_precision;  // latents
};

// Either y of an observation or b and xhat. With an observation log_ratio becomes the log density of y, up to a constant that
// does not depend on y.
struct Points {
  long count;
  const double* b;        // count x latents
  const double* xhat;     // count x latents: posterior means under the reference state
  const Observation* observation;
  const double* y;        // count x features
  double* log_ratio;      // count: log of the evidence over that of the reference state
  double* mean;           // count x latents, or null
  double* probabilities;  // count x latents x components, or null
};

struct Sums {  // over the points, added to what is there, or null for the evidence alone
  double *counts, *first, *second;  // latents x components
  double* outer;                    // latents x latents
  double* cross;                    // features x latents: y <x>', with an observation
};

using Walk = void(const Plan&, const Points&, const Sums*);

namespace x86_64_v4 { Walk walk; }
namespace x86_64_v3 { Walk walk; }
namespace baseline { Walk walk; }

// Memory that the thread keeps between calls, so that its page faults are paid once; aligned for vectors.
enum class Slot { kData, kRows, kLevels, kLeaves, kSums, kTables, kMatrices, kDensities, kTruncated, kGaussians, kCount };
double* workspace(Slot slot, long count);

}  // namespace spikeslab
