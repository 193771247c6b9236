#include "trainer/python/python_rows.h"

#include <algorithm>

#include <fmt/format.h>

#include "trainer/python/array_arguments.h"
#include "trainer/python/errors.h"

namespace nb = nanobind;

namespace psd::python {
namespace {

/// A capsule that keeps a batch alive as long as an array that refers to it.
nb::capsule keep(std::shared_ptr<RowBatch> batch) {
  return nb::capsule(new std::shared_ptr<RowBatch>(std::move(batch)),
                     [](void* kept) noexcept { delete static_cast<std::shared_ptr<RowBatch>*>(kept); });
}

template <class T>
nb::object array(T* data, std::vector<size_t> shape, const std::shared_ptr<RowBatch>& batch) {
  return nb::cast(nb::ndarray<nb::numpy, T>(data, shape.size(), shape.data(), keep(batch)));
}

}  // namespace

const std::shared_ptr<RowBatch>& PythonRows::shared() const {
  if (!batch_) raise({ErrorCode::invalidArgument, "a batch of rows is used before make()"});
  return batch_;
}

uint32_t PythonRows::indexOf(const std::string& table) const {
  const auto found =
      std::find_if(tables_.begin(), tables_.end(), [&](const TableSpec& spec) { return spec.name == table; });
  if (found == tables_.end())
    raise({ErrorCode::invalidArgument, fmt::format("the model has no table '{}'", table)});
  return static_cast<uint32_t>(found - tables_.begin());
}

void PythonRows::make(const std::vector<std::pair<std::string, nb::object>>& features) {
  std::vector<std::vector<uint64_t>> ids;
  std::vector<RowBatch::Feature> made;
  for (const auto& [table, feature] : features) ids.push_back(idsOf(feature));
  for (size_t i = 0; i < features.size(); i++) made.push_back({indexOf(features[i].first), ids[i]});
  // Reuse its memory, unless an array or a call holds it.
  if (!batch_ || batch_.use_count() > 1)
    batch_ = std::make_shared<RowBatch>(tables_, shards_, nullptr, daemons_);
  batch_->make(made);
  features_ = features.size();
}

nb::object PythonRows::ids(const std::string& table) const {
  const std::span<const uint64_t> ids = batch().ids(indexOf(table));
  return array(ids.data(), {ids.size()}, batch_);
}

nb::object PythonRows::places(size_t feature) const {
  if (feature >= features_) {
    raise({ErrorCode::invalidArgument,
           fmt::format("there is no feature {}: make() was called with {}", feature, features_)});
  }
  const std::span<const int64_t> places = batch().places(feature);
  return array(places.data(), {places.size()}, batch_);
}

nb::object PythonRows::matrix(uint32_t table, std::span<float> values) const {
  return array(values.data(), {batch_->rowCount(table), tables_[table].dim}, batch_);
}

nb::object PythonRows::values(const std::string& table) const {
  const uint32_t index = indexOf(table);
  return matrix(index, batch().rows(index));
}

nb::object PythonRows::gradients(const std::string& table) const {
  const uint32_t index = indexOf(table);
  return matrix(index, batch().gradients(index));
}

}  // namespace psd::python
