// Builds and owns the plan of an elimination tree.
#pragma once
#include <vector>

#include "plan.hpp"

namespace spikeslab {

class Tree {
 public:
  // A is n x n, the prior's arrays are n x k, all in row order. Throws std::invalid_argument above 2^24 states.
  Tree(int n, int k, const double* A, const double* weights, const double* means, const double* variances);
  Tree(const Tree&) = delete;
  Tree& operator=(const Tree&) = delete;

  const Plan& plan() const { return plan_; }
  double states;
  // The reference state: every latent at its broadest component, in the caller's order.
  std::vector<double> reference_mean, reference_variance, reference_covariance;
  double log_constant;  // log prior weight of the reference state - log|I + V A| / 2

 private:
  Plan plan_{};
  std::vector<Component> kept_;
  std::vector<Level> levels_;
  std::vector<double> A_, Lam_, forward_, backward_;

  void choose_components(const double* weights, const double* means, const double* variances, const double* A);
  void choose_layout();
  void prepare_reference(const double* A);
  void choose_start();
};

}  // namespace spikeslab
