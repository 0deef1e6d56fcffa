#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "states.hpp"
#include "tree.hpp"
#include "walk.hpp"

namespace nb = nanobind;

namespace spikeslab {
namespace {

using Matrix = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Array = nb::ndarray<nb::numpy, double>;

Array zeros(std::vector<size_t> shape) {
  size_t size = 1;
  for (size_t extent : shape) size *= extent;
  double* data = new double[size]();
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<double*>(p); });
  return Array(data, shape.size(), shape.data(), owner);
}

Array copy(const std::vector<double>& values, std::vector<size_t> shape) {
  Array array = zeros(shape);
  std::copy(values.begin(), values.end(), array.data());
  return array;
}

// ---- which instruction set ----

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

const Kernel* const kKernels[] = {  // best first
#if defined(SPIKESLAB_DISPATCH)
    &x86_64_v4::kernel, &x86_64_v3::kernel,
#endif
    &baseline::kernel};

std::vector<std::string> available() {
  std::vector<std::string> names;
  for (const Kernel* kernel : kKernels)
    if (runs_here(kernel->name)) names.emplace_back(kernel->name);
  return names;
}

const Kernel* chosen = nullptr;

void use(const std::string& name) {
  std::string here;
  for (const Kernel* kernel : kKernels) {
    if (!runs_here(kernel->name)) continue;
    if (name.empty() || name == kernel->name) {
      chosen = kernel;
      return;
    }
    here += here.empty() ? kernel->name : std::string(", ") + kernel->name;
  }
  throw std::invalid_argument("there is no kernel '" + name + "' for this CPU; it can run: " + here);
}

// ---- the tree and what it answers ----

void same_points(const Plan& plan, const Matrix& b, const Matrix& xhat) {
  if (b.shape(0) != xhat.shape(0) || b.shape(1) != xhat.shape(1) || b.shape(1) != static_cast<size_t>(plan.latents))
    throw std::invalid_argument("b and xhat must both be points x latents");
}

Array evidence(const Tree& tree, const Matrix& b, const Matrix& xhat) {
  same_points(tree.plan(), b, xhat);
  Array log_ratio = zeros({b.shape(0)});
  const Points points{static_cast<long>(b.shape(0)), b.data(), xhat.data(), log_ratio.data(), nullptr, nullptr};
  nb::gil_scoped_release release;
  chosen->walk(tree.plan(), points, Sums{});
  return log_ratio;
}

nb::tuple moments(const Tree& tree, const Matrix& b, const Matrix& xhat, bool probabilities) {
  const Plan& plan = tree.plan();
  same_points(plan, b, xhat);
  const size_t count = b.shape(0), n = plan.latents, k = plan.components;
  Array log_ratio = zeros({count}), mean = zeros({count, n}), sums = zeros({3, n, k}), outer = zeros({n, n});
  Array probability = zeros({probabilities ? count : 0, n, k});
  const Points points{static_cast<long>(count), b.data(), xhat.data(), log_ratio.data(), mean.data(),
                      probabilities ? probability.data() : nullptr};
  const size_t part = n * k;
  const Sums out{sums.data(), sums.data() + part, sums.data() + 2 * part, outer.data()};
  {
    nb::gil_scoped_release release;
    chosen->walk(plan, points, out);
  }
  return nb::make_tuple(log_ratio, mean, probability, sums, outer);
}

Array second_moments(const Tree& tree, const Matrix& b, const Matrix& xhat) {
  const Plan& plan = tree.plan();
  same_points(plan, b, xhat);
  const size_t count = b.shape(0), n = plan.latents, part = n * plan.components;
  Array outer = zeros({count, n, n});
  nb::gil_scoped_release release;
  std::vector<double> mean(n), sums(3 * part);
  for (size_t i = 0; i < count; i++) {
    double log_ratio;
    const Points point{1, b.data() + i * n, xhat.data() + i * n, &log_ratio, mean.data(), nullptr};
    chosen->walk(plan, point, Sums{sums.data(), sums.data() + part, sums.data() + 2 * part, outer.data() + i * n * n});
  }
  return outer;
}

Array log2_state_weights(const Tree& tree, const Matrix& xhat) {
  const Plan& plan = tree.plan();
  if (xhat.shape(1) != static_cast<size_t>(plan.latents)) throw std::invalid_argument("xhat must be points x latents");
  Array weights = zeros({xhat.shape(0), static_cast<size_t>(tree.states)});
  nb::gil_scoped_release release;
  state_weights(plan, static_cast<long>(xhat.shape(0)), xhat.data(), weights.data());
  return weights;
}

nb::list digits(const Tree& tree) {
  nb::list levels;
  for (int i = 0; i < tree.plan().latents; i++) {
    const Level& level = tree.plan().levels[i];
    nb::list components;
    for (int k = 0; k < level.count; k++) components.append(level.components[k].index);
    levels.append(nb::make_tuple(level.latent, components));
  }
  return levels;
}

}  // namespace

NB_MODULE(_core, m) {
  const char* wanted = std::getenv("SPIKESLAB_KERNEL");
  use(wanted ? wanted : "");
  m.def("available", &available, "Names of the kernels this CPU can run, the best first.");
  m.def("chosen", [] { return std::string(chosen->name); }, "Name of the kernel in use.");
  m.def("use", &use, nb::arg("name"), "Use another kernel; an empty name is the best one.");

  nb::class_<Tree>(m, "Tree")
      .def("__init__",
           [](Tree* self, const Matrix& A, const Matrix& weights, const Matrix& means, const Matrix& variances) {
             const size_t n = weights.shape(0), k = weights.shape(1);
             const auto same = [&](const Matrix& a) { return a.shape(0) == n && a.shape(1) == k; };
             if (A.shape(0) != n || A.shape(1) != n || !same(means) || !same(variances) || n == 0 || k == 0)
               throw std::invalid_argument("A must be latents x latents; weights, means, variances latents x components");
             new (self) Tree(static_cast<int>(n), static_cast<int>(k), A.data(), weights.data(), means.data(),
                             variances.data());
           },
           nb::arg("A"), nb::arg("weights"), nb::arg("means"), nb::arg("variances"))
      .def_ro("states", &Tree::states)
      .def_ro("log_constant", &Tree::log_constant)
      .def("reference",
           [](const Tree& t) {
             const std::size_t n = t.reference_mean.size();
             return nb::make_tuple(copy(t.reference_mean, {n}), copy(t.reference_variance, {n}),
                                   copy(t.reference_covariance, {n, n}));
           })
      .def("digits", &digits)
      .def("evidence", &evidence, nb::arg("b"), nb::arg("xhat"))
      .def("moments", &moments, nb::arg("b"), nb::arg("xhat"), nb::arg("probabilities") = false)
      .def("second_moments", &second_moments, nb::arg("b"), nb::arg("xhat"))
      .def("log2_state_weights", &log2_state_weights, nb::arg("xhat"));
}

}  // namespace spikeslab
