// What truncated inference needs that does not depend on the points.
#pragma once
#include <memory>

#include "truncated.hpp"

namespace spikeslab {

class Truncated {
 public:
  // `mixing` is latents x features, `gram` its product with its transpose, the others are latents x slabs; log_odds is
  // natural, -inf for a slab that never occurs.
  Truncated(int latents, int features, int slabs, const double* mixing, const double* gram, const double* log_odds,
            const double* means, const double* variances, int free, int active, int moves);

  const TruncatedModel& model() const { return model_; }

 private:
  struct Free {
    void operator()(void* p) const;
  };
  std::unique_ptr<void, Free> memory_;
  TruncatedModel model_;
};

}  // namespace spikeslab
