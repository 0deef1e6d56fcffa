#include "dispatch.hpp"

#include <stdexcept>

namespace spikeslab {
namespace {

bool runs_here(const std::string& name) {
#if defined(SPIKESLAB_DISPATCH)
  __builtin_cpu_init();
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
                  __builtin_cpu_supports("bmi2");
  if (name == "x86-64-v3") return v3;
  if (name == "x86-64-v4")
    return v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
  return name == "baseline";
}

const Kernel kKernels[] = {  // best first
#if defined(SPIKESLAB_DISPATCH)
    {"x86-64-v4", x86_64_v4::walk, x86_64_v4::walk_incomplete, x86_64_v4::sum_densities, x86_64_v4::truncate,
     x86_64_v4::gaussian_densities, x86_64_v4::gaussian_expectations},
    {"x86-64-v3", x86_64_v3::walk, x86_64_v3::walk_incomplete, x86_64_v3::sum_densities, x86_64_v3::truncate,
     x86_64_v3::gaussian_densities, x86_64_v3::gaussian_expectations},
#endif
    {"baseline", baseline::walk, baseline::walk_incomplete, baseline::sum_densities, baseline::truncate,
     baseline::gaussian_densities, baseline::gaussian_expectations}};

const Kernel* chosen = nullptr;

}  // namespace

const Kernel& kernel() { return *chosen; }

std::vector<std::string> available() {
  std::vector<std::string> names;
  for (const Kernel& kernel : kKernels)
    if (runs_here(kernel.name)) names.emplace_back(kernel.name);
  return names;
}

void use(const std::string& name) {
  std::string here;
  for (const Kernel& kernel : kKernels) {
    if (!runs_here(kernel.name)) continue;
    if (name.empty() || name == kernel.name) {
      chosen = &kernel;
      return;
    }
    here += here.empty() ? kernel.name : std::string(", ") + kernel.name;
  }
  throw std::invalid_argument("there is no kernel '" + name + "' for this CPU; it can run: " + here);
}

}  // namespace spikeslab
