// Which of the implementations compiled for different instruction sets is in use.
#pragma once
#include <string>
#include <vector>

#include "densities.hpp"
#include "gaussians.hpp"
#include "incomplete.hpp"
#include "truncated.hpp"
#include "walk.hpp"

namespace spikeslab {

struct Kernel {
  const char* name;
  Walk* walk;
  WalkIncomplete* walk_incomplete;
  SumDensities* sum_densities;
  Truncate* truncate;
  GaussianDensities* gaussian_densities;
  GaussianExpectations* gaussian_expectations;
};

const Kernel& kernel();                // the one in use
std::vector<std::string> available();  // names of those that this CPU can run, best first
void use(const std::string& name);     // "": the best

}  // namespace spikeslab
