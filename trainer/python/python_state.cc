// The calls of PythonClient about the state of the daemon's optimizer.

#include <memory>
#include <utility>

#include <nanobind/stl/string.h>

#include "trainer/python/python_client.h"

namespace nb = nanobind;

namespace psd::python {
namespace {

/// A numpy array that owns the values.
nb::object arrayOf(std::vector<float> values) {
  auto kept = std::make_unique<std::vector<float>>(std::move(values));
  float* const data = kept->data();
  const size_t size = kept->size();
  nb::capsule owner(kept.release(),
                    [](void* vector) noexcept { delete static_cast<std::vector<float>*>(vector); });
  return nb::cast(nb::ndarray<nb::numpy, float, nb::ndim<1>>(data, {size}, owner));
}

}  // namespace

nb::tuple PythonClient::fetchState() {
  OptimizerState state = take(client_->run([](Client& client) { return client.fetchState(); }));
  nb::list versions, steps;
  for (const Version version : state.versions) versions.append(version.value);
  for (const uint64_t ofShard : state.steps) steps.append(ofShard);
  nb::dict arrays;
  for (auto& [name, values] : state.arrays) arrays[name.c_str()] = arrayOf(std::move(values));
  return nb::make_tuple(versions, steps, arrays);
}

void PythonClient::restoreState(std::vector<uint64_t> steps,
                                const std::map<std::string, nb::object>& arrays) {
  std::vector<ConstValues> kept;
  StateToRestore state{std::move(steps), {}};
  for (const auto& [name, array] : arrays) {
    kept.push_back(aligned(constValuesOf(array, name.empty() ? "values" : name.c_str())));
    state.arrays[name] = spanOf(kept.back());
  }
  check(client_->run([kept, state](Client& client) { return client.restoreState(state); }));
}

}  // namespace psd::python
